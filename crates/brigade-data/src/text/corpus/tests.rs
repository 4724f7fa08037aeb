use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::Compression as ParquetCompression;
use ::parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

use super::files::text;
use super::*;
use crate::Error;

/// All documents of a corpus, as (prompt, text).
fn read(corpus: &Corpus) -> Result<Vec<(String, String)>> {
    let mut documents = Vec::new();
    for file in corpus.files()? {
        let mut document = (String::new(), String::new());
        for chunk in chunks(&file, &None, &Columns::default(), None, &BytesRead::default())? {
            let chunk = chunk?;
            let (prompt, text) = chunk.text.split_at(chunk.prompt);
            document.0.push_str(prompt);
            document.1.push_str(text);
            if chunk.ends_document {
                documents.push(std::mem::take(&mut document));
            }
        }
    }
    Ok(documents)
}

fn texts(sources: &[&Path]) -> Result<Vec<String>> {
    let sources: Vec<String> = sources.iter().map(|path| text(path)).collect();
    Ok(read(&Corpus::from_sources(&sources))?.into_iter().map(|(_, text)| text).collect())
}

fn message(sources: &[&Path]) -> String {
    texts(sources).unwrap_err().to_string()
}

#[test]
fn folders_are_read_sorted_and_globs_and_files_in_the_order_given() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("b/c")).unwrap();
    fs::create_dir_all(at(".git")).unwrap();
    for (name, content) in [
        ("z.md", "z"),
        ("a.txt", "a"),
        ("b/2.rs", "b2"),
        ("b/c/1.PY", "bc1"),
        ("b/picture.png", "no"),
        (".git/x.txt", "no"),
        (".hidden.txt", "no"),
    ] {
        fs::write(at(name), content).unwrap();
    }
    assert_eq!(texts(&[folder.path()]).unwrap(), ["a", "b2", "bc1", "z"]);
    assert_eq!(texts(&[&at("z.md"), &at("?.txt")]).unwrap(), ["z", "a"]);
    assert_eq!(texts(&[&at("b/*"), &at("a.txt"), folder.path()]).unwrap(), ["b2", "bc1", "a", "z"]);
    // A file whose name looks like a pattern is that file.
    fs::write(at("[x].txt"), "brackets").unwrap();
    assert_eq!(texts(&[&at("[x].txt")]).unwrap(), ["brackets"]);
}

#[test]
fn a_file_counts_once_whatever_links_lead_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/z.txt"), "z").unwrap();
    symlink(at("d"), at("d/loop")).unwrap();
    symlink("z.txt", at("d/a.txt")).unwrap();
    symlink("nowhere.txt", at("d/dead.txt")).unwrap();
    fs::hard_link(at("d/z.txt"), at("d/hard.txt")).unwrap();
    for sources in [&[at("d/**/*.txt")][..], &[at("d")], &[at("d/z.txt"), at("d/loop/z.txt"), at("d/**/*")]] {
        let sources: Vec<&Path> = sources.iter().map(|source| source.as_path()).collect();
        assert_eq!(texts(&sources).unwrap(), ["z"], "{sources:?}");
    }
    let files = Corpus::from_sources(&[text(&at("d/**/z.txt"))]).files().unwrap();
    assert_eq!(files[0].path, at("d/z.txt"));
    // Two of them make 2^40 paths.
    symlink(at("d"), at("d/again")).unwrap();
    let message = message(&[&at("d/**/*.txt")]);
    assert!(message.contains("links below it form a loop; name the folders instead"), "{message}");
}

#[test]
fn sources_that_lead_nowhere_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("picture.png"), "x").unwrap();
    assert!(message(&[&at("none.txt")]).ends_with("none.txt does not exist"));
    assert!(message(&[&at("*.txt")]).contains("matches no file"));
    assert!(message(&[folder.path()]).contains("matches no file"));
    assert!(message(&[&at("picture.png")]).contains("an unknown extension"));
    assert!(message(&[&at("***.txt")]).contains("not a valid glob"));
    assert!(matches!(texts(&[]), Err(Error::EmptyCorpus { .. })));
    assert!(message(&[Path::new("/dev/null")]).contains("neither a regular file nor a folder"));
}

