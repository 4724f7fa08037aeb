//! One cache, several processes: one builds, a killed one leaves nothing that counts.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use brigade_data::{Corpus, NoProgress, PrepareOptions, PreparedData, prepare};

const FOLDER: &str = "BRIGADE_DATA_TEST_FOLDER";

fn run(folder: &Path) -> PreparedData {
    let corpus = Corpus::from_sources(&[folder.join("data.jsonl").display().to_string()]);
    let settings = PrepareOptions {
        tokenizer: "bpe:400".parse().unwrap(),
        lock_timeout: Duration::from_secs(60),
        ..PrepareOptions::new(corpus, folder.join("cache"))
    };
    prepare(&settings, &NoProgress).unwrap()
}

/// What the other tests start as processes; by itself it does nothing.
#[test]
fn child() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let built = !run(Path::new(&folder)).summary.from_cache;
        println!("\nbuilt: {built}");
    }
}

fn start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn write_corpus(folder: &Path, documents: usize) {
    let line =
        |index: usize| format!("{{\"text\":\"document {index} {}\"}}\n", "says a word or two ".repeat(50));
    fs::write(folder.join("data.jsonl"), (0..documents).map(line).collect::<String>()).unwrap();
}

fn names(folder: &Path, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(ending)).collect()
}

#[test]
fn of_several_processes_one_builds() {
    let folder = tempfile::tempdir().unwrap();
    write_corpus(folder.path(), 3000);
    let children: Vec<Child> = (0..3).map(|_| start(folder.path())).collect();
    let outputs: Vec<String> = children
        .into_iter()
        .map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
        .collect();
    let say = |what: &str| outputs.iter().filter(|output| output.contains(what)).count();
    assert_eq!((say("built: true"), say("built: false")), (1, 2), "{outputs:?}");
    assert!(run(folder.path()).summary.from_cache);
}

#[test]
fn a_process_killed_while_it_builds_leaves_nothing_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    write_corpus(folder.path(), 10_000);
    let cache = folder.path().join("cache");
    let mut child = start(folder.path());
    let deadline = Instant::now() + Duration::from_secs(30);
    while names(&cache, ".pieces").is_empty() && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the child does not begin to build");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let prepared = run(folder.path());
    let counts = prepared.summary.counts;
    assert_eq!(counts.train_documents + counts.validation_documents, 10_000);
    assert!(names(&cache, ".building").is_empty() && names(&cache, ".pieces").is_empty());
}
