mod cached;
mod examples;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use tempfile::TempDir;

use super::*;
use crate::{Columns, Corpus, NoProgress, RowOptions, SequenceLayout, TokenSequences};

/// A corpus of `documents` JSONL lines in a folder of its own, and a cache beside it.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new(documents: usize) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        let lines =
            (0..documents).map(|index| format!("{{\"text\":\"document {index} says {}\"}}\n", index * 31));
        fs::write(bench.data(), lines.collect::<String>()).unwrap();
        bench
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data.jsonl")
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn settings(&self, tokenizer: &str) -> PrepareOptions {
        let corpus = Corpus::from_sources(&[self.data().display().to_string()]);
        PrepareOptions {
            tokenizer: tokenizer.parse().unwrap(),
            rows: RowOptions::new(16, SequenceLayout::Auto),
            ..PrepareOptions::new(corpus, self.cache())
        }
    }

    fn run(&self, tokenizer: &str) -> PreparedData {
        prepare(&self.settings(tokenizer), &NoProgress).unwrap()
    }

    /// What lies in the cache, apart from locks and memos.
    fn entries(&self) -> Vec<String> {
        let names = fs::read_dir(self.cache())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".lock") && !name.ends_with(".memo")).collect()
    }
}

/// The only source of a preparation.
fn only(prepared: &PreparedData) -> &PreparedSource {
    assert_eq!(prepared.sources.len(), 1);
    &prepared.sources[0]
}

/// The texts of a split's documents.
fn documents(prepared: &PreparedData, split: &TokenSequences) -> Vec<String> {
    let file = split.tokens();
    let read = |index| {
        let range = file.document(index);
        let mut ids = vec![0; range.len()];
        file.read(range, &mut ids).unwrap();
        assert_eq!(ids.pop(), Some(prepared.tokenizer.end_of_text()));
        prepared.tokenizer.decode(&ids).unwrap()
    };
    (0..file.document_count()).map(read).collect()
}

#[test]
fn every_document_is_in_exactly_one_split_in_order() {
    let bench = Bench::new(200);
    for tokenizer in ["bytes", "bpe:300"] {
        let prepared =
            prepare(&PrepareOptions { validation_fraction: 0.2, ..bench.settings(tokenizer) }, &NoProgress)
                .unwrap();
        let (train, validation) =
            (documents(&prepared, &only(&prepared).train), documents(&prepared, &only(&prepared).validation));
        let all: Vec<String> =
            (0..200).map(|index| format!("document {index} says {}", index * 31)).collect();
        assert_eq!(train, all.iter().filter(|text| !validation.contains(text)).cloned().collect::<Vec<_>>());
        assert_eq!(train.len() + validation.len(), 200);
        assert_eq!(validation.len(), 40);
        // From all over the corpus.
        assert!((0..4).all(|quarter| validation.iter().any(|text| all[quarter * 50..][..50].contains(text))));
        let counts = &prepared.summary.counts;
        assert_eq!((counts.train_documents, counts.validation_documents), (train.len(), validation.len()));
        assert_eq!(counts.text_bytes, all.iter().map(|text| text.len() as u64).sum::<u64>());
        assert_eq!(counts.train_tokens, only(&prepared).train.token_count() as u64);
        assert_eq!(prepared.summary.train_sequences, only(&prepared).train.len());
    }
}

/// Counts the phases that tokenize.
#[derive(Default)]
struct Phases(Mutex<Vec<(String, u64, u64)>>);

impl Progress for Phases {
    fn start(&self, total: u64, what: &str) {
        self.0.lock().unwrap().push((what.into(), total, 0));
    }
    fn advance(&self, bytes: u64) {
        self.0.lock().unwrap().last_mut().unwrap().2 += bytes;
    }
    fn finish(&self) {}
}

#[test]
fn progress_comes_to_the_total() {
    let bench = Bench::new(100);
    let phases = Phases::default();
    prepare(&bench.settings("bytes"), &phases).unwrap();
    let size = fs::metadata(bench.data()).unwrap().len();
    let phases = phases.0.into_inner().unwrap();
    assert_eq!(phases, [("reading".into(), size, size), ("tokenizing".into(), size, size)]);
}

