//! Values, names and shapes are those of `transformers`.

use std::collections::BTreeMap;

use brigade_hf::{Config, DecoderConfig, Family, Task};
use serde_json::{Value, json};

use super::{cases, fixture, read};

const TASKS: [Task; 4] =
    [Task::Base, Task::CausalLanguageModel, Task::MaskedLanguageModel, Task::SequenceClassification];

#[test]
fn absent_fields_have_the_values_of_transformers() {
    for family in Family::ALL {
        let absent = read(&json!({ "model_type": family.model_type() })).unwrap();
        assert_eq!(absent, read(&fixture(family)["defaults"]).unwrap(), "{family}");
    }
}

#[test]
fn fields_of_both_versions_mean_the_same() {
    let mut compared = 0;
    for (family, case) in cases() {
        let Some(older) = case.get("older") else { continue };
        assert_eq!(read(older).unwrap(), read(&case["config"]).unwrap(), "{family} {}", case["name"]);
        compared += 1;
    }
    assert!(compared > 10);
}

#[test]
fn names_and_shapes_of_tensors_are_those_of_transformers() {
    for (family, case) in cases() {
        let config = read(&case["config"]).unwrap();
        let by_class = case["tensors"].as_object().unwrap();
        let mut classes = 0;
        for task in TASKS {
            let Some(class) = family.class(task) else { continue };
            let found: BTreeMap<_, _> = config.tensors(task).into_iter().collect();
            let expected: BTreeMap<String, Vec<usize>> =
                serde_json::from_value(by_class[&class].clone()).unwrap();
            assert_eq!(found, expected, "{family} {} {class}", case["name"]);
            classes += 1;
        }
        assert_eq!(classes, by_class.len());
        assert_eq!(
            config.parameters(family.language_model()),
            case["parameters"],
            "{family} {}",
            case["name"]
        );
    }
}

#[test]
fn attention_computes_with_the_values_of_transformers() {
    for (family, case) in cases() {
        let Config::Decoder(config) = read(&case["config"]).unwrap() else { continue };
        let expected = case["layers"].as_array().unwrap();
        assert_eq!(config.layers.len(), expected.len());
        for (index, expected) in expected.iter().enumerate() {
            compare_layer(&config, index, expected);
        }
        let scale = case["embedding_scale"].as_f64().unwrap();
        assert_eq!(config.embedding_scale as f32, scale as f32, "{family} {}", case["name"]);
    }
}

fn compare_layer(config: &DecoderConfig, index: usize, expected: &Value) {
    let layer = &config.layers[index];
    assert_eq!(json!(layer.window), expected["window"], "layer {index}");
    assert_eq!(config.attention_scale, expected["scale"].as_f64().unwrap(), "layer {index}");
    let Some(rotary) = layer.rotary else { return assert!(expected["inverse_frequencies"].is_null()) };
    assert_eq!(rotary.attention_factor(), expected["attention_factor"].as_f64().unwrap());
    let found = rotary.inverse_frequencies(config.head_dim);
    let expected = expected["inverse_frequencies"].as_array().unwrap();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let expected = expected.as_f64().unwrap() as f32;
        // Powers are rounded, there within one unit in the last place, here to the nearest.
        let units = found.to_bits().abs_diff(expected.to_bits());
        assert!(units <= 4, "{found} but {expected} in {rotary:?}");
    }
}

#[test]
fn the_task_is_that_of_the_class() {
    for (class, family, task) in [
        ("GPT2LMHeadModel", Family::Gpt2, Task::CausalLanguageModel),
        ("Gemma3ForCausalLM", Family::Gemma3, Task::CausalLanguageModel),
        ("Gemma3TextModel", Family::Gemma3, Task::Base),
        ("BertForMaskedLM", Family::Bert, Task::MaskedLanguageModel),
        ("RobertaForSequenceClassification", Family::Roberta, Task::SequenceClassification),
    ] {
        assert_eq!(family.class(task).as_deref(), Some(class));
        let config = read(&json!({ "architectures": [class] })).unwrap();
        assert_eq!(config.family(), family, "{class}, without a `model_type`");
    }
    let other_head = read(&json!({ "architectures": ["BertForTokenClassification"] })).unwrap();
    assert_eq!(other_head.family(), Family::Bert);
    assert_eq!(Family::Bert.class(Task::CausalLanguageModel), None);
}
