//! A fixture, and the comparison of a model with it.

use std::collections::BTreeMap;
use std::path::Path;

use brigade_comm::{Timeouts, threads};
use brigade_core::{
    Activation, Batch, Chain, DATA, DP, Engine, EngineSettings, Groups, Mesh, Model, NamedTensor,
    OptimizerFactory, PP, Recompute, Zero,
};
use brigade_hf::Config;
use brigade_models::gpt::Targets;
use brigade_models::{Documents, LoraConfig, Stored, Tokens, WeightsMapping};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::Value;

pub const ROWS: usize = 2;
/// The length of padded rows.
pub const LENGTH: usize = 15;
const STEPS: usize = 10;

#[derive(Clone)]
pub struct Reference {
    pub config: Config,
    pub json: Value,
    pub mapping: WeightsMapping,
    tensors: BTreeMap<String, Vec<f32>>,
}

/// Numbers of a row's positions, in which documents begin and end: `[1, positions, 2]`.
pub fn documents(lengths: &[i64], device: &Device) -> Documents {
    let mut start = 0;
    let document = |length: &i64| {
        let bounds = [start, start + length];
        start += length;
        bounds.repeat(*length as usize)
    };
    let bounds: Vec<i64> = lengths.iter().flat_map(document).collect();
    let positions = bounds.len() / 2;
    Tensor::from_data(TensorData::new(bounds, [1, positions, 2]), device)
}

/// A row of numbers.
pub fn row(numbers: &[i64], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), [1, numbers.len()]), device)
}

/// A row of a fixture, of one document or several, padded by tokens that see themselves alone.
pub fn padded(reference: &Reference, index: usize, device: &Device) -> Tokens {
    let with = |mut numbers: Vec<i64>, value| {
        numbers.resize(LENGTH, value);
        row(&numbers, device)
    };
    let ids = reference.rows("ids").unwrap().swap_remove(index);
    let packed = reference.rows("documents").map(|mut rows| rows.swap_remove(index));
    let is_alone = packed.is_none() && ids.len() == LENGTH;
    let mut lengths = packed.unwrap_or_else(|| vec![ids.len() as i64]);
    lengths.resize(lengths.len() + LENGTH - ids.len(), 1);
    let documents = (!is_alone).then(|| documents(&lengths, device));
    let types = reference.rows("types").map(|mut types| with(types.swap_remove(index), 0));
    Tokens { ids: with(ids, 0), documents, types }
}

/// The tokens to predict in a padded row, and how many count.
pub fn targets(reference: &Reference, index: usize, device: &Device) -> (Targets, usize) {
    let mut targets = reference.rows("targets").unwrap().swap_remove(index);
    targets.resize(LENGTH, -100);
    let valid: Vec<f32> = targets.iter().map(|target| f32::from(u8::from(*target >= 0))).collect();
    let tokens: Vec<i64> = targets.iter().map(|target| (*target).max(0)).collect();
    let mask = Some(Tensor::<1>::from_floats(&valid[..], device).reshape([1, LENGTH]));
    let count = valid.iter().filter(|valid| **valid > 0.0).count();
    (Targets { tokens: row(&tokens, device), mask }, count)
}

/// The adapters of a fixture, if it has any.
pub fn lora(reference: &Reference) -> LoraConfig {
    let lora = &reference.json["lora"];
    let targets = |targets: &Value| serde_json::from_value(targets.clone()).unwrap();
    LoraConfig {
        rank: lora["r"].as_u64().unwrap_or(0) as usize,
        alpha: lora["lora_alpha"].as_f64().unwrap_or(0.0),
        targets: lora.get("target_modules").map_or_else(Vec::new, targets),
        rslora: lora["use_rslora"].as_bool().unwrap_or(false),
        dropout: 0.0,
    }
}

