use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use super::cache::FileLock;
use super::*;
use crate::{
    Columns, Corpus, Example, Label, LongExamples, NoProgress, Record, RecordEncoder, RecordLocation,
    RowOptions, SequenceLayout, TokenSequences,
};

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
        file.read(range, &mut ids);
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
fn prompts_are_masked() {
    let bench = Bench::new(0);
    fs::write(bench.data(), "{\"prompt\":\"ab\",\"text\":\"cd\"}\n{\"text\":\"e\"}\n").unwrap();
    let settings = PrepareOptions {
        rows: RowOptions::new(16, SequenceLayout::Documents),
        validation_fraction: 0.0,
        ..bench.settings("bytes")
    };
    let prepared = prepare(&settings, &NoProgress).unwrap();
    let sequence = only(&prepared).train.get(0);
    assert_eq!(sequence.targets[..4], [b'b'.into(), b'c'.into(), b'd'.into(), 256]);
    assert_eq!(sequence.valid[..5], [false, true, true, true, false]);
    assert_eq!(prepared.summary.counts.masked_tokens, 2);
}

#[test]
fn a_prompt_and_its_text_have_the_tokens_of_both_together() {
    let bench = Bench::new(0);
    let vocabulary = serde_json::json!({"</s>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "ab": 5});
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{
            "id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        }],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
            "merges": ["▁ a", "a b"],
        },
    });
    let tokenizer = bench.folder.path().join("tokenizer.json");
    fs::write(&tokenizer, json.to_string()).unwrap();
    // The last two are a prompt that ends within a token, and one of more than a chunk.
    let long = "a ".repeat(80_000);
    for (prompt, text, expected, masked) in [
        ("a", "b", vec![4, 3, 0], 1),
        ("a ", "b", vec![4, 1, 3, 0], 2),
        ("b", " a", vec![1, 3, 4, 0], 2),
        ("a ", "a", vec![4, 4, 0], 1),
        (&long, "b", [vec![4; 80_000], vec![1, 3, 0]].concat(), 80_001),
    ] {
        fs::write(bench.data(), serde_json::json!({"prompt": prompt, "text": text}).to_string()).unwrap();
        let settings = PrepareOptions {
            rows: RowOptions::new(1 << 18, SequenceLayout::Documents),
            validation_fraction: 0.0,
            ..bench.settings(&tokenizer.display().to_string())
        };
        let prepared = prepare(&settings, &NoProgress).unwrap();
        let file = only(&prepared).train.tokens();
        let mut ids = vec![0; file.document(0).len()];
        file.read(file.document(0), &mut ids);
        assert!(ids == expected, "{prompt:.9} {text}: {:?}", &ids[..ids.len().min(9)]);
        assert_eq!(prepared.summary.counts.masked_tokens, masked, "{prompt:.9} {text}");
    }
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
fn documents_begin_and_end_as_the_tokenizer_says() {
    let bench = Bench::new(3);
    let mut json: serde_json::Value = serde_json::from_str(Tokenizer::bytes().unwrap().json()).unwrap();
    let name = |id: u32| if id == 257 { "<s>" } else { "<stop>" };
    for id in [257, 258] {
        let added = serde_json::json!({
            "id": id, "content": name(id), "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
        });
        json["added_tokens"].as_array_mut().unwrap().push(added);
    }
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}},
    });
    let path = bench.folder.path().join("tokenizer.json");
    fs::write(&path, json.to_string()).unwrap();
    let ids = || {
        let prepared = bench.run(path.to_str().unwrap());
        let row = only(&prepared).train.get(0);
        (row.inputs[0], prepared.tokenizer.end_of_text(), prepared.summary.from_cache)
    };
    assert_eq!(ids(), (257, 256, false));
    assert_eq!(ids(), (257, 256, true));
    let beside = bench.folder.path().join("tokenizer_config.json");
    fs::write(&beside, r#"{"eos_token": {"content": "<stop>", "special": true}}"#).unwrap();
    assert_eq!(ids(), (257, 258, false));
    fs::write(&beside, r#"{"eos_token": "of another vocabulary"}"#).unwrap();
    assert_eq!(ids(), (257, 256, true));
    fs::write(&beside, r#"{"split_special_tokens": true}"#).unwrap();
    assert_eq!(ids(), (257, 256, false));
    let prepared = bench.run(path.to_str().unwrap());
    let texts = documents(&prepared, &only(&prepared).train);
    assert!(texts.iter().all(|text| text.starts_with("<s>document ")), "{texts:?}");
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

/// Records with a `label`, of which only the last token is learned.
#[derive(Debug)]
struct Labelled;

impl RecordEncoder for Labelled {
    fn identity(&self) -> String {
        "labelled".into()
    }

    fn takes(&self, record: &Record) -> bool {
        record.fields.contains_key("label")
    }

    fn example(&self, place: &RecordLocation, record: &str, tokenizer: &Tokenizer) -> Result<Example> {
        let record: serde_json::Value = serde_json::from_str(record).unwrap();
        let text = record["text"].as_str().ok_or_else(|| place.error("it has no `text`"))?;
        let mut example = Example::of(tokenizer.encode(text)?);
        example.cut = example.ids.len().saturating_sub(16);
        example.ids.truncate(16);
        example.learned = vec![false; example.ids.len()];
        *example.learned.last_mut().unwrap() = true;
        Ok(match record["label"].as_u64() {
            Some(class) => example.with_label(Label::Class(class as u32)),
            None => example,
        })
    }
}

fn labelled(bench: &Bench, lines: &str, layout: SequenceLayout) -> Result<PreparedData> {
    fs::write(bench.data(), lines).unwrap();
    let settings = PrepareOptions {
        rows: RowOptions::new(16, layout),
        records: Some(Arc::new(Labelled)),
        ..bench.settings("bytes")
    };
    let mut settings = settings;
    settings.sources[0].columns = Columns::new(&[], &["text", "label"]);
    prepare(&settings, &NoProgress)
}

#[test]
fn what_encoders_cut_is_counted_also_from_the_cache() {
    let bench = Bench::new(0);
    let lines: String =
        (0..20).map(|index| format!("{{\"label\":1,\"text\":\"{}\"}}\n", "a".repeat(8 + index))).collect();
    for from_cache in [false, true] {
        let summary = labelled(&bench, &lines, SequenceLayout::Auto).unwrap().summary;
        assert_eq!(summary.from_cache, from_cache);
        assert_eq!((summary.counts.cut_examples, summary.counts.cut_tokens), (11, 66));
    }
}

#[test]
fn records_become_examples_with_labels_or_rows_that_keep_them_whole() {
    let bench = Bench::new(0);
    let lines: String = (0..20).map(|index| format!("{{\"label\":{index},\"text\":\"abc\"}}\n")).collect();
    let prepared = labelled(&bench, &lines, SequenceLayout::Auto).unwrap();
    assert_eq!(only(&prepared).train.options().layout, SequenceLayout::Documents);
    let classes =
        |rows: &TokenSequences| (0..rows.len()).map(|row| rows.get(row).label.unwrap()).collect::<Vec<_>>();
    let mut all = [classes(&only(&prepared).train), classes(&only(&prepared).validation)].concat();
    all.sort_by_key(|label| format!("{label:?}"));
    assert!((0..20).all(|class| all.contains(&Label::Class(class))) && all.len() == 20, "{all:?}");
    assert_eq!(only(&prepared).train.get(0).valid[..3], [false, true, false]);

    let lines = "{\"label\":null,\"text\":\"abc\"}\n".repeat(20);
    let prepared = labelled(&bench, &lines, SequenceLayout::Auto).unwrap();
    assert_eq!(only(&prepared).train.options().layout, SequenceLayout::Bfd);
    assert_eq!(only(&prepared).train.get(0).documents[..2], [2, 2]);
    // Texts beside them are texts.
    let mixed = "{\"text\":\"abc\"}\n{\"label\":null,\"text\":\"abc\"}\n";
    let prepared = labelled(&bench, mixed, SequenceLayout::Packed).unwrap();
    assert_eq!(only(&prepared).train.options().layout, SequenceLayout::Packed);
}

#[test]
fn a_document_that_is_too_long_is_named_by_its_place() {
    let bench = Bench::new(0);
    let line = |length: usize| format!("{{\"text\":\"{}\"}}\n", "a".repeat(length));
    // Of documents without a character there are no tokens.
    let lines = |long: usize| -> String {
        (0..40).map(|index| line(if index == long { 30 } else { index % 3 })).collect()
    };
    let long = RowOptions { long: LongExamples::Refuse, ..RowOptions::new(16, SequenceLayout::Documents) };
    for at in [0, 17, 37] {
        fs::write(bench.data(), lines(at)).unwrap();
        // The second time, the tokens come from the cache.
        for fraction in [0.0, 0.5, 0.5] {
            let settings =
                PrepareOptions { rows: long, validation_fraction: fraction, ..bench.settings("bytes") };
            let error = prepare(&settings, &NoProgress).unwrap_err();
            let said = format!("(data.jsonl:{}) has 30 tokens, more than the 16 of a row", at + 1);
            let message = error.to_string().replace(&format!("{}/", bench.folder.path().display()), "");
            assert!(error.is_usage() && message.contains(&said), "{message}");
        }
    }
    // What is left of a single document is not the document.
    fs::write(bench.data(), line(60)).unwrap();
    let settings = PrepareOptions { rows: long, ..bench.settings("bytes") };
    let message = prepare(&settings, &NoProgress).unwrap_err().to_string();
    assert!(message.contains("document 1 of /") && message.contains("data.jsonl has 57 tokens"), "{message}");
}

#[test]
fn records_that_cannot_be_examples_are_named() {
    let bench = Bench::new(0);
    for (lines, said) in [
        ("{\"text\":\"a\",\"label\":1}\n\n{\"label\":1}\n", "data.jsonl:3: it has no `text`"),
        ("{\"text\":\"a\"}\n{\"note\":\"a\"}\n", "data.jsonl:2: it has no `text`"),
        ("{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\",\"label\":null}\n", "data.jsonl:2: it has no label"),
        (
            "{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\"}\n",
            "the examples before it have a class as its label",
        ),
    ] {
        let error = labelled(&bench, lines, SequenceLayout::Auto).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(said), "{error}");
    }
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
