//! Text that is streamed from a server: the tokens of the same text in files, whatever the server does.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use brigade_data::{Corpus, Error, NoProgress, PrepareOptions, PreparedData, Result, prepare};
use brigade_testing::{Fault, ObjectServer};

/// Longer than any test waits for a server that answers again.
const PATIENT: Duration = Duration::from_secs(60);

fn prepared(sources: &[String], cache: &Path, timeout: Duration) -> Result<PreparedData> {
    let corpus = Corpus::from_sources(sources).timeout(timeout);
    prepare(
        &PrepareOptions { tokenizer: "bytes".parse()?, ..PrepareOptions::new(corpus, cache) },
        &NoProgress,
    )
}

/// The files with tokens, byte for byte.
fn tokens(prepared: &PreparedData) -> Vec<Vec<u8>> {
    let folder = &prepared.sources[0].cache_entry;
    let names = ["train.bin", "train.idx", "validation.bin", "validation.idx"];
    names.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect()
}

fn lines(documents: usize) -> String {
    let line = |index: usize| format!("{{\"text\":\"document {index} {}\"}}\n", "says é ".repeat(index % 90));
    (0..documents).map(line).collect()
}

fn table(documents: usize) -> RecordBatch {
    let text = (0..documents).map(|index| format!("row {index} {}", "has a word ".repeat(index % 70)));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(text));
    RecordBatch::try_from_iter([("text", text)]).unwrap()
}

/// The same text in each kind of file, under each file's name.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let jsonl = lines(9000).into_bytes();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&jsonl).unwrap();
    let batch = table(9000);
    let mut parquet = Vec::new();
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_max_row_group_row_count(Some(2000))
        .build();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut arrow = Vec::new();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut arrow, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    vec![
        ("a.txt", lines(20_000).into_bytes()),
        ("b.jsonl.zst", zstd::encode_all(jsonl.as_slice(), 1).unwrap()),
        ("c.jsonl.gz", gzip.finish().unwrap()),
        ("d.jsonl", jsonl),
        ("e.parquet", parquet),
        ("f.arrow", arrow),
    ]
}

