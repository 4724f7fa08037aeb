//! What is written.

use std::fs;
use std::path::Path;

use brigade_hf::config::{ConfigFile, GenerationConfig, Labels, Rotary, RotaryScaling};
use brigade_hf::{Config, HfError, Task};
use serde_json::{Map, Value, json};
use tempfile::tempdir;

use super::{cases, object, read};

/// A folder with these fields as its configuration.
fn folder(fields: &Value) -> tempfile::TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("config.json"), fields.to_string()).unwrap();
    folder
}

/// `make_configs.py --check` compares the same with what `transformers` reads from it.
#[test]
fn a_configuration_from_nothing_is_written_as_it_was_checked() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/written.json");
    let mut written = Map::new();
    for (family, case) in cases() {
        let config = read(&case["config"]).unwrap();
        let fields = ConfigFile::new(config.clone(), family.language_model()).to_fields().unwrap();
        assert_eq!(Config::from_fields("config.json", &fields).unwrap(), config);
        written.insert(format!("{family}.{}", case["name"].as_str().unwrap()), Value::Object(fields));
    }
    let written = Value::Object(written);
    if std::env::var_os("BRIGADE_WRITE_FIXTURES").is_some() {
        fs::write(&path, format!("{written:#}\n")).unwrap();
    }
    let checked: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(
        written, checked,
        "BRIGADE_WRITE_FIXTURES=1 writes it again, and `make_configs.py --check` checks it"
    );
}

#[test]
fn what_was_read_is_written_unchanged() {
    for (family, case) in cases() {
        for fields in [Some(&case["config"]), case.get("older")].into_iter().flatten() {
            let folder = folder(fields);
            let file = ConfigFile::read(folder.path()).unwrap();
            assert_eq!(file.task, Some(family.language_model()));
            assert_eq!(file.dtype.as_deref(), Some("float32"));
            let mut expected = fields.clone();
            let dtype = expected.as_object_mut().unwrap().remove("dtype");
            expected["torch_dtype"] = dtype.unwrap_or_else(|| fields["torch_dtype"].clone());
            assert_eq!(Value::Object(file.to_fields().unwrap()), expected, "{family} {}", case["name"]);
        }
    }
}

