//! Decoders against `transformers`: the fixtures hold configurations, weights, logits, losses, gradients and trained weights that `fixtures/make_decoders.py`
//! computed.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use brigade_comm::{Timeouts, threads};
use brigade_core::{
    Batch, DATA, DP, Engine, EngineSettings, Groups, Mesh, NamedTensor, OptimizerFactory, PP, Recompute, Zero,
};
use brigade_hf::{Config, DecoderConfig};
use brigade_models::decoder::{chain, mapping};
use brigade_models::gpt::{ACCURACY, Targets, cross_entropy};
use brigade_models::{Adapters, Documents, Logits, LoraConfig, Stored, Tokens};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::Value;

type Decoder = Engine<Tokens, Logits, Targets>;

const ROWS: usize = 2;
const STEPS: usize = 10;

struct Reference {
    config: DecoderConfig,
    json: Value,
    tensors: BTreeMap<String, Vec<f32>>,
}

/// A parameter's name in Hugging Face's files.
fn in_file(parameter: &str) -> String {
    match mapping().stored(parameter) {
        Stored::Tensor(name) => name,
        other => panic!("{parameter} is {other}"),
    }
}

/// Numbers of a row's positions, in which documents begin and end.
fn bounds(lengths: &[i64]) -> Vec<i64> {
    let mut start = 0;
    let document = |length: &i64| {
        let bounds = [start, start + length];
        start += length;
        bounds.repeat(*length as usize)
    };
    lengths.iter().flat_map(document).collect()
}

impl Reference {
    fn load(case: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoders");
        let read = |extension: &str| std::fs::read(folder.join(format!("{case}.{extension}"))).unwrap();
        let json: Value = serde_json::from_slice(&read("json")).unwrap();
        let bytes = read("safetensors");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let tensors = file.tensors().into_iter().map(|(name, view)| (name, floats(view.data()))).collect();
        let config = Config::from_fields("config.json", json["config"].as_object().unwrap()).unwrap();
        let Config::Decoder(config) = config else { panic!("{case} is no decoder") };
        Self { config, json, tensors }
    }

    /// The adapters, if the model has any.
    fn adapters(&self) -> Adapters {
        let lora = &self.json["lora"];
        let targets = |targets: &Value| serde_json::from_value(targets.clone()).unwrap();
        let config = LoraConfig {
            rank: lora["r"].as_u64().unwrap_or(0) as usize,
            alpha: lora["lora_alpha"].as_f64().unwrap_or(0.0),
            targets: lora.get("target_modules").map_or_else(Vec::new, targets),
            rslora: lora["use_rslora"].as_bool().unwrap_or(false),
            dropout: 0.0,
        };
        config.adapters(&self.config).unwrap()
    }

    fn rows(&self, key: &str) -> Option<Vec<Vec<i64>>> {
        let row = |row: &Value| row.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect();
        Some(self.json[key].as_array()?.iter().map(row).collect())
    }

    fn batch(&self, row: usize, device: &Device) -> Batch<Tokens, Targets> {
        let ids = &self.rows("ids").unwrap()[row];
        let count = ids.len() - 1;
        let tokens =
            |ids: &[i64]| Tensor::<2, Int>::from_data(TensorData::new(ids.to_vec(), [1, count]), device);
        let documents = self.rows("documents").map(|lengths| -> Documents {
            Tensor::from_data(TensorData::new(bounds(&lengths[row]), [1, count, 2]), device)
        });
        let target = Targets { tokens: tokens(&ids[1..]), mask: None };
        Batch::new(Tokens { ids: tokens(&ids[..count]), documents }, target, count)
    }

