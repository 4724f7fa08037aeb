use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

const SAMPLE: &str = include_str!("mod.rs");

static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::bytes().unwrap());
static BPE: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::train_bpe(600, &[SAMPLE.into()]).unwrap());

fn by_the_library(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.inner.library.encode(text, false).unwrap().get_ids().to_vec()
}

#[test]
fn training_twice_gives_the_same_bytes() {
    let texts: Vec<String> = SAMPLE.split_inclusive('\n').map(String::from).collect();
    let first = Tokenizer::train_bpe(2000, &texts).unwrap();
    for _ in 0..3 {
        assert_eq!(Tokenizer::train_bpe(2000, &texts).unwrap().json(), first.json());
    }
    let mut backwards = texts;
    backwards.reverse();
    assert_eq!(Tokenizer::train_bpe(2000, &backwards).unwrap().json(), first.json());
}

#[test]
fn bpe_has_the_size_that_was_asked_for_and_shortens_text() {
    assert_eq!(BPE.vocabulary_size(), 600);
    assert_eq!(BPE.inner.encoding, EncodingMethod::Words);
    assert_eq!(BPE.decode(&[BPE.end_of_text()]).unwrap(), END_OF_TEXT);
    assert!(BPE.encode(SAMPLE).unwrap().len() < SAMPLE.len() / 2);
}

