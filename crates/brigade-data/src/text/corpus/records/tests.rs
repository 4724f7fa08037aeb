use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, DictionaryArray, Float32Array, ListArray, RecordBatch, StringArray,
    StructArray, UInt64Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{Field, Metadata};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::Corpus;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn file(folder: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

fn read(path: &Path, columns: &Columns) -> Result<Vec<Record>> {
    Corpus::from_sources(&[path.display().to_string()]).records(columns)?.collect()
}

fn message(path: &Path, columns: &Columns) -> String {
    read(path, columns).unwrap_err().to_string()
}

fn lines(count: usize) -> String {
    (0..count).map(|index| format!("{{\"text\": \"record {index}\", \"id\": {index}}}\n")).collect()
}

#[test]
fn columns_come_under_the_names_that_they_are_asked_by() {
    let folder = tempfile::tempdir().unwrap();
    let line = r#"{"review": "good", "stars": 5, "turns": [{"role": "user"}], "more": {"a": 1}}"#;
    let path = file(&folder, "a.jsonl", format!("\n{line}\n").as_bytes());
    let columns = Columns::new(&["text", "label"], &["turns", "absent"]);
    let names = [("text".into(), "review".into()), ("label".into(), "stars".into())].into();
    let records = read(&path, &columns.clone().renamed(&names).unwrap()).unwrap();
    assert_eq!(
        Value::Object(records[0].fields.clone()),
        json!({"text": "good", "label": 5, "turns": [{"role": "user"}]})
    );
    assert_eq!(records[0].place.to_string(), format!("{}:2", path.display()));
    assert!(
        records[0].text("label").unwrap_err().to_string().contains("a.jsonl:2: the column for `label` has")
    );
    // One that is named must be there, and only those that are read can be named.
    let renamed = |name: &str, to: &str| columns.clone().renamed(&[(name.into(), to.into())].into());
    let said = message(&path, &renamed("absent", "none").unwrap());
    assert!(said.contains("a.jsonl:2: there is no column `text`"), "{said}");
    assert!(said.contains("there are: more, review, stars, turns. data.columns says which"), "{said}");
    let said = renamed("texts", "review").unwrap_err().to_string();
    assert!(
        said.contains("data.columns = { texts = \"review\" }") && said.contains("text, label, turns"),
        "{said}"
    );
}

#[test]
fn compressed_files_are_read_as_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let text = lines(5000);
    let two = [gzip(&text.as_bytes()[..1000]), gzip(&text.as_bytes()[1000..])].concat();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    let plain = read(&file(&folder, "a.jsonl", text.as_bytes()), &Columns::default()).unwrap();
    assert_eq!(plain.len(), 5000);
    for (name, bytes) in [
        ("b.jsonl.gz", gzip(text.as_bytes())),
        ("c.json.gz", two),
        ("d.jsonl.zst", zstd.clone()),
        ("e.JSON.ZST", zstd),
    ] {
        let records = read(&file(&folder, name, &bytes), &Columns::default()).unwrap();
        assert!(
            records.iter().map(|record| &record.fields).eq(plain.iter().map(|record| &record.fields)),
            "{name}"
        );
        assert!(records[4999].place.to_string().ends_with(&format!("{name}:5000")));
    }
    let path = file(&folder, "f.txt.gz", &gzip("é".as_bytes()));
    assert_eq!(read(&path, &Columns::default()).unwrap()[0].fields["text"], "é");
}

