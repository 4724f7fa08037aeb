//! Decoders of every family, whole, partly frozen, and with adapters: the bits of one process on any mesh, and after a resume on another one.

use brigade::core::{Batch, Chain, EngineSettings, Groups, ParameterGroup, Recompute, Zero};
use brigade::models::gpt::{ACCURACY, Targets, cross_entropy};
use brigade::models::{Adapters, CausalLm, Documents, Logits, LoraConfig, LossOptions, Tokens};
use brigade_hf::Config;
use burn::tensor::{Int, Tensor, TensorData};
use serde_json::{Value, json};

use crate::case::{Case, ints};

const LENGTH: usize = 8;
const VOCABULARY: usize = 40;

/// A model of a family with three layers, and settings of its own.
fn described(family: &str, own: &Value, lora: &LoraConfig) -> CausalLm {
    let mut fields = json!({
        "model_type": family, "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
    });
    fields.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    let config = Config::from_fields("config.json", fields.as_object().unwrap()).unwrap();
    CausalLm::from_config(&config, Some(LENGTH)).unwrap().with_adapters(lora).unwrap()
}

fn plain() -> LoraConfig {
    LoraConfig::default()
}

/// Where documents begin and end, for each position: two rows of which the first has two documents.
fn documents() -> Documents {
    let bounds = |length: usize, start: i64, end: i64| [start, end].repeat(length);
    let rows = [bounds(3, 0, 3), bounds(5, 3, 8), bounds(LENGTH, 0, LENGTH as i64)].concat();
    Tensor::<3, Int>::from_data(TensorData::new(rows, [2, LENGTH, 2]), &brigade_cpu::device())
}

/// A micro-batch of two rows, by its number; every other one is packed.
fn batch(number: usize) -> Batch<Tokens, Targets> {
    let tokens = |number| ints(number, VOCABULARY, [2, LENGTH]);
    let documents = (number % 2 == 1).then(documents);
    let input = Tokens { documents, ..tokens(number).into() };
    Batch::new(input, Targets { tokens: tokens(number + 500), mask: None }, 2 * LENGTH)
}

/// Compares all meshes with one process; gives the names of the parameters that training has changed, and of all.
fn changed(model: &CausalLm, base: &EngineSettings) -> (Vec<String>, Vec<String>) {
    let build = || -> brigade::Model<Tokens, Logits, Targets> {
        let chain: Chain<Tokens, Logits> = model.chain(7, &brigade_cpu::device()).unwrap();
        chain.loss_with_metrics([ACCURACY], cross_entropy)
    };
    let case = Case { model: build, batch };
    let before = case.engine(Groups::single_rank(), base.clone()).unwrap().tensors(0).unwrap();
    let after = case.equals_one_process_with(base).weights;
    let differs = before.iter().zip(&after).filter(|(a, b)| a.data.as_bytes() != b.data.as_bytes());
    let names = |name: &brigade::core::NamedTensor| name.name.clone();
    (differs.map(|(a, _)| names(a)).collect(), after.iter().map(names).collect())
}

