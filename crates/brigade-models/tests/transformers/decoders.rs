//! Decoders.

use brigade_comm::{Timeouts, threads};
use brigade_core::{
    Batch, Cache, DP, Engine, EngineSettings, Groups, Mesh, Model, OptimizerFactory, PP, Zero,
};
use brigade_hf::{Config, Task};
use brigade_models::decoder::{chain, mapping};
use brigade_models::gpt::{ACCURACY, Targets, cross_entropy};
use brigade_models::{Logits, Tokens};
use burn::optim::SgdConfig;
use burn::tensor::Device;

use crate::cached::{parts, same_with_a_cache, tokens};
use crate::reference::{Reference, documents, follows, lora, row};

/// As many as the models have.
const POSITIONS: usize = 64;

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
    let adapters = lora(&reference).adapters(&reference.config, Task::CausalLanguageModel).unwrap();
    let model = |device: &Device| {
        let chain = reference.with_weights(chain(config, &adapters, 20, 0, device).unwrap());
        chain.loss_with_metrics([ACCURACY], cross_entropy)
    };
    follows(&reference, model, |row, device| batch(&reference, row, device), Logits::whole);

    let chain =
        |device: &Device| reference.with_weights(chain(config, &adapters, POSITIONS, 0, device).unwrap());
    let mut alone = chain(&Device::flex());
    alone.initialize(0).unwrap();
    same_with_a_cache(&alone, POSITIONS, config.vocab_size);
    same_with_a_cache_on_a_mesh(
        |device| chain(device).loss(|logits, targets| cross_entropy(logits, targets).0),
        config.vocab_size,
    );
}

/// Checks that logits of a text in parts have the same bits on two stages of two ranks each under ZeRO-3.
fn same_with_a_cache_on_a_mesh(
    model: impl Fn(&Device) -> Model<Tokens, Logits, Targets> + Sync,
    vocabulary: usize,
) {
    let predicted = |groups: Groups| {
        let (device, tokens) = (Device::flex(), tokens(POSITIONS, vocabulary));
        let settings =
            EngineSettings { zero: Zero { stage: 3, ..Zero::default() }, ..EngineSettings::default() };
        let optimizer = OptimizerFactory::new(SgdConfig::new().build(), SgdConfig::new().build());
        let mut engine = Engine::new(model(&device), 0, &optimizer, groups, settings).unwrap();
        let (mut cache, mut start) = (Cache::default(), 0);
        let found = parts(POSITIONS).into_iter().take(8).map(|length| {
            let part = tokens.clone().narrow(1, start, length);
            start += length;
            let logits = engine.predict_cached(part.into(), &mut cache).unwrap();
            logits.map(|logits| logits.whole().try_into_vec_as::<f32>().unwrap())
        });
        found.collect::<Vec<_>>()
    };
    let alone = predicted(Groups::single_rank());
    std::thread::scope(|scope| {
        for world in threads(4, Timeouts::default()) {
            let (alone, predicted) = (&alone, &predicted);
            scope.spawn(move || {
                let groups = brigade_cpu::groups(&world, Mesh::new(4, [(PP, 2), (DP, 2)]).unwrap()).unwrap();
                let is_last = groups.over(&[PP]).rank() == 1;
                let found = predicted(groups);
                assert!(found.iter().all(|logits| logits.is_some() == is_last));
                assert!(!is_last || found == *alone, "other logits with a cache");
            });
        }
    });
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
    llama_with_the_positions_of_3_1_and_packed_documents: "llama-3.1-packed",
    mistral: "mistral",
    mistral_with_packed_documents: "mistral-packed",
    mistral_with_a_tied_head_and_the_positions_of_llama_3_1: "mistral-tied-llama3",
    qwen2: "qwen2",
    qwen2_with_a_window_in_some_layers: "qwen2-window",
    qwen2_with_a_window_and_packed_documents: "qwen2-packed",
    qwen2_with_a_tied_head_and_linear_positions: "qwen2-tied-linear",
    qwen3: "qwen3",
    qwen3_with_yarn: "qwen3-yarn",
    qwen3_with_yarn_and_packed_documents: "qwen3-packed",
    gemma2: "gemma2",
    gemma2_with_packed_documents: "gemma2-packed",
    gemma3: "gemma3",
    gemma3_with_packed_documents: "gemma3-packed",
    gemma3_with_linear_positions_in_layers_without_a_window: "gemma3-linear",
    llama_with_adapters: "llama-lora",
    gemma3_with_adapters_scaled_by_the_root_of_their_rank: "gemma3-lora",
}