#[test]
fn json_is_an_array_or_one_object_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let columns = Columns::new(&["text"], &["id"]);
    let expected = read(&file(&folder, "a.jsonl", lines(3).as_bytes()), &columns).unwrap();
    let array = format!("[{}]\n", lines(3).trim().replace('\n', ","));
    let spread = array.replace('{', "{\n  ").replace("},", "\n},\n").replace('[', "\u{feff} [\n");
    let contents = [lines(3), array, spread, lines(3).replace('\n', " ")];
    for (index, content) in contents.iter().enumerate() {
        for name in [format!("{index}.json"), format!("{index}.json.gz")] {
            let bytes = if name.ends_with("gz") { gzip(content.as_bytes()) } else { content.clone().into() };
            let records = read(&file(&folder, &name, &bytes), &columns).unwrap();
            let fields =
                |records: &[Record]| records.iter().map(|record| record.fields.clone()).collect::<Vec<_>>();
            assert_eq!(fields(&records), fields(&expected), "{content}");
        }
    }
    let strings = r#"[{"text": "a } ] \\\" { [", "id": {"a": ["}"]}}]"#;
    let records = read(&file(&folder, "strings.json", strings.as_bytes()), &columns).unwrap();
    assert_eq!(
        Value::Object(records[0].fields.clone()),
        json!({"text": "a } ] \\\" { [", "id": {"a": ["}"]}})
    );
    assert!(read(&file(&folder, "none.json", b" [ ] \n"), &columns).unwrap().is_empty());
    let path = file(&folder, "spread.json", contents[2].as_bytes());
    assert_eq!(read(&path, &columns).unwrap()[1].place.to_string(), format!("{}:5", path.display()));

    let object = r#"{"text": "a"}"#;
    for (content, expected) in [
        (format!("[{object}\n {object}]"), "wrong.json:2: a comma or the end of the array is missing"),
        (format!("[{object},]"), "an element is missing before the end of the array"),
        (format!("[{object}] {object}"), "something follows the array"),
        (format!("[{object},\n"), "wrong.json:2: the file ends within an array"),
        (r#"[{"text": "a""#.to_owned(), "wrong.json:1: the file ends within this object"),
        ("[1]".to_owned(), "it is a number; a .json file is one array of objects"),
        ("\"text\"".to_owned(), "it is a string; a .json file is one array of objects"),
        (format!("[{object}, {{\"text\" \"a\"}}]"), "a record is a JSON object like"),
        (format!("[{object}, {{\"txt\": \"a\"}}]"), "wrong.json:1: "),
    ] {
        let said = message(&file(&folder, "wrong.json", content.as_bytes()), &columns);
        assert!(said.contains(expected), "{content}: {said}");
    }
}

#[test]
fn json_is_data_where_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let names = |source: String| -> Vec<String> {
        let files = Corpus::from_sources(&[source]).files().unwrap();
        files.iter().map(|file| file.path.file_name().unwrap().display().to_string()).collect()
    };
    for name in ["a.jsonl", "b.json", "c.json.gz"] {
        file(&folder, name, b"");
    }
    let folder = folder.path().display();
    assert_eq!(names(format!("{folder}")), ["a.jsonl", "c.json.gz"]);
    assert_eq!(names(format!("{folder}/*")), ["a.jsonl", "c.json.gz"]);
    assert_eq!(names(format!("{folder}/*.json")), ["b.json"]);
    assert_eq!(names(format!("{folder}/b.json")), ["b.json"]);
}

#[test]
fn damaged_compressed_files_are_named_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let text = lines(50_000);
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for (name, bytes, kind) in
        [("a.jsonl.gz", gzip(text.as_bytes()), "a gzip file"), ("a.jsonl.zst", zstd, "a zstd file")]
    {
        let said = message(&file(&folder, name, &bytes[..bytes.len() / 2]), &Columns::default());
        let line = said.split_once(&format!("{name} is not {kind} that can be read, after line "));
        assert!(
            line.is_some_and(|(_, line)| line.starts_with(|digit| ('1'..='9').contains(&digit))),
            "{said}"
        );
        let said = message(&file(&folder, name, text.as_bytes()), &Columns::default());
        assert!(said.contains(&format!("{name} is not {kind} that can be read, after line 0: ")), "{said}");
    }
}

#[test]
fn the_parts_of_a_file_have_its_lines_once_and_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let text = lines(50);
    let path = file(&folder, "a.jsonl", text.as_bytes());
    let whole = read(&path, &Columns::default()).unwrap();
    let source = Corpus::from_sources(&[path.display().to_string()]).files().unwrap().remove(0);
    for size in [1, 7, 30, 31, 1000, 5000] {
        let mut parts = Vec::new();
        for start in (0..text.len() as u64).step_by(size) {
            let part = Some(start..start + size as u64);
            let read = records(&source, &part, &Columns::default(), &BytesRead::default()).unwrap();
            parts.extend(read.map(Result::unwrap));
        }
        assert_eq!(parts.len(), 50, "{size}");
        for (part, whole) in parts.iter().zip(&whole) {
            assert_eq!((&part.fields, part.place.to_string()), (&whole.fields, whole.place.to_string()));
        }
    }
}