#[test]
fn only_what_has_changed_is_written_anew() {
    let before = json!({
        "model_type": "llama", "vocab_size": 100, "pretraining_tp": 1, "num_labels": 2,
        "rope_parameters": { "rope_type": "default", "rope_theta": 5e5 }, "dtype": "float32", "architectures": ["LlamaForCausalLM"],
    });
    let folder = folder(&before);
    let mut file = ConfigFile::read(folder.path()).unwrap();
    let Config::Decoder(config) = &mut file.config else { panic!() };
    config.vocab_size = 104;
    config.labels = Labels::numbered(3);
    for layer in &mut config.layers {
        layer.rotary = Some(Rotary { theta: 5e5, scaling: RotaryScaling::Linear { factor: 2.0 } });
    }
    file.task = Some(Task::SequenceClassification);
    file.dtype = Some("bfloat16".into());
    file.write(folder.path()).unwrap();
    let written: Value =
        serde_json::from_slice(&fs::read(folder.path().join("config.json")).unwrap()).unwrap();
    assert_eq!(
        written,
        json!({
            "model_type": "llama", "vocab_size": 104, "pretraining_tp": 1,
            "id2label": { "0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2" },
            "label2id": { "LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2 },
            "rope_theta": 5e5, "rope_scaling": { "rope_type": "linear", "factor": 2.0 },
            "torch_dtype": "bfloat16", "architectures": ["LlamaForSequenceClassification"],
        })
    );
    assert_eq!(ConfigFile::read(folder.path()).unwrap().config, file.config);
}

#[test]
fn scaled_rotations_of_layers_with_a_window_are_written() {
    let by_type = json!({
        "full_attention": { "rope_type": "default", "rope_theta": 300.0 },
        "sliding_attention": { "rope_type": "linear", "factor": 3.0, "rope_theta": 50.0 },
    });
    let fields = json!({
        "model_type": "gemma3_text", "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": by_type,
    });
    let config = read(&fields).unwrap();
    let written = config.to_fields().unwrap();
    assert_eq!(written["rope_parameters"], by_type);
    assert_eq!(read(&Value::Object(written)).unwrap(), config);
    let folder = folder(&fields);
    let mut file = ConfigFile::read(folder.path()).unwrap();
    let Config::Decoder(config) = &mut file.config else { panic!() };
    config.vocab_size = 100;
    let written = file.to_fields().unwrap();
    assert_eq!((&written["rope_parameters"], &written["vocab_size"]), (&by_type, &json!(100)));
}

#[test]
fn labels_beside_a_model_come_with_the_token_that_fills_its_rows() {
    let folder = folder(&json!({ "model_type": "llama", "vocab_size": 100 }));
    let base = ConfigFile::read(folder.path()).unwrap();
    let mut file = base.clone();
    let Config::Decoder(config) = &mut file.config else { panic!() };
    (config.labels, config.tokens.pad) = (Labels::numbered(3), Some(7));
    let path = folder.path().join("labels.json");
    fs::write(&path, Value::Object(file.label_fields()).to_string()).unwrap();
    let again = base.with_labels_of(&path).unwrap();
    assert_eq!((again.config, again.task), (file.config, Some(Task::SequenceClassification)));
}

#[test]
fn what_a_family_has_no_field_for_is_not_written() {
    let Config::Decoder(mut config) = read(&json!({ "model_type": "llama" })).unwrap() else { panic!() };
    config.qk_norm = true;
    let error = Config::Decoder(config).to_fields().unwrap_err();
    assert!(matches!(error, HfError::Unwritable { .. }), "{error}");
    let message = "a model of type `llama` cannot have this configuration: `qk_norm: true` would be read as `qk_norm: false`";
    assert_eq!(error.to_string(), message);
    let Config::Decoder(mut config) = read(&json!({ "model_type": "mistral" })).unwrap() else { panic!() };
    let scaling = RotaryScaling::Linear { factor: 2.0 };
    config.layers[1].rotary = Some(Rotary { theta: 10_000.0, scaling });
    let message = Config::Decoder(config).to_fields().unwrap_err().to_string();
    assert!(message.ends_with("`scaling: Linear` would be read as `scaling: None`"), "{message}");
}

#[test]
fn how_text_is_generated_is_kept() {
    let folder = folder(&json!({ "model_type": "llama" }));
    let path = folder.path().join("generation_config.json");
    let before =
        json!({ "eos_token_id": [2, 7], "temperature": 1, "top_p": 0.9, "cache_implementation": "hybrid" });
    fs::write(&path, before.to_string()).unwrap();
    let mut file = ConfigFile::read(folder.path()).unwrap();
    let generation = file.generation.as_mut().unwrap();
    assert_eq!((generation.tokens.eos.as_slice(), generation.temperature), ([2, 7].as_slice(), Some(1.0)));
    assert_eq!(generation.to_fields(), *object(&before));
    (generation.top_p, generation.top_k) = (None, Some(40));
    file.write(folder.path()).unwrap();
    let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(
        written,
        json!({ "eos_token_id": [2, 7], "temperature": 1, "top_k": 40, "cache_implementation": "hybrid" })
    );
}

#[test]
fn tokens_that_end_a_turn_are_added_to_those_that_end_a_text() {
    let folder = folder(&json!({ "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2 }));
    let path = folder.path().join("generation_config.json");
    for (before, after) in [
        (None, json!({ "bos_token_id": 1, "eos_token_id": [2, 7] })),
        (Some(json!({ "top_k": 5 })), json!({ "top_k": 5, "eos_token_id": [2, 7] })),
        (Some(json!({ "eos_token_id": 3 })), json!({ "eos_token_id": [3, 2, 7] })),
        (Some(json!({ "eos_token_id": [7, 2] })), json!({ "eos_token_id": [7, 2] })),
    ] {
        let grows = before != Some(after.clone());
        if let Some(before) = before {
            fs::write(&path, before.to_string()).unwrap();
        }
        let mut file = ConfigFile::read(folder.path()).unwrap();
        assert_eq!(file.add_ends(&[2, 7]), grows);
        file.write(folder.path()).unwrap();
        let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(written, after);
        let ends = file.generation.take().map(|generation| generation.tokens.eos);
        let again = file.with_generation_of(folder.path()).unwrap();
        assert_eq!(again.generation.map(|generation| generation.tokens.eos), ends);
    }
}

#[test]
fn what_has_no_effect_on_texts_here_is_named() {
    let folder = folder(&json!({ "model_type": "llama" }));
    let given = json!({
        "temperature": 1, "min_p": 0.05, "typical_p": 1.0, "num_beams": 1, "no_repeat_ngram_size": 3, "suppress_tokens": [],
        "stop_strings": null, "forced_eos_token_id": 0, "use_cache": true, "top_h": 0.4, "token_healing": false,
        "watermarking_config": { "bias": 2.0 }, "dola_layers": "high",
    });
    fs::write(folder.path().join("generation_config.json"), given.to_string()).unwrap();
    let generation = ConfigFile::read(folder.path()).unwrap().generation.unwrap();
    assert_eq!(
        generation.ignored(),
        [
            "`dola_layers` = \"high\"",
            "`forced_eos_token_id` = 0",
            "`min_p` = 0.05",
            "`no_repeat_ngram_size` = 3",
            "`top_h` = 0.4",
            "`watermarking_config` = {\"bias\":2.0}",
        ]
    );
    assert!(GenerationConfig::default().ignored().is_empty());
}

#[test]
fn a_folder_without_a_configuration_or_with_half_of_one_is_refused() {
    let folder = tempdir().unwrap();
    let message = ConfigFile::read(folder.path()).unwrap_err().to_string();
    assert!(message.contains("config.json: "), "{message}");
    for text in ["{\"model_type\": \"lla", "[1]"] {
        fs::write(folder.path().join("config.json"), text).unwrap();
        let message = ConfigFile::read(folder.path()).unwrap_err().to_string();
        assert!(message.contains("config.json is not a JSON object: "), "{message}");
    }
}