    fn engine(&self, device: &Device, groups: Groups, settings: EngineSettings) -> Decoder {
        let mut chain = chain(&self.config, &self.adapters(), 20, 0, device).unwrap();
        let tensors = self.tensors.clone();
        chain.load(move |name, _| {
            let name = in_file(name);
            let values = tensors.get(&format!("weights/{name}"));
            Ok(Some(values.unwrap_or_else(|| panic!("there is no {name}")).clone()))
        });
        let adamw = AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(1e-8);
        let optimizer = OptimizerFactory::new(
            adamw.clone().with_weight_decay(0.1).build(),
            adamw.with_weight_decay(0.0).build(),
        );
        let model = chain.loss_with_metrics([ACCURACY], cross_entropy);
        Engine::new(model, 0, &optimizer, groups, settings).unwrap()
    }

    /// Compares tensors with those under `prefix`, by norm(a - b) / norm(b).
    fn compare(&self, prefix: &str, given: &[NamedTensor], limit: f64) {
        let expected = self.tensors.keys().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(given.len(), expected, "as many tensors as there are in the fixture");
        for NamedTensor { name, data } in given {
            let name = in_file(name);
            let reference = &self.tensors[&format!("{prefix}{name}")];
            let given = data.as_slice::<f32>().unwrap();
            assert_eq!(given.len(), reference.len(), "{name}");
            let square = |x: f64| x * x;
            let norm: f64 = reference.iter().map(|b| square(f64::from(*b))).sum();
            let difference: f64 =
                given.iter().zip(reference).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
            // Biases of keys have no gradient: the softmax cancels them.
            let of_keys = name.ends_with("k_proj.bias") && prefix == "gradients/";
            let relative = if of_keys { difference.sqrt() } else { (difference / norm).sqrt() };
            assert!(relative <= limit, "{prefix}{name}: relative difference {relative:e}");
        }
    }
}

fn follows_transformers(case: &str) {
    let device = Device::flex();
    let reference = Reference::load(case);
    let batches = || (0..ROWS).map(|row| reference.batch(row, &device)).collect::<Vec<_>>();

    let mut alone = reference.engine(&device, Groups::alone(), EngineSettings::default());
    let logits: Vec<f32> = batches()
        .into_iter()
        .flat_map(|batch| {
            let predicted = alone.chain().valid().predict(batch.input).unwrap();
            predicted.whole().into_data().try_to_vec::<f32>().unwrap()
        })
        .collect();
    for (index, (a, b)) in logits.iter().zip(&reference.tensors["logits"]).enumerate() {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "logit {index} is {a}, not {b}");
    }

    let (_, gradients) = alone.gradients(&batches(), 0).unwrap();
    reference.compare("gradients/", &gradients, 1e-5);
    let losses: Vec<f64> =
        reference.json["losses"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    for (step, expected) in losses.iter().enumerate() {
        let loss = alone.step(batches(), 1e-3).unwrap().loss;
        assert!(((loss - expected) / expected).abs() <= 1e-5, "step {step}: {loss}, not {expected}");
    }
    let trained = alone.chain().tensors().unwrap();
    reference.compare("trained/", &trained, 1e-4);

    // Two stages of two ranks each, to the bit.
    let recomputed = EngineSettings { recompute: Recompute::Every(1), ..EngineSettings::default() };
    for (stage, settings) in [(1, EngineSettings::default()), (3, recomputed)] {
        std::thread::scope(|scope| {
            for world in threads(4, Timeouts::default()) {
                let (reference, trained, settings) = (&reference, &trained, settings.clone());
                scope.spawn(move || {
                    let device = Device::flex();
                    let mesh = Mesh::new(4, [(PP, 2), (DP, 2)]).unwrap();
                    let groups = brigade_cpu::groups(&world, mesh).unwrap();
                    let settings = EngineSettings { zero: Zero { stage, ..Zero::default() }, ..settings };
                    let row = groups.over(&DATA).rank();
                    let mut engine = reference.engine(&device, groups, settings);
                    for _ in 0..STEPS {
                        engine.step(vec![reference.batch(row, &device)], 1e-3).unwrap();
                    }
                    let weights = engine.tensors(0).unwrap();
                    if world.rank() == 0 {
                        for (a, b) in weights.iter().zip(trained) {
                            assert!(a.name == b.name && a.data == b.data, "{} differs", a.name);
                        }
                    }
                });
            }
        });
    }
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