/// Chats with a number, a class and bytes, as tables have them; some values are missing.
fn table() -> RecordBatch {
    let role: ArrayRef = Arc::new(StringArray::from(vec!["user", "assistant", "user"]));
    let content: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("é"), None]));
    let turn =
        |name, array: &ArrayRef| (Arc::new(Field::new(name, array.data_type().clone(), true)), array.clone());
    let turns = StructArray::from(vec![turn("role", &role), turn("content", &content)]);
    let item = Arc::new(Field::new("item", turns.data_type().clone(), true));
    let chats = ListArray::new(item, OffsetBuffer::from_lengths([2, 0, 1]), Arc::new(turns), None);
    let columns: [(&str, ArrayRef); 5] = [
        ("messages", Arc::new(chats)),
        ("score", Arc::new(Float32Array::from(vec![Some(0.5), None, Some(-1.0)]))),
        ("kind", Arc::new(["a", "b", "a"].into_iter().collect::<DictionaryArray<Int8Type>>())),
        ("text", Arc::new(BinaryArray::from(vec![b"one" as &[u8], "zwé".as_bytes(), b""]))),
        ("id", Arc::new(UInt64Array::from(vec![1, 2, u64::MAX]))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn stream(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

fn arrow_file(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

#[test]
fn tables_give_the_same_records_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let batches = [table(), table().slice(1, 2)];
    let mut parquet = ArrowWriter::try_new(Vec::new(), batches[0].schema(), None).unwrap();
    batches.iter().for_each(|batch| {
        parquet.write(batch).unwrap();
        parquet.flush().unwrap();
    });
    let columns = Columns::new(&["messages", "text"], &["score", "class", "absent"]);
    let columns = columns.renamed(&[("class".into(), "kind".into())].into()).unwrap();
    let expected = [
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "é"}],
            "text": "one", "score": 0.5, "class": "a"}),
        json!({"messages": [], "text": "zwé", "score": null, "class": "b"}),
        json!({"messages": [{"role": "user", "content": null}], "text": "", "score": -1.0, "class": "a"}),
    ];
    for (name, bytes) in [
        ("a.arrow", stream(&batches)),
        ("b.arrow", arrow_file(&batches)),
        ("c.parquet", parquet.into_inner().unwrap()),
    ] {
        let records = read(&file(&folder, name, &bytes), &columns).unwrap();
        let found: Vec<Value> = records.iter().map(|record| Value::Object(record.fields.clone())).collect();
        assert_eq!(found, [&expected[..], &expected[1..]].concat(), "{name}");
        assert!(records[4].place.to_string().ends_with(&format!("{name}, row 5")));
        let said = message(&folder.path().join(name), &Columns::new(&["label"], &[]));
        assert!(
            said.contains("there is no column `label`; there are: messages (List(")
                && said.contains("id (UInt64)")
        );
    }
    let bytes = BinaryArray::from(vec![b"\xff" as &[u8]]);
    let batch = RecordBatch::try_from_iter([("text", Arc::new(bytes) as ArrayRef)]).unwrap();
    let said = message(&file(&folder, "f.arrow", &stream(&[batch])), &Columns::default());
    assert!(said.contains("f.arrow, row 1: the column `text` is not UTF-8 text"), "{said}");
}

/// Whatever byte is wrong, reading ends with records or an error that names the file.
#[test]
fn damaged_arrow_files_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let columns = Columns::new(&[], &["messages", "text", "kind"]);
    let mut failed = 0;
    for whole in [stream(&[table()]), arrow_file(&[table()])] {
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
            if let Err(error) = read(&file(&folder, "a.arrow", &bytes), &columns) {
                assert!(error.is_usage() && error.to_string().contains("a.arrow"), "{error}");
                failed += 1;
            }
            if at % 40 == 0 {
                let said = read(&file(&folder, "a.arrow", &whole[..at]), &columns);
                assert!(said.is_err() || said.unwrap().len() <= 3);
            }
        }
    }
    assert!(failed > 100, "{failed}");
    let two = stream(&[table(), table()]);
    let said = message(&file(&folder, "cut.arrow", &two[..two.len() - 200]), &columns);
    assert!(said.contains("cut.arrow is not an Arrow file that can be read, after row 3: "), "{said}");
    // Between two batches, before the marker at the end, and within it.
    let first = stream(&[table()]).len() - 8;
    for (end, said) in [
        (first, "after row 3: Ipc error: its end is missing"),
        (two.len() - 8, "after row 6: Ipc error: its end is missing"),
        (two.len() - 4, "after row 6: "),
    ] {
        let found = message(&file(&folder, "cut.arrow", &two[..end]), &columns);
        assert!(found.contains(said), "{found}");
    }
    assert_eq!(read(&file(&folder, "whole.arrow", &two), &columns).unwrap().len(), 6);
}