#[test]
fn names_of_special_tokens_may_stand_for_them() {
    for tokenizer in [&*BYTES, &*BPE] {
        let text = format!("é{END_OF_TEXT}b");
        let (ids, offsets) = tokenizer.encode_marked(&text, false).unwrap();
        let end = ids.iter().position(|id| *id == tokenizer.end_of_text()).unwrap();
        assert_eq!(offsets[end], 2..2 + END_OF_TEXT.len());
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
}

#[test]
fn spaces_are_bytes_of_marked_texts_whatever_the_file_says_of_offsets() {
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let roberta = serde_json::json!({
        "type": "RobertaProcessing", "sep": [END_OF_TEXT, 256], "cls": [END_OF_TEXT, 256], "trim_offsets": true,
        "add_prefix_space": false,
    });
    let sequence = serde_json::json!({"type": "Sequence", "processors": [byte_level, byte_level]});
    let text = "  é\n\n x ";
    for (processor, added) in [(byte_level, 0), (sequence, 0), (roberta, 1)] {
        let mut json: serde_json::Value = serde_json::from_str(BYTES.json()).unwrap();
        json["post_processor"] = processor;
        let tokenizer = Tokenizer::from_json("a", json.to_string()).unwrap();
        let (ids, offsets) = tokenizer.encode_marked(text, true).unwrap();
        let library = tokenizer.inner.library.encode(text, true).unwrap();
        assert_eq!(ids, library.get_ids());
        let of_text = &offsets[added..ids.len() - added];
        assert_eq!(of_text.len(), text.len());
        for (index, bytes) in of_text.iter().enumerate() {
            assert!(bytes.contains(&index), "{index}: {bytes:?}");
        }
    }
}

#[test]
fn bytes_are_their_own_ids() {
    assert_eq!(BYTES.encode("aé").unwrap(), [0x61, 0xc3, 0xa9]);
    assert_eq!((BYTES.vocabulary_size(), BYTES.end_of_text()), (257, 256));
    assert_eq!(BYTES.size_without_added(), 256);
    assert_eq!(BYTES.inner.encoding, EncodingMethod::Bytes);
    assert_eq!(BYTES.decode(&[0x61, 256, 0xff, 0x62]).unwrap(), "a<|endoftext|>\u{fffd}b");
}

#[test]
fn names_of_special_tokens_in_texts_stand_for_them_unless_they_are_split() {
    let text = format!("a {END_OF_TEXT} b{END_OF_TEXT}{END_OF_TEXT}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for (tokenizer, method) in [(&*BYTES, EncodingMethod::Bytes), (&*BPE, EncodingMethod::Words)] {
        let part = |text| by_the_library(tokenizer, text);
        let end = || vec![tokenizer.end_of_text()];
        let expected = [part("a "), end(), part(" b"), end(), end()].concat();
        assert_eq!(tokenizer.encode(&text).unwrap(), expected);
        tokenizer.save(&path).unwrap();
        for (content, splits) in [("{}", false), (r#"{"split_special_tokens": true}"#, true)] {
            std::fs::write(folder.path().join("tokenizer_config.json"), content).unwrap();
            let read = Tokenizer::from_file(&path).unwrap();
            assert_eq!((read.splits_special_tokens(), read.inner.encoding), (splits, method));
            let ids = read.encode(&text).unwrap();
            assert_eq!(ids == expected, !splits);
            assert_eq!(ids.contains(&read.end_of_text()), !splits);
            assert_eq!(ids, by_the_library(&read, &text));
            assert_eq!(read.encode_marked(&text, false).unwrap().0, expected);
        }
    }
}

/// The tokenizer of a `tokenizer.json` beside a `tokenizer_config.json`.
fn with_config(json: &str, config: &serde_json::Value) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::from_file(&folder.path().join("tokenizer.json")).unwrap()
}

/// The ids are those of transformers 5.24.
#[test]
fn a_class_of_byte_level_decides_whether_a_space_is_added() {
    let with_space = BYTES.json().replace("\"add_prefix_space\":false", "\"add_prefix_space\":true");
    let with_space = with_space.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    assert_ne!(with_space, BYTES.json());
    let (plain, spaced) = (b"ab c".map(u32::from).to_vec(), b" ab c".map(u32::from).to_vec());
    for (class, given, json, expected) in [
        ("GPT2Tokenizer", Some(true), BYTES.json(), &spaced),
        ("RobertaTokenizerFast", Some(true), BYTES.json(), &spaced),
        ("Qwen2Tokenizer", Some(true), BYTES.json(), &spaced),
        ("GPT2Tokenizer", None, &with_space, &plain),
        ("GPT2TokenizerFast", None, BYTES.json(), &plain),
        ("PreTrainedTokenizerFast", Some(true), BYTES.json(), &plain),
        ("PreTrainedTokenizerFast", Some(false), &with_space, &spaced),
    ] {
        let config = serde_json::json!({"tokenizer_class": class, "add_prefix_space": given});
        let tokenizer = with_config(json, &config);
        assert_eq!(&tokenizer.encode("ab c").unwrap(), expected, "{class} {given:?}");
        assert_eq!(&tokenizer.encode_marked("ab c", false).unwrap().0, expected, "{class} {given:?}");
    }
}

/// The ids are those of transformers 5.24.
#[test]
fn a_class_of_bert_decides_how_text_is_normalized() {
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "e", "é", "世", "世世"];
    let vocabulary: serde_json::Map<_, _> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let json = |lowercase: bool| {
        let normalizer = serde_json::json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": lowercase,
        });
        let model = serde_json::json!({
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary,
        });
        serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": null, "model": model,
        })
        .to_string()
    };
    let mut seen = std::collections::BTreeSet::new();
    for (lowercase, config, expected) in [
        (
            true,
            serde_json::json!({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false}),
            [5, 7, 9, 9],
        ),
        (true, serde_json::json!({"tokenizer_class": "BertTokenizer", "do_lower_case": false}), [6, 8, 9, 9]),
        (false, serde_json::json!({"tokenizer_class": "BertTokenizerFast"}), [5, 7, 9, 9]),
        (
            true,
            serde_json::json!({"tokenizer_class": "DistilBertTokenizer", "strip_accents": false}),
            [5, 8, 9, 9],
        ),
    ] {
        let tokenizer = with_config(&json(lowercase), &config);
        assert_eq!(tokenizer.encode("A é 世世").unwrap(), expected, "{config}");
        seen.insert(tokenizer.set_beside());
    }
    assert_eq!(seen.len(), 4, "the cache of tokens tells them apart");
    // Without a class it is the model's.
    for (lowercase, config, expected) in [
        (true, serde_json::json!({"do_lower_case": false}), [6, 8, 9, 9]),
        (false, serde_json::json!({"model_max_length": 512}), [5, 7, 9, 9]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"model_type":"bert"}"#).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), json(lowercase)).unwrap();
        let tokenizer = Tokenizer::from_file(&folder.path().join("tokenizer.json")).unwrap();
        assert_eq!(tokenizer.encode("A é 世世").unwrap(), expected, "{config}");
    }
    let whole = serde_json::json!({"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": false});
    assert_eq!(with_config(&json(true), &whole).encode("A é 世世").unwrap(), [5, 7, 10]);
}