#[test]
fn two_documents_give_one_to_each_split() {
    let bench = Bench::new(2);
    let prepared =
        prepare(&PrepareOptions { validation_fraction: 1e-9, ..bench.settings("bytes") }, &NoProgress)
            .unwrap();
    let split = |prepared: &PreparedData| {
        let source = only(prepared);
        (documents(prepared, &source.train), documents(prepared, &source.validation))
    };
    let (train, validation) = split(&prepared);
    assert_eq!((train.len(), validation.len()), (1, 1));
    let most =
        prepare(&PrepareOptions { validation_fraction: 0.999, ..bench.settings("bytes") }, &NoProgress)
            .unwrap();
    assert_eq!(split(&most), (train, validation));
    let none = prepare(&PrepareOptions { validation_fraction: 0.0, ..bench.settings("bytes") }, &NoProgress)
        .unwrap();
    assert_eq!((split(&none).0.len(), split(&none).1.len()), (2, 0));
}

#[test]
fn the_end_of_a_single_document_validates() {
    let bench = Bench::new(0);
    fs::write(bench.data(), "{\"text\":\"0123456789\"}").unwrap();
    let prepared =
        prepare(&PrepareOptions { validation_fraction: 0.3, ..bench.settings("bytes") }, &NoProgress)
            .unwrap();
    assert_eq!(documents(&prepared, &only(&prepared).train), ["0123456"]);
    assert_eq!(documents(&prepared, &only(&prepared).validation), ["789"]);
    assert!(
        prepared.summary.counts.notes[0].contains("a single document"),
        "{:?}",
        prepared.summary.counts.notes
    );
    fs::write(bench.data(), "{\"text\":\"0\"}").unwrap();
    let short = bench.run("bytes");
    assert!(only(&short).validation.is_empty() && only(&short).train.len() == 1);
    assert!(short.summary.counts.notes[0].contains("too short"));
}

#[test]
fn a_corpus_without_text_is_an_error() {
    let bench = Bench::new(0);
    for content in ["", "\n\n", "{\"text\":\"\"}\n"] {
        fs::write(bench.data(), content).unwrap();
        for tokenizer in ["bytes", "bpe:300"] {
            let error = prepare(&bench.settings(tokenizer), &NoProgress).unwrap_err();
            assert!(matches!(error, Error::EmptyCorpus { .. }), "{content:?} {tokenizer}: {error}");
        }
    }
}

#[test]
fn a_tokenizer_file_is_used_as_it_is() {
    let bench = Bench::new(30);
    let made = bench.run("bpe:300");
    let path = bench.folder.path().join("tokenizer.json");
    made.tokenizer.save(&path).unwrap();
    let read = bench.run(path.to_str().unwrap());
    assert!(read.summary.from_cache, "the same tokenizer gives the same tokens");
    assert_eq!(read.tokenizer.json(), made.tokenizer.json());
    assert_eq!(documents(&read, &only(&read).train), documents(&made, &only(&made).train));
    fs::write(&path, "{}").unwrap();
    assert!(matches!(
        prepare(&bench.settings(path.to_str().unwrap()), &NoProgress),
        Err(Error::Tokenizer { .. })
    ));
}

#[test]
fn wrong_settings_are_refused() {
    let bench = Bench::new(3);
    for fraction in [-0.1, 1.0, f64::NAN] {
        let settings = PrepareOptions { validation_fraction: fraction, ..bench.settings("bytes") };
        let error = prepare(&settings, &NoProgress).unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { option: "validation_fraction", .. }), "{error}");
    }
    let settings =
        PrepareOptions { rows: RowOptions::new(0, SequenceLayout::Auto), ..bench.settings("bytes") };
    assert!(prepare(&settings, &NoProgress).unwrap_err().to_string().starts_with("sequence_length = 0"));
}