#[test]
fn streamed_text_has_the_tokens_of_the_same_files_whatever_the_server_does() {
    let folder = tempfile::tempdir().unwrap();
    let server = ObjectServer::start().unwrap();
    for (name, content) in files() {
        fs::write(folder.path().join(name), &content).unwrap();
        server.put(name, content);
    }
    for (name, _) in files() {
        let file = folder.path().join(name).display().to_string();
        let local = tokens(&prepared(&[file], &folder.path().join("cache"), PATIENT).unwrap());
        for fault in [Fault::None, Fault::Status(503), Fault::Cut(70_000)] {
            server.plan(move |request| if request.number % 2 == 0 { Fault::None } else { fault });
            let cache = tempfile::tempdir().unwrap();
            let streamed = prepared(&[server.url(name)], cache.path(), PATIENT);
            let streamed = streamed.unwrap_or_else(|error| panic!("{name}, {fault:?}: {error}"));
            assert!(tokens(&streamed) == local, "{name}, {fault:?}");
        }
    }
    // Some on a disk and some on a server are one corpus.
    server.plan(|_| Fault::None);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (cache, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let local = prepared(&[file("a.txt"), file("d.jsonl")], cache.path(), PATIENT).unwrap();
    let mixed = prepared(&[file("a.txt"), server.url("d.jsonl")], other.path(), PATIENT).unwrap();
    assert!(tokens(&mixed) == tokens(&local));
}

#[test]
fn an_unchanged_object_is_not_read_again_and_a_changed_one_is() {
    let (server, cache) = (ObjectServer::start().unwrap(), tempfile::tempdir().unwrap());
    server.put("d.jsonl", lines(500));
    let read = || prepared(&[server.url("d.jsonl")], cache.path(), PATIENT).unwrap();
    let first = read();
    let sent = server.sent();
    let again = read();
    assert!(again.summary.from_cache && server.sent() == sent && again.summary.key == first.summary.key);
    server.put("d.jsonl", lines(501));
    let changed = read();
    assert!(!changed.summary.from_cache && changed.summary.key != first.summary.key);
    let counts = changed.summary.counts;
    assert_eq!(counts.train_documents + counts.validation_documents, 501);
}

#[test]
fn a_server_that_stays_faulty_or_has_another_file_is_one_message() {
    let (server, cache) = (ObjectServer::start().unwrap(), tempfile::tempdir().unwrap());
    for (name, content) in files() {
        server.put(name, content);
    }
    let failed =
        |name: &str| prepared(&[server.url(name)], cache.path(), Duration::from_secs(2)).unwrap_err();
    for (name, _) in files() {
        server.plan(|request| if request.method == "HEAD" { Fault::None } else { Fault::Status(503) });
        let begin = Instant::now();
        let error = failed(name);
        assert!(matches!(error, Error::Store { .. }), "{name}: {error}");
        let text = error.to_string();
        assert!(
            text.contains(&server.url(name)) && text.contains("503") && text.contains("data.timeout_seconds"),
            "{text}"
        );
        assert!(begin.elapsed() < Duration::from_secs(20), "{name} took {:?}", begin.elapsed());
    }
    server.plan(|_| Fault::None);
    assert!(matches!(failed("none.txt"), Error::NotFound { .. }));
    server.put("a.docx", "text");
    assert!(matches!(failed("a.docx"), Error::UnknownExtension { .. }));
    server.put("bad.parquet", vec![b'x'; 10_000]);
    assert!(matches!(failed("bad.parquet"), Error::Damaged { .. }), "{}", failed("bad.parquet"));
    assert!(matches!(failed("*.txt"), Error::Glob { .. }));
    for secret in ["https://me:hunter2@host/a.txt", "https://host/a.txt?signature=hunter2"] {
        let error = prepared(&[secret.to_owned()], cache.path(), PATIENT).unwrap_err();
        assert!(
            matches!(error, Error::InvalidUrl { .. }) && !error.to_string().contains("hunter2"),
            "{error}"
        );
    }
}

const SOURCE: &str = "BRIGADE_DATA_TEST_SOURCE";
const CACHE: &str = "BRIGADE_DATA_TEST_CACHE";

/// What the next test starts as a process; by itself it does nothing.
#[test]
fn child() {
    if let (Ok(source), Some(cache)) = (std::env::var(SOURCE), std::env::var_os(CACHE)) {
        prepared(&[source], Path::new(&cache), PATIENT).unwrap();
    }
}

fn start(source: &str, cache: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact"])
        .env(SOURCE, source)
        .env(CACHE, cache)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Where a request begins to read.
fn start_of_range(request: &str) -> Option<u64> {
    request.split_once("bytes=")?.1.split_once('-')?.0.parse().ok()
}

#[test]
fn a_killed_stream_goes_on_from_its_finished_pieces() {
    const PIECE: u64 = 32 << 20;
    let (server, cache) = (ObjectServer::start().unwrap(), tempfile::tempdir().unwrap());
    let line = format!("{{\"text\":\"{}\"}}\n", "a line of some length ".repeat(3000));
    server.put("d.jsonl", line.repeat(40 << 20 >> 16).into_bytes());
    // The second piece does not come.
    server.plan(|request| {
        let start = request.header("range").and_then(start_of_range);
        if start.is_some_and(|start| start > PIECE + (2 << 20)) { Fault::Silent(0) } else { Fault::None }
    });
    let mut running = start(&server.url("d.jsonl"), cache.path());
    let deadline = Instant::now() + Duration::from_secs(120);
    let has_piece = || {
        let entries = fs::read_dir(cache.path()).into_iter().flatten().flatten();
        let mut pieces =
            entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "pieces"));
        pieces.any(|pieces| pieces.path().join("0").is_dir())
    };
    while !has_piece() {
        assert!(
            Instant::now() < deadline && running.try_wait().unwrap().is_none(),
            "there is no first piece"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    server.plan(|_| Fault::None);
    let before = server.log().len();
    let prepared = prepared(&[server.url("d.jsonl")], cache.path(), PATIENT).unwrap();
    let again: Vec<u64> =
        server.log()[before..].iter().filter_map(|request| start_of_range(request)).collect();
    assert!(!again.is_empty() && again.iter().all(|start| *start >= PIECE - (1 << 20)), "{again:?}");
    let counts = prepared.summary.counts;
    assert_eq!(counts.train_documents + counts.validation_documents, 40 << 20 >> 16);
}