#[test]
fn families() {
    for (family, own) in [
        ("llama", json!({})),
        ("mistral", json!({ "sliding_window": 3 })),
        ("qwen2", json!({ "tie_word_embeddings": true })),
        ("qwen3", json!({ "head_dim": 8 })),
        ("gemma2", json!({ "head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0 })),
        ("gemma3_text", json!({ "head_dim": 8, "sliding_window": 4 })),
        ("qwen2", json!({ "attention_dropout": 0.3 })),
    ] {
        let (changed, all) = changed(&described(family, &own, &plain()), &EngineSettings::default());
        assert_eq!(changed, all, "{family}");
    }
}

#[test]
fn adapters() {
    let targets = ["q_proj", "v_proj", "mlp.*_proj"].map(str::to_owned).to_vec();
    for (family, own, dropout) in [
        ("llama", json!({}), 0.0),
        ("llama", json!({ "tie_word_embeddings": true }), 0.2),
        ("gemma3_text", json!({ "head_dim": 8, "sliding_window": 4 }), 0.2),
        ("mistral", json!({ "sliding_window": 3 }), 0.0),
        ("qwen2", json!({ "attention_dropout": 0.3 }), 0.0),
        ("qwen3", json!({ "head_dim": 8 }), 0.0),
        ("gemma2", json!({ "head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0 }), 0.0),
    ] {
        let lora = LoraConfig { rank: 2, alpha: 4.0, dropout, targets: targets.clone(), rslora: false };
        let model = described(family, &own, &lora);
        let (changed, _) = changed(&model, &EngineSettings::default());
        assert!(changed.iter().all(|name| brigade::models::is_adapter(name)), "{changed:?}");
        let adapters: &Adapters = model.adapters();
        assert_eq!(changed.len(), adapters.tensors().len(), "{family}");
    }
}

#[test]
fn frozen_by_patterns_with_decay_by_layer() {
    let frozen = |pattern: &str| ParameterGroup { frozen: true, ..ParameterGroup::matching(pattern) };
    let base = EngineSettings {
        groups: vec![frozen("embed*"), frozen("layers.0-1.*"), frozen("*norm.weight")],
        layer_decay: 0.8,
        ..EngineSettings::default()
    };
    for (family, own) in [
        ("llama", json!({})),
        ("mistral", json!({ "sliding_window": 3 })),
        ("qwen2", json!({})),
        ("qwen3", json!({ "tie_word_embeddings": true, "head_dim": 8 })),
        ("gemma2", json!({ "tie_word_embeddings": false, "head_dim": 8, "sliding_window": 4 })),
        ("gemma3_text", json!({ "tie_word_embeddings": false, "head_dim": 8, "sliding_window": 4 })),
    ] {
        let (changed, all) = changed(&described(family, &own, &plain()), &base);
        let is_trained = |name: &&String| {
            name.starts_with("layers.2.") && !name.ends_with("norm.weight") || *name == "head.lm_head"
        };
        assert_eq!(changed, all.iter().filter(is_trained).cloned().collect::<Vec<_>>(), "{family}");
    }
    // With the decay alone, other weights.
    let model = described("llama", &json!({}), &plain());
    let decayed =
        EngineSettings { layer_decay: 0.5, recompute: Recompute::None, ..EngineSettings::default() };
    let zero = Zero::default();
    let trained = |base: &EngineSettings| {
        let build = || model.model(7, &brigade_cpu::device()).unwrap();
        let case = Case { model: build, batch };
        let groups = Groups::single_rank();
        let mut engine = case.engine(groups.clone(), base.clone()).unwrap();
        engine.step(case.batches(zero, &groups, 0), 1e-2).unwrap();
        engine.tensors(0).unwrap()
    };
    let (plain, decayed) = (trained(&EngineSettings::default()), trained(&decayed));
    for (a, b) in plain.iter().zip(&decayed) {
        assert_eq!(a.data.as_bytes() == b.data.as_bytes(), a.name.starts_with("head."), "{}", a.name);
    }
}

#[test]
fn options_of_the_loss() {
    let options = LossOptions { label_smoothing: 0.1, z_loss: 1e-3 };
    let build = || {
        let model = described("llama", &json!({}), &plain()).with_loss_options(options);
        model.model(7, &brigade_cpu::device()).unwrap()
    };
    let figures = Case { model: build, batch }.equals_one_process().figures;
    let usual = || described("llama", &json!({}), &plain()).model(7, &brigade_cpu::device()).unwrap();
    let settings = EngineSettings::default();
    let usual = Case { model: usual, batch }.train(Groups::single_rank(), &settings, 0..1, None).figures;
    assert_ne!(figures[0], usual[0], "the loss of the first step");
}