impl Reference {
    /// Of a folder of fixtures. The mapping is that of the model for a configuration.
    pub fn load(folder: &str, case: &str, mapping: impl FnOnce(&Config) -> WeightsMapping) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
        let read = |extension: &str| std::fs::read(folder.join(format!("{case}.{extension}"))).unwrap();
        let json: Value = serde_json::from_slice(&read("json")).unwrap();
        let bytes = read("safetensors");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let tensors = file.tensors().into_iter().map(|(name, view)| (name, floats(view.data()))).collect();
        let config = Config::from_fields("config.json", json["config"].as_object().unwrap()).unwrap();
        Self { mapping: mapping(&config), config, json, tensors }
    }

    pub fn rows(&self, key: &str) -> Option<Vec<Vec<i64>>> {
        let row = |row: &Value| row.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect();
        Some(self.json[key].as_array()?.iter().map(row).collect())
    }

    /// A parameter's name in Hugging Face's files, where GPT-2's may have a prefix.
    fn in_file(&self, parameter: &str) -> String {
        match self.mapping.stored(parameter) {
            Stored::Tensor(name) if self.tensors.contains_key(&format!("weights/{name}")) => name,
            Stored::Tensor(name) => format!("transformer.{name}"),
            other => panic!("{parameter} is {other}"),
        }
    }

    /// Gives a chain the weights of the fixture.
    pub fn with_weights<I: Activation, O: Activation>(&self, mut chain: Chain<I, O>) -> Chain<I, O> {
        let own = self.clone();
        chain.load(move |name, _| {
            let values = own.tensors.get(&format!("weights/{}", own.in_file(name)));
            Ok(Some(values.unwrap_or_else(|| panic!("there is no {name}")).clone()))
        });
        chain
    }

    /// Compares tensors with those under `prefix`, by norm(a - b) / norm(b).
    fn compare(&self, prefix: &str, given: &[NamedTensor], limit: f64) {
        let expected = self.tensors.keys().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(given.len(), expected, "as many tensors as there are in the fixture");
        for NamedTensor { name, data } in given {
            let name = self.in_file(name);
            let reference = &self.tensors[&format!("{prefix}{name}")];
            let given = data.as_slice::<f32>().unwrap();
            assert_eq!(given.len(), reference.len(), "{name}");
            let square = |x: f64| x * x;
            let norm: f64 = reference.iter().map(|b| square(f64::from(*b))).sum();
            let difference: f64 =
                given.iter().zip(reference).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
            // Biases of keys have no gradient: the softmax cancels them.
            let of_keys = ["k_proj.bias", "self.key.bias"].iter().any(|end| name.ends_with(end));
            let relative = match of_keys && prefix == "gradients/" {
                true => difference.sqrt(),
                false => (difference / norm).sqrt(),
            };
            assert!(relative <= limit, "{prefix}{name}: relative difference {relative:e}");
        }
    }
}

fn engine<I: Activation + Clone, O: Activation, T: Send + Clone + 'static>(
    model: Model<I, O, T>,
    groups: Groups,
    settings: EngineSettings,
    epsilon: f32,
) -> Engine<I, O, T> {
    let adamw = AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(epsilon);
    let optimizer = OptimizerFactory::new(
        adamw.clone().with_weight_decay(0.1).build(),
        adamw.with_weight_decay(0.0).build(),
    );
    Engine::new(model, 0, &optimizer, groups, settings).unwrap()
}

/// Compares logits, gradients, losses and trained weights with the fixture's, and trains on two stages of two ranks to the same bits. `logits`: those of an output that count.
pub fn follows<I: Activation + Clone, O: Activation, T: Send + Clone + 'static>(
    reference: &Reference,
    model: impl Fn(&Device) -> Model<I, O, T> + Sync,
    batch: impl Fn(usize, &Device) -> Batch<I, T> + Sync,
    mut logits: impl FnMut(O) -> Tensor<2>,
) {
    let device = Device::flex();
    let epsilon = reference.json["epsilon"].as_f64().unwrap_or(1e-8) as f32;
    let batches = || (0..ROWS).map(|row| batch(row, &device)).collect::<Vec<_>>();

    let mut alone = engine(model(&device), Groups::single_rank(), EngineSettings::default(), epsilon);
    let given: Vec<f32> = batches()
        .into_iter()
        .flat_map(|batch| {
            let predicted = alone.chain().valid().predict(batch.input).unwrap();
            logits(predicted).into_data().try_to_vec::<f32>().unwrap()
        })
        .collect();
    assert_eq!(given.len(), reference.tensors["logits"].len());
    for (index, (a, b)) in given.iter().zip(&reference.tensors["logits"]).enumerate() {
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
                let (trained, settings, model, batch) = (&trained, settings.clone(), &model, &batch);
                scope.spawn(move || {
                    let device = Device::flex();
                    let mesh = Mesh::new(4, [(PP, 2), (DP, 2)]).unwrap();
                    let groups = brigade_cpu::groups(&world, mesh).unwrap();
                    let settings = EngineSettings { zero: Zero { stage, ..Zero::default() }, ..settings };
                    let row = groups.over(&DATA).rank();
                    let mut engine = engine(model(&device), groups, settings, epsilon);
                    for _ in 0..STEPS {
                        engine.step(vec![batch(row, &device)], 1e-3).unwrap();
                    }
                    let weights = engine.tensors(0).unwrap();
                    if world.rank() == 0 {
                        assert_eq!(weights.len(), trained.len());
                        for (a, b) in weights.iter().zip(trained) {
                            assert!(a.name == b.name && a.data == b.data, "{} differs", a.name);
                        }
                    }
                });
            }
        });
    }
}