#[test]
fn sources_have_tokens_of_their_own_and_one_tokenizer() {
    let (bench, other) = (Bench::new(40), Bench::new(0));
    fs::write(other.data(), "{\"body\":\"one\"}\n{\"body\":\"two\"}\n").unwrap();
    let held = other.folder.path().join("held.jsonl");
    fs::write(&held, "{\"body\":\"three\"}\n").unwrap();
    let corpus = |path: PathBuf| Corpus::from_sources(&[path.display().to_string()]);
    let columns = Columns::default().renamed(&[("text".into(), "body".into())].into()).unwrap();
    let second = DataSource { columns, weight: 2.0, ..DataSource::new(corpus(other.data())) };
    let mut settings = bench.settings("bpe:300");
    settings.sources.push(DataSource { validation: Some(corpus(held)), ..second });
    let prepared = prepare(&settings, &NoProgress).unwrap();
    let [first, second] = &prepared.sources[..] else { panic!("two sources") };
    assert_eq!((first.counts.train_documents, first.counts.validation_documents), (38, 2));
    assert_eq!(documents(&prepared, &second.train), ["one", "two"]);
    assert_eq!(documents(&prepared, &second.validation), ["three"]);
    assert_eq!((second.weight, second.files), (2.0, 2));
    let counts = &prepared.summary.counts;
    assert_eq!((counts.train_documents, counts.validation_documents), (40, 3));
    assert!(prepare(&settings, &NoProgress).unwrap().summary.from_cache);
    let key = prepared.summary.key;
    settings.sources[1].weight = 3.0;
    let heavier = prepare(&settings, &NoProgress).unwrap().summary;
    assert!(heavier.from_cache && heavier.key != key, "the same tokens, mixed otherwise");
    for weight in [0.0, -1.0, f64::NAN] {
        settings.sources[1].weight = weight;
        let error = prepare(&settings, &NoProgress).unwrap_err().to_string();
        assert!(error.starts_with(&format!("data.source.weight = {weight} is not allowed")), "{error}");
    }
    settings.sources[1].weight = 1.0;
    fs::write(other.data(), "\n").unwrap();
    let error = prepare(&settings, &NoProgress).unwrap_err();
    assert!(
        matches!(error, Error::EmptyCorpus { .. }) && error.to_string().contains("data.jsonl"),
        "{error}"
    );
}

#[test]
fn what_is_validated_on_is_not_trained_on() {
    let bench = Bench::new(3);
    let folder = bench.folder.path().join("texts");
    fs::create_dir(&folder).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(folder.join(format!("{name}.txt")), format!("text of {name}")).unwrap();
    }
    // A copy of one, and one itself.
    fs::copy(folder.join("b.txt"), bench.folder.path().join("held.txt")).unwrap();
    let corpus = |paths: &[PathBuf]| {
        Corpus::from_sources(&paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>())
    };
    let held = [bench.folder.path().join("held.txt"), folder.join("c.txt")];
    let mut settings = bench.settings("bytes");
    settings.sources.push(DataSource {
        validation: Some(corpus(&held)),
        ..DataSource::new(corpus(std::slice::from_ref(&folder)))
    });
    let prepared = prepare(&settings, &NoProgress).unwrap();
    let second = &prepared.sources[1];
    assert_eq!(documents(&prepared, &second.train), ["text of a"]);
    assert_eq!(documents(&prepared, &second.validation), ["text of b", "text of c"]);
    let said =
        ["left out of training, as data.validation has the same: 2 files (", "texts/b.txt, ", "texts/c.txt)"];
    let notes = &prepared.summary.counts.notes;
    assert!(said.iter().all(|said| notes[0].contains(said)), "{notes:?}");
    settings.sources[1].validation = Some(corpus(&[folder]));
    let error = prepare(&settings, &NoProgress).unwrap_err();
    let said = "are among those to validate on, so there are none to train on";
    assert!(error.is_usage() && error.to_string().contains(said), "{error}");
}
