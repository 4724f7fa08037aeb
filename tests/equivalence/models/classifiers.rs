//! Decoders that classify, whole and with adapters, and GPT-2 with adapters: the bits of one process on any mesh, and after a resume on another one.

use brigade::core::{Activation, Batch, EngineSettings, Groups, Model, NamedTensor};
use brigade::models::classifier::SequenceClassifier;
use brigade::models::gpt::Targets;
use brigade::models::{CausalLm, Documents, LoraConfig, Tokens, is_adapter, is_adapter_or_head};
use brigade_hf::Config;
use burn::tensor::{Tensor, TensorData};
use serde_json::{Value, json};

use crate::case::{Case, floats, ints};

pub const LENGTH: usize = 8;
pub const VOCABULARY: usize = 40;
pub const LABELS: usize = 3;

fn config(family: &str) -> Config {
    let mut fields = json!({
        "model_type": family, "vocab_size": VOCABULARY, "num_labels": LABELS, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2,
    });
    let shape = match family {
        "gpt2" => json!({ "n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": LENGTH,
            "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1 }),
        _ => json!({ "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16 }),
    };
    fields.as_object_mut().unwrap().extend(shape.as_object().unwrap().clone());
    Config::from_fields("config.json", fields.as_object().unwrap()).unwrap()
}

pub fn adapters(targets: &[&str]) -> LoraConfig {
    let targets = targets.iter().map(|target| (*target).to_owned()).collect();
    LoraConfig { rank: 2, alpha: 4.0, dropout: 0.2, targets, rslora: false }
}

/// Two rows, of which the first is a text of 5 tokens and padding.
pub fn rows(number: usize) -> Tokens {
    let mut bounds = [0, 5].repeat(5);
    bounds.extend((5..LENGTH as i64).flat_map(|at| [at, at + 1]));
    bounds.extend([0, LENGTH as i64].repeat(LENGTH));
    let device = brigade_cpu::device();
    let documents: Documents = Tensor::from_data(TensorData::new(bounds, [2, LENGTH, 2]), &device);
    let documents = (number % 2 == 1).then_some(documents);
    Tokens { documents, ..ints(number, VOCABULARY, [2, LENGTH]).into() }
}

/// Compares all meshes with one process; gives the names of the parameters that training has changed, and of all.
pub fn changed<O: Activation, T: Clone + 'static>(
    model: impl Fn() -> Model<Tokens, O, T> + Sync,
    batch: impl Fn(usize) -> Batch<Tokens, T> + Sync,
) -> (Vec<String>, Vec<String>) {
    changed_with(&EngineSettings::default(), model, batch)
}

/// The same with these settings.
pub fn changed_with<O: Activation, T: Clone + 'static>(
    base: &EngineSettings,
    model: impl Fn() -> Model<Tokens, O, T> + Sync,
    batch: impl Fn(usize) -> Batch<Tokens, T> + Sync,
) -> (Vec<String>, Vec<String>) {
    let case = Case { model, batch };
    let before = case.engine(Groups::single_rank(), base.clone()).unwrap().tensors(0).unwrap();
    let after = case.equals_one_process_with(base).weights;
    let differs = before.iter().zip(&after).filter(|(a, b)| a.data.as_bytes() != b.data.as_bytes());
    let names = |tensor: &NamedTensor| tensor.name.clone();
    (differs.map(|(a, _)| names(a)).collect(), after.iter().map(names).collect())
}

fn classifier(family: &str, lora: &LoraConfig) -> SequenceClassifier {
    SequenceClassifier::from_config(&config(family), Some(LENGTH)).unwrap().with_adapters(lora).unwrap()
}

#[test]
fn decoders_learn_labels() {
    for family in ["llama", "gpt2"] {
        let model = classifier(family, &LoraConfig::default());
        let batch = |number| Batch::new(rows(number), ints(number + 500, LABELS, [2]), 2);
        let (changed, all) = changed(|| model.classification(7, &brigade_cpu::device()).unwrap(), batch);
        assert_eq!(changed, all, "{family}");
        assert!(all.iter().any(|name| name == "head.score.weight"), "{all:?}");
    }
}

#[test]
fn decoders_learn_sets_of_labels_and_numbers() {
    let model = classifier("mistral", &LoraConfig::default());
    let several = |number| {
        let labels = ints(number + 500, 2, [2, LABELS]).float();
        Batch::new(rows(number), labels, 2 * LABELS)
    };
    let (changes, all) =
        changed(|| model.multi_label_classification(7, &brigade_cpu::device()).unwrap(), several);
    assert_eq!(changes, all);
    let mut one: Value = Value::Object(config("qwen2").to_fields().unwrap());
    one["id2label"] = json!({ "0": "LABEL_0" });
    let one = Config::from_fields("config.json", one.as_object().unwrap()).unwrap();
    let model = SequenceClassifier::from_config(&one, Some(LENGTH)).unwrap();
    let numbers = |number| Batch::new(rows(number), floats(number, 3, [2]), 2);
    let (changes, all) = changed(|| model.regression(7, &brigade_cpu::device()).unwrap(), numbers);
    assert_eq!(changes, all);
}

#[test]
fn decoders_learn_labels_by_adapters_and_their_head() {
    for (family, targets) in [("llama", ["q_proj", "mlp.*_proj"]), ("gpt2", ["c_attn", "mlp.c_proj"])] {
        let model = classifier(family, &adapters(&targets));
        let batch = |number| Batch::new(rows(number), ints(number + 500, LABELS, [2]), 2);
        let (changed, _) = changed(|| model.classification(7, &brigade_cpu::device()).unwrap(), batch);
        assert!(changed.iter().all(|name| is_adapter_or_head(name)), "{changed:?}");
        assert_eq!(changed.len(), model.adapters().tensors().len() + 1, "{family}");
    }
}

#[test]
fn gpt2_learns_tokens_by_adapters() {
    for targets in [["c_attn", "c_proj"], ["attn.c_attn", "c_fc"]] {
        let model = CausalLm::from_config(&config("gpt2"), Some(LENGTH)).unwrap();
        let model = model.with_adapters(&adapters(&targets)).unwrap();
        let batch = |number: usize| {
            let tokens = ints(number + 500, VOCABULARY, [2, LENGTH]);
            Batch::new(rows(number), Targets { tokens, mask: None }, 2 * LENGTH)
        };
        let (changed, _) = changed(|| model.model(7, &brigade_cpu::device()).unwrap(), batch);
        assert!(changed.iter().all(|name| is_adapter(name)), "{changed:?}");
        assert_eq!(changed.len(), model.adapters().tensors().len());
    }
}