#[test]
fn a_bad_byte_is_found_at_its_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    for (before, bad) in [("é", &[0xff, b'x'][..]), (&"word ".repeat(100_000), &[0xc3]), ("", &[0xe2, 0x82])]
    {
        fs::write(&path, [before.as_bytes(), bad].concat()).unwrap();
        match texts(&[&path]) {
            Err(Error::NotUtf8 { offset, .. }) => assert_eq!(offset, before.len() as u64),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn large_files_come_in_pieces_that_join_to_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    for content in ["é word\n".repeat(60_000), "é".repeat(200_000), "x".repeat(128 << 10), String::new()] {
        fs::write(&path, &content).unwrap();
        assert_eq!(texts(&[&path]).unwrap(), std::slice::from_ref(&content));
        let line = serde_json::json!({ "text": content, "prompt": content }).to_string();
        let jsonl = folder.path().join("a.jsonl");
        fs::write(&jsonl, line).unwrap();
        let documents = read(&Corpus::from_sources(&[text(&jsonl)])).unwrap();
        assert_eq!(documents, [(content.clone(), content)]);
    }
}

#[test]
fn jsonl_lines_are_documents_and_broken_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(
        &path,
        "\u{feff}{\"text\":\"one\",\"id\":3}\n\n  \n{\"prompt\":\"two\",\"text\":\"\\u00e9\"}\r\n",
    )
    .unwrap();
    let documents = read(&Corpus::from_sources(&[text(&path)])).unwrap();
    assert_eq!(documents, [(String::new(), "one".into()), ("two".into(), "é".into())]);
    for (line, part) in [
        ("{\"text\":", "EOF"),
        ("{\"body\":\"x\"}", "there is no column `text`; there are: body. data.columns"),
        ("{\"text\":3}", "a number, but must have text"),
        ("{\"prompt\":\"x\",\"text\":null}", "the text is null, but must be a string"),
    ] {
        fs::write(&path, format!("{{\"text\":\"fine\"}}\n\n{line}\n")).unwrap();
        let message = message(&[&path]);
        assert!(message.contains("a.jsonl:3: ") && message.contains(part), "{message}");
        assert!(!message.contains("at line 1"), "{message}");
    }
    let others = [
        ("[\"text\", \"prompt\"]", "an array"),
        ("\"text\"", "a string"),
        (" -3", "a number"),
        ("null", "null"),
    ];
    for (line, what) in others {
        fs::write(&path, format!("{{\"text\":\"fine\"}}\n{line}\n")).unwrap();
        let message = message(&[&path]);
        let said = format!("a.jsonl:2: it is {what}; a record is an object like {{\"text\": \"…\"}}");
        assert!(message.contains(&said), "{message}");
    }
    fs::write(&path, b"{\"text\":\"fine\"}\n{\"text\":\"\xff\"}\n").unwrap();
    assert!(matches!(texts(&[&path]), Err(Error::NotUtf8 { offset: 25, .. })));
}

fn write_parquet(path: &Path, schema: &str, compression: ParquetCompression, groups: &[&[Option<&str>]]) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(fs::File::create(path).unwrap(), schema, properties).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let mut ids = group.next_column().unwrap().unwrap();
        let numbers: Vec<i32> = (0..rows.len() as i32).collect();
        ids.typed::<Int32Type>().write_batch(&numbers, None, None).unwrap();
        ids.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
        let values: Vec<ByteArray> = rows.iter().flatten().map(|row| ByteArray::from(*row)).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn parquet_rows_are_documents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let many: Vec<String> = (0..200).map(|row| format!("row {row}")).collect();
    let rows: Vec<Option<&str>> = many.iter().map(|row| Some(row.as_str())).collect();
    let zstd = ParquetCompression::ZSTD(Default::default());
    for compression in [
        ParquetCompression::UNCOMPRESSED,
        ParquetCompression::SNAPPY,
        ParquetCompression::GZIP(Default::default()),
        ParquetCompression::LZ4,
        ParquetCompression::LZ4_RAW,
        zstd,
    ] {
        for kind in ["(UTF8)", ""] {
            let schema = format!("message m {{ REQUIRED INT32 id; OPTIONAL BYTE_ARRAY text {kind}; }}");
            write_parquet(&path, &schema, compression, &[&[Some("one"), Some("zwé")], &rows]);
            let mut expected = vec!["one".to_string(), "zwé".into()];
            expected.extend(many.iter().cloned());
            assert_eq!(texts(&[&path]).unwrap(), expected);
            write_parquet(&path, &schema, compression, &[&[Some("one")], &[Some("zwé"), None]]);
            let message = message(&[&path]);
            let said = "a.parquet, row 3: the text is null, but must be a string";
            assert!(message.ends_with(said), "{message}");
        }
    }
}