#[test]
fn a_chat_has_special_tokens_and_a_text_what_the_file_puts_before_it() {
    assert_eq!(BYTES.encode_special("a<|endoftext|>b").unwrap(), [0x61, 256, 0x62]);
    assert_eq!(BPE.encode_special(SAMPLE).unwrap(), {
        let parts = SAMPLE.split(END_OF_TEXT).map(|part| by_the_library(&BPE, part));
        parts.reduce(|all, part| [all, vec![BPE.end_of_text()], part].concat()).unwrap()
    });
    assert_eq!(BYTES.beginning().unwrap(), [0u32; 0]);
    let mut json: serde_json::Value = serde_json::from_str(BYTES.json()).unwrap();
    let (token, text) = (
        serde_json::json!({"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}}),
        serde_json::json!({"Sequence": {"id": "A", "type_id": 0}}),
    );
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing", "single": [token, text, token], "pair": [token, text],
        "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [256], "tokens": [END_OF_TEXT]}},
    });
    assert_eq!(Tokenizer::from_json("a", json.to_string()).unwrap().beginning().unwrap(), [256]);
}

/// The bytes, with an end of text after each of one or two texts.
fn json_of_pairs() -> serde_json::Value {
    let mut json: serde_json::Value = serde_json::from_str(BYTES.json()).unwrap();
    let token = |kind| serde_json::json!({"SpecialToken": {"id": END_OF_TEXT, "type_id": kind}});
    let text = |id, kind| serde_json::json!({"Sequence": {"id": id, "type_id": kind}});
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing", "single": [text("A", 0), token(0)],
        "pair": [text("A", 0), token(0), text("B", 1), token(1)],
        "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [256], "tokens": [END_OF_TEXT]}},
    });
    json
}

#[test]
fn long_texts_are_cut_on_the_side_that_the_files_say() {
    let mut json = json_of_pairs();
    let said = |json: &serde_json::Value, config: serde_json::Value| {
        let tokenizer = with_config(&json.to_string(), &config);
        let texts =
            [tokenizer.encode_whole("abcd", 3).unwrap(), tokenizer.encode_pair(["ab", "cdefgh"], 7).unwrap()];
        let texts = texts.map(|text| tokenizer.decode(&text.ids).unwrap().replace(END_OF_TEXT, "|"));
        (texts, tokenizer.set_beside())
    };
    let (right, usual) = said(&json, serde_json::json!({}));
    let (left, other) = said(&json, serde_json::json!({"truncation_side": "left"}));
    assert_eq!(right, ["ab|", "ab|cde|"]);
    assert_eq!(left, ["cd|", "ab|fgh|"]);
    assert_ne!(usual, other, "the cache of tokens tells them apart");
    // tokenizer.json may say it as well.
    json["truncation"] =
        serde_json::json!({"direction": "Left", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    assert_eq!(said(&json, serde_json::json!({})).0, left);
    assert_eq!(said(&json, serde_json::json!({"truncation_side": "right"})).0, right);
}

#[test]
fn of_two_texts_the_longer_one_is_cut() {
    let tokenizer = Tokenizer::from_json("pairs", json_of_pairs().to_string()).unwrap();
    for (texts, most, expected, dropped) in [
        (["ab", "c"], 9, "ab|c|", 0),
        (["ab", "cdefgh"], 7, "ab|cde|", 3),
        (["abcdef", "g"], 5, "ab|g|", 4),
        (["abcdef", "ghijkl"], 7, "ab|ghi|", 7),
    ] {
        let WholeText { ids, of_second, cut } = tokenizer.encode_pair(texts, most).unwrap();
        assert_eq!(cut, dropped);
        assert_eq!(tokenizer.decode(&ids).unwrap().replace(END_OF_TEXT, "|"), expected);
        let first = expected.find('|').unwrap() + 1;
        assert_eq!(of_second, [vec![false; first], vec![true; expected.len() - first]].concat());
    }
    let alone = tokenizer.encode_whole("abcd", 3).unwrap();
    assert_eq!((alone.ids, alone.cut), (vec![0x61, 0x62, 256], 2));
    let error = tokenizer.encode_pair(["a", "b"], 1).unwrap_err().to_string();
    assert!(
        error.contains("puts 2 special tokens around two texts, but at most 1 tokens are wanted"),
        "{error}"
    );
}

#[test]
fn a_file_brings_the_tokenizer_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for tokenizer in [&*BYTES, &*BPE] {
        tokenizer.save(&path).unwrap();
        let read = Tokenizer::from_file(&path).unwrap();
        assert_eq!(read.json(), tokenizer.json());
        assert_eq!(read.inner.encoding, tokenizer.inner.encoding);
        assert_eq!(read.encode(SAMPLE).unwrap(), tokenizer.encode(SAMPLE).unwrap());
    }
}

#[test]
fn files_that_are_no_use_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    assert!(Tokenizer::from_file(&path).is_err());
    std::fs::write(&path, "{}").unwrap();
    assert!(matches!(Tokenizer::from_file(&path), Err(Error::Tokenizer { .. })));
    std::fs::write(&path, BYTES.json().replace(END_OF_TEXT, "<other>")).unwrap();
    assert!(Tokenizer::from_file(&path).unwrap_err().to_string().contains("no end-of-text token"));
    std::fs::write(&path, BYTES.json().replace("\"dropout\":null", "\"dropout\":0.5")).unwrap();
    assert!(Tokenizer::from_file(&path).unwrap_err().to_string().contains("dropout"));
}

