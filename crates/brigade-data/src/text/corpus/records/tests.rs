use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

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
