//! Decoders.

use brigade_core::Batch;
use brigade_hf::{Config, DecoderConfig};
use brigade_models::decoder::{chain, mapping};
use brigade_models::gpt::{ACCURACY, Targets, cross_entropy};
use brigade_models::{Adapters, Logits, LoraConfig, Tokens};
use burn::tensor::Device;
use serde_json::Value;

use crate::reference::{Reference, documents, follows, row};

/// The adapters, if the model has any.
fn adapters(reference: &Reference, config: &DecoderConfig) -> Adapters {
    let lora = &reference.json["lora"];
    let targets = |targets: &Value| serde_json::from_value(targets.clone()).unwrap();
    let lora = LoraConfig {
        rank: lora["r"].as_u64().unwrap_or(0) as usize,
        alpha: lora["lora_alpha"].as_f64().unwrap_or(0.0),
        targets: lora.get("target_modules").map_or_else(Vec::new, targets),
        rslora: lora["use_rslora"].as_bool().unwrap_or(false),
        dropout: 0.0,
    };
    lora.adapters(config).unwrap()
}

fn batch(reference: &Reference, index: usize, device: &Device) -> Batch<Tokens, Targets> {
    let ids = &reference.rows("ids").unwrap()[index];
    let count = ids.len() - 1;
    let documents = reference.rows("documents").map(|lengths| documents(&lengths[index], device));
    let target = Targets { tokens: row(&ids[1..], device), mask: None };
    Batch::new(Tokens { ids: row(&ids[..count], device), documents, types: None }, target, count)
}

fn follows_transformers(case: &str) {
    let reference = Reference::load("decoders", case, |_| mapping());
    let Config::Decoder(config) = &reference.config else { panic!("{case} is no decoder") };
    let adapters = adapters(&reference, config);
    let model = |device: &Device| {
        let chain = reference.with_weights(chain(config, &adapters, 20, 0, device).unwrap());
        chain.loss_with_metrics([ACCURACY], cross_entropy)
    };
    follows(&reference, model, |row, device| batch(&reference, row, device), Logits::whole);
}

macro_rules! cases {
    ($($test:ident: $case:literal,)*) => {
        $(#[test]
        fn $test() {
            follows_transformers($case);
        })*
    };
}

cases! {
    llama: "llama",
    llama_with_a_tied_head_and_biases: "llama-tied-biases",
    llama_with_the_positions_of_3_1_and_one_key_head: "llama-3.1",
    llama_with_linear_positions: "llama-linear",
    llama_with_packed_documents: "llama-packed",
    mistral: "mistral",
    mistral_with_packed_documents: "mistral-packed",
    qwen2: "qwen2",
    qwen2_with_a_window_in_some_layers: "qwen2-window",
    qwen3: "qwen3",
    qwen3_with_yarn: "qwen3-yarn",
    gemma3: "gemma3",
    llama_with_adapters: "llama-lora",
    gemma3_with_adapters_scaled_by_the_root_of_their_rank: "gemma3-lora",
}
