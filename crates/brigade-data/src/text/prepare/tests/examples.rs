//! Records that become examples.

use std::sync::Arc;

use super::*;
use crate::{Example, Label, LongExamples, Record, RecordEncoder, RecordLocation};

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
    let sequence = only(&prepared).train.get(0).unwrap();
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
        file.read(file.document(0), &mut ids).unwrap();
        assert!(ids == expected, "{prompt:.9} {text}: {:?}", &ids[..ids.len().min(9)]);
        assert_eq!(prepared.summary.counts.masked_tokens, masked, "{prompt:.9} {text}");
    }
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
        let row = only(&prepared).train.get(0).unwrap();
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
    let classes = |rows: &TokenSequences| {
        (0..rows.len()).map(|row| rows.get(row).unwrap().label.unwrap()).collect::<Vec<_>>()
    };
    let mut all = [classes(&only(&prepared).train), classes(&only(&prepared).validation)].concat();
    all.sort_by_key(|label| format!("{label:?}"));
    assert!((0..20).all(|class| all.contains(&Label::Class(class))) && all.len() == 20, "{all:?}");
    assert_eq!(only(&prepared).train.get(0).unwrap().valid[..3], [false, true, false]);

    let lines = "{\"label\":null,\"text\":\"abc\"}\n".repeat(20);
    let prepared = labelled(&bench, &lines, SequenceLayout::Auto).unwrap();
    assert_eq!(only(&prepared).train.options().layout, SequenceLayout::Bfd);
    assert_eq!(only(&prepared).train.get(0).unwrap().documents[..2], [2, 2]);
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
fn long_documents_are_validated_on_whole() {
    let bench = Bench::new(0);
    let (line, held) =
        (format!("{{\"text\":\"{}\"}}\n", "a".repeat(40)), bench.folder.path().join("held.jsonl"));
    fs::write(bench.data(), &line).unwrap();
    fs::write(&held, line.replace('a', "b")).unwrap();
    let mut settings =
        PrepareOptions { rows: RowOptions::new(16, SequenceLayout::Documents), ..bench.settings("bytes") };
    settings.sources[0].validation = Some(Corpus::from_sources(&[held.display().to_string()]));
    let prepared = prepare(&settings, &NoProgress).unwrap();
    let targets = |rows: &TokenSequences| {
        let valid = |row| rows.get(row).unwrap().valid.into_iter().filter(|valid| *valid).count();
        (0..rows.len()).map(valid).collect::<Vec<_>>()
    };
    assert_eq!(targets(&only(&prepared).train), [16]);
    assert_eq!(targets(&only(&prepared).validation), [16, 16, 8]);
}