#[test]
fn parquet_files_that_are_no_use_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let schema = "message m { REQUIRED INT32 id; OPTIONAL BYTE_ARRAY body (UTF8); }";
    write_parquet(&path, schema, ParquetCompression::UNCOMPRESSED, &[&[Some("x")]]);
    let message_without = message(&[&path]);
    let said = "there is no column `text`; there are: id (Int32), body (Utf8). data.columns";
    assert!(message_without.contains(said), "{message_without}");
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 3);
    fs::write(&path, bytes).unwrap();
    assert!(message(&[&path]).contains("not a parquet file that can be read"));
}

/// Whatever byte is wrong, reading ends with documents or an error.
#[test]
fn damaged_parquet_files_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let schema = "message m { REQUIRED INT32 id; OPTIONAL BYTE_ARRAY text (UTF8); }";
    write_parquet(&path, schema, ParquetCompression::SNAPPY, &[&[Some("one"), Some("one two three"), None]]);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, bytes).unwrap();
            if let Err(error) = texts(&[&path]) {
                assert!(error.is_usage(), "{error}");
            }
        }
    }
}

#[test]
fn the_workspace_has_locked_dependencies_and_a_stable_choice_of_them() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let corpus = Corpus::locked_dependencies(&workspace, 300_000);
    let files = corpus.files().unwrap();
    assert!(files.len() > 3, "{} files", files.len());
    let bytes: u64 = files.iter().map(|file| fs::metadata(&file.path).unwrap().len()).sum();
    assert!(bytes <= 300_000);
    assert_eq!(corpus.files().unwrap(), files);
    let more = Corpus::locked_dependencies(&workspace, 600_000).files().unwrap();
    assert_eq!(&more[..files.len()], files);
}

#[test]
fn a_folder_without_a_workspace_has_no_dependencies() {
    let folder = tempfile::tempdir().unwrap();
    let error = Corpus::locked_dependencies(folder.path(), 1000).files().unwrap_err();
    assert!(error.to_string().contains("there is no Cargo.toml"), "{error}");
}

#[test]
fn packages_are_found_through_the_lock_file_where_cargo_gives_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    // Cargo refuses this manifest, as it refuses one whose packages were not all downloaded.
    fs::write(folder.path().join("Cargo.toml"), "[package]\nname = \"broken\"\n").unwrap();
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    fs::copy(lock, folder.path().join("Cargo.lock")).unwrap();
    let files = Corpus::locked_dependencies(folder.path(), 200_000).files().unwrap();
    assert!(!files.is_empty());
}

#[test]
fn many_sources_are_described_by_two_of_them() {
    let named = |count: usize| {
        let sources: Vec<String> = (0..count).map(|number| format!("{number}.rs")).collect();
        Corpus::from_sources(&sources).describe()
    };
    assert_eq!(named(4), "0.rs, 1.rs, 2.rs, 3.rs");
    assert_eq!(named(168), "0.rs, …, 167.rs (168 sources)");
}

/// Quoted, so that the shell leaves it alone: the shell makes sources of its matches.
#[test]
fn a_pattern_is_described_as_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    (0..20).for_each(|number| fs::write(at(&format!("{number}.txt")), "x").unwrap());
    let corpus = Corpus::from_sources(&[text(&at("*.txt"))]);
    assert_eq!((corpus.files().unwrap().len(), corpus.describe()), (20, text(&at("*.txt"))));
}
