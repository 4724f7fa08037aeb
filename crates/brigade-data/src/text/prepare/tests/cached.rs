//! What comes from the cache, and what is built again.

use std::time::Duration;

use super::super::cache::FileLock;
use super::*;

#[test]
fn the_result_does_not_depend_on_threads_and_the_second_time_comes_from_the_cache() {
    let bench = Bench::new(500);
    let first = prepare(&PrepareOptions { threads: 1, ..bench.settings("bpe:400") }, &NoProgress).unwrap();
    assert!(!first.summary.from_cache);
    let second = bench.run("bpe:400");
    assert!(second.summary.from_cache);
    assert_eq!(second.summary.counts, first.summary.counts);
    let read = |name| fs::read(only(&first).cache_entry.join(name)).unwrap();
    let before = ["train.bin", "train.idx", "validation.bin", "validation.idx"].map(read);
    fs::remove_dir_all(bench.cache()).unwrap();
    prepare(&PrepareOptions { threads: 20, ..bench.settings("bpe:400") }, &NoProgress).unwrap();
    assert_eq!(["train.bin", "train.idx", "validation.bin", "validation.idx"].map(read), before);
}

#[test]
fn the_key_follows_the_content_and_the_settings_and_not_the_path() {
    let bench = Bench::new(50);
    let first = bench.run("bytes").summary.key;
    let moved = bench.folder.path().join("moved.jsonl");
    fs::copy(bench.data(), &moved).unwrap();
    let corpus = Corpus::from_sources(&[moved.display().to_string()]);
    let sources = vec![DataSource::new(corpus)];
    let same = prepare(&PrepareOptions { sources, ..bench.settings("bytes") }, &NoProgress).unwrap();
    assert!(same.summary.from_cache && same.summary.key == first);
    // The same size, another content, a moment later.
    let content = fs::read_to_string(bench.data()).unwrap().replace("document 7 ", "document 8 ");
    fs::write(bench.data(), content).unwrap();
    assert!(!bench.run("bytes").summary.from_cache);
    let other_seed =
        prepare(&PrepareOptions { split_seed: 1, ..bench.settings("bytes") }, &NoProgress).unwrap();
    assert!(!other_seed.summary.from_cache);
    let longer = prepare(
        &PrepareOptions { rows: RowOptions::new(32, SequenceLayout::Auto), ..bench.settings("bytes") },
        &NoProgress,
    )
    .unwrap();
    assert!(longer.summary.from_cache);
}

#[test]
fn damaged_entries_are_built_again() {
    let bench = Bench::new(50);
    let entry = only(&bench.run("bpe:300")).cache_entry.clone();
    let tokenizer = bench.entries().into_iter().find(|name| !entry.ends_with(name)).unwrap();
    let files = ["train.bin", "train.idx", "validation.bin", "validation.idx", "counts.json"];
    let of_tokenizer =
        ["tokenizer.json", "counts.json"].map(|name| bench.cache().join(&tokenizer).join(name));
    for path in files.map(|name| entry.join(name)).into_iter().chain(of_tokenizer) {
        let name = path.display().to_string();
        let whole = fs::read(&path).unwrap();
        for damage in 0..3 {
            match damage {
                0 => fs::write(&path, &whole[..whole.len() / 2]).unwrap(),
                1 => fs::write(&path, vec![0; whole.len()]).unwrap(),
                _ => fs::remove_file(&path).unwrap(),
            }
            assert_eq!(
                bench.run("bpe:300").summary.from_cache,
                path.starts_with(bench.cache().join(&tokenizer))
            );
            assert_eq!(fs::read(&path).unwrap(), whole, "{name} {damage}");
        }
    }
    assert_eq!(bench.entries().len(), 2);
}

#[test]
fn an_interrupted_build_is_cleaned_up_by_the_next() {
    let bench = Bench::new(20);
    let key = only(&bench.run("bytes")).cache_entry.clone();
    let building = key.with_extension("building");
    fs::rename(&key, &building).unwrap();
    fs::create_dir(bench.cache().join("other.building")).unwrap();
    assert!(!bench.run("bytes").summary.from_cache);
    assert_eq!(bench.entries(), [key.file_name().unwrap().to_str().unwrap()]);
}

#[test]
fn a_build_that_fails_leaves_no_entry() {
    let bench = Bench::new(3);
    fs::write(bench.data(), "{\"text\":\"fine\"}\n{broken\n").unwrap();
    for tokenizer in ["bytes", "bpe:300"] {
        let error = prepare(&bench.settings(tokenizer), &NoProgress).unwrap_err();
        assert!(error.to_string().contains("data.jsonl:2"), "{error}");
        assert!(error.is_usage());
    }
    let entries = bench.entries();
    assert!(entries.iter().all(|name| name.ends_with(".pieces")), "{entries:?}");
}

#[test]
fn of_several_at_once_one_builds_and_the_others_use_its_result() {
    let bench = Bench::new(2000);
    let phases = Phases::default();
    let built: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| !prepare(&bench.settings("bpe:400"), &phases).unwrap().summary.from_cache)
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(built.iter().filter(|&&built| built).count(), 1);
    let phases = phases.0.into_inner().unwrap();
    assert_eq!(phases.iter().filter(|(what, ..)| what == "training the tokenizer").count(), 1);
    assert_eq!(bench.entries().len(), 2);
}

#[test]
fn waiting_for_another_builder_ends_at_the_deadline() {
    let bench = Bench::new(5);
    let entry = only(&bench.run("bytes")).cache_entry.clone();
    fs::remove_dir_all(&entry).unwrap();
    let lock = FileLock::try_acquire(&entry.with_extension("lock")).unwrap().unwrap();
    let settings = PrepareOptions { lock_timeout: Duration::from_millis(50), ..bench.settings("bytes") };
    let error = prepare(&settings, &NoProgress).unwrap_err();
    assert!(matches!(error, Error::LockTimeout { .. }), "{error}");
    drop(lock);
    assert!(!bench.run("bytes").summary.from_cache);
}

#[test]
fn a_list_is_found_once_for_the_same_content() {
    let bench = Bench::new(3);
    let asked = std::cell::Cell::new(0);
    let found = |what: &str| {
        cached_list(&bench.settings("bytes"), what, &NoProgress, |works| {
            works();
            asked.set(asked.get() + 1);
            Ok::<_, Error>(vec![format!("{what} {}", asked.get())])
        })
        .unwrap()
    };
    assert_eq!(
        (found("labels"), found("labels")),
        (vec!["labels 1".to_owned()], vec!["labels 1".to_owned()])
    );
    assert_eq!(found("others"), ["others 2"]);
    let entries = bench.entries();
    assert_eq!(entries.len(), 2);
    for name in entries {
        let list = bench.cache().join(name).join("list.json");
        fs::write(&list, fs::read_to_string(&list).unwrap().replace("labels", "lapels")).unwrap();
    }
    assert_eq!(found("labels"), ["labels 3"], "a damaged list is found again");
    fs::write(bench.data(), "{\"text\":\"other\"}\n").unwrap();
    assert_eq!(found("labels"), ["labels 4"]);
    let refused = cached_list(&bench.settings("bytes"), "none", &NoProgress, |_| {
        Err(Error::EmptyCorpus { corpus: String::new(), files: 0 })
    });
    assert!(refused.is_err());
    assert_eq!(bench.entries().len(), 3);
}