#[test]
fn ids_outside_the_vocabulary_are_not_decoded() {
    assert!(BPE.decode(&[600]).unwrap_err().to_string().contains("id 600"));
}

proptest! {
    #[test]
    fn decoding_gives_back_any_text(text: String) {
        for tokenizer in [&*BYTES, &*BPE] {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids).unwrap(), &text);
            prop_assert_eq!(ids, by_the_library(tokenizer, &text));
        }
    }

    #[test]
    fn words_are_encoded_as_by_the_library(start in 0..SAMPLE.len(), length in 0usize..400) {
        let text = &SAMPLE[SAMPLE.floor_char_boundary(start)..SAMPLE.floor_char_boundary(start + length)];
        prop_assert_eq!(BPE.encode(text).unwrap(), by_the_library(&BPE, text));
    }
}

/// The library panics at it.
#[test]
fn a_damaged_tokenizer_is_an_error() {
    let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":"#;
    let error = Tokenizer::from_json("t", json.into()).unwrap_err();
    assert!(matches!(error, Error::Tokenizer { .. }), "{error}");
}

#[test]
fn a_text_that_goes_on_gets_no_space_of_its_own() {
    let json = |normalizer: &str, pre_tokenizer: &str| {
        let vocabulary = r#"{"▁": 0, "a": 1, "b": 2, "▁a": 3, "▁b": 4, "\n": 5, "</s>": 6}"#;
        format!(
            r#"{{"version": "1.0", "added_tokens": [{{"id": 6, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
                "normalizer": {normalizer}, "pre_tokenizer": {pre_tokenizer}, "post_processor": null, "decoder": null, "truncation": null, "padding": null,
                "model": {{"type": "BPE", "vocab": {vocabulary}, "merges": ["▁ a", "▁ b"]}}}}"#
        )
    };
    let prepend = r#"{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}"#;
    let metaspace = r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}"#;
    let folder = tempfile::tempdir().unwrap();
    for (index, json) in [json(prepend, "null"), json("null", metaspace)].into_iter().enumerate() {
        let path = folder.path().join(format!("{index}.json"));
        std::fs::write(&path, json).unwrap();
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        let whole = "ab a\nb b";
        let expected = tokenizer.encode(whole).unwrap();
        assert_eq!(expected[0], 3);
        for at in [2, 4, 6] {
            let mut ids = tokenizer.encode(&whole[..at]).unwrap();
            let before = &whole[at - 2..at];
            tokenizer.encoder().encode_after(before, &whole[at..], &mut ids).unwrap();
            assert_eq!(ids, expected, "{index}, cut at {at}");
        }
    }
}
