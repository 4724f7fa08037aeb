//! Whatever a field says, there is a configuration that holds or an error.

use brigade_hf::{Config, Task};
use serde_json::{Value, json};

use super::{cases, read};

fn odd_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(3),
        json!(-1),
        json!(i32::MAX),
        json!(1u64 << 31),
        json!(u64::MAX),
        json!(1e300),
        json!(1e-300),
        json!(-0.0),
        json!(""),
        json!("default"),
        json!([]),
        json!([1]),
        json!(["full_attention"]),
        json!({}),
        json!({ "rope_type": "yarn", "factor": 1e300, "original_max_position_embeddings": 0 }),
        json!({ "rope_type": "llama3", "factor": 1e-300, "low_freq_factor": 1, "high_freq_factor": 1e300 }),
        json!({ "0": "a" }),
    ]
}

/// What is done with a configuration that was read.
fn use_it(config: &Config) {
    for task in
        [Task::Base, Task::CausalLanguageModel, Task::MaskedLanguageModel, Task::SequenceClassification]
    {
        assert!(config.parameters(task) > 0);
    }
    let fields = config.to_fields().unwrap();
    assert_eq!(Config::from_fields("config.json", &fields).unwrap(), *config);
    if let Config::Decoder(config) = config
        && let Some(rotary) = config.layers[0].rotary
        && config.head_dim < 1000
    {
        assert_eq!(rotary.inverse_frequencies(config.head_dim).len(), config.head_dim / 2);
    }
}

#[test]
fn odd_values_of_any_field_are_refused_or_hold() {
    let (mut held, mut refused) = (0, 0);
    for (_, case) in cases() {
        for fields in [Some(&case["config"]), case.get("older")].into_iter().flatten() {
            for name in fields.as_object().unwrap().keys() {
                for value in odd_values() {
                    let mut fields = fields.clone();
                    fields[name] = value;
                    match read(&fields) {
                        Ok(config) => {
                            use_it(&config);
                            held += 1;
                        }
                        Err(error) => {
                            assert!(error.to_string().len() < 2000, "{error}");
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(held > 1000 && refused > 1000, "{held} {refused}");
}