#[test]
fn folders_of_saved_data_sets_have_their_files_and_no_caches() {
    let folder = tempfile::tempdir().unwrap();
    let batch = |text: &str| {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![text]));
        stream(&[RecordBatch::try_from_iter([("text", texts)]).unwrap()])
    };
    for (name, text) in [("data-00000-of-00002", "one"), ("data-00001-of-00002", "two"), ("cache-1f", "no")] {
        file(&folder, &format!("{name}.arrow"), &batch(text));
    }
    file(&folder, "dataset_info.json", b"{}");
    let state = r#"{"_data_files": [{"filename": "data-00001-of-00002.arrow"}, {"filename": "data-00000-of-00002.arrow"}],
        "_fingerprint": "1f", "_split": null}"#;
    file(&folder, "state.json", state.as_bytes());
    let texts = read(folder.path(), &Columns::default()).unwrap();
    assert_eq!(texts.iter().map(|record| &record.fields["text"]).collect::<Vec<_>>(), ["two", "one"]);
    let above = tempfile::tempdir().unwrap();
    fs::create_dir(above.path().join("train")).unwrap();
    file(&above, "dataset_dict.json", b"{\"splits\": [\"train\", \"test\"]}");
    let said = message(above.path(), &Columns::default());
    assert!(
        said.contains("the splits train, test of a dataset; give one of them") && said.ends_with("/train"),
        "{said}"
    );
}

/// As `datasets` writes a `ClassLabel`, and a list of them.
#[test]
fn names_of_classes_are_beside_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let described = |feature: &str| {
        format!(
            "{{\"info\": {{\"features\": {{\"stars\": {feature}, \"text\": {{\"dtype\": \"string\"}}}}}}}}"
        )
    };
    let label = r#"{"names": ["bad", "good"], "_type": "ClassLabel"}"#;
    let several = format!("{{\"feature\": {label}, \"_type\": \"Sequence\"}}");
    let number = r#"{"dtype": "int64", "_type": "Value"}"#;
    let columns = Columns::new(&["text", "label"], &[]);
    let columns = columns.renamed(&[("label".to_owned(), "stars".to_owned())].into()).unwrap();
    let write = |name: &str, feature: &str| {
        let batch = table();
        let schema = batch.schema().as_ref().clone();
        let metadata: Metadata = [("huggingface".to_owned(), described(feature))].into_iter().collect();
        let schema = schema.with_metadata(metadata);
        let batch = batch.with_schema(Arc::new(schema)).unwrap();
        let arrow = folder.path().join(name);
        fs::write(&arrow, stream(&[batch])).unwrap();
        arrow.to_string_lossy().into_owned()
    };
    let names = |files: &[String]| Corpus::from_sources(files).class_names(&columns, "label");
    let expected = |are_for_all| Some((vec!["bad".to_owned(), "good".to_owned()], are_for_all));
    for feature in [label, &several] {
        assert_eq!(names(&[write("a.arrow", feature)]).unwrap(), expected(true), "{feature}");
    }
    let named = write("a.arrow", label);
    let unnamed = write("b.arrow", number);
    assert_eq!(names(std::slice::from_ref(&unnamed)).unwrap(), None);
    assert_eq!(names(&[named.clone(), unnamed]).unwrap(), expected(false));
    let turned = write("c.arrow", r#"{"names": ["good", "bad"], "_type": "ClassLabel"}"#);
    let refused = names(&[named, turned]).unwrap_err().to_string();
    assert!(refused.contains("bad, good in one file and for good, bad in another"), "{refused}");
}
