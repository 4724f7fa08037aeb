//! The GPT against PyTorch: the fixtures hold weights, batches, losses and gradients that
//! `fixtures/make_gpt2_reference.py` computed.

#![allow(clippy::unwrap_used)]

mod cached;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brigade_comm::{Timeouts, threads};
use brigade_core::{
    Batch, DATA, DP, Engine, EngineSettings, Groups, Mesh, NamedTensor, OptimizerFactory, PP, Zero,
};
use brigade_models::gpt::{Gelu, GptConfig, Targets, mapping};
use brigade_models::{LoadWeights, Stored, Strict};
use brigade_models::{Logits, Tokens};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::Value;

type Gpt = Engine<Tokens, Logits, Targets>;
type GptBatch = Batch<Tokens, Targets>;

struct Reference {
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

impl Reference {
    fn load(variant: &str) -> Self {
        let path = |extension: &str| {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/fixtures")
                .join(format!("{variant}.{extension}"))
        };
        let json = serde_json::from_slice(&std::fs::read(path("json")).unwrap()).unwrap();
        let bytes = std::fs::read(path("safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let tensors = file.tensors().into_iter().map(|(name, view)| (name, floats(view.data()))).collect();
        Self { json, tensors }
    }

    fn numbers(&self, key: &str) -> Vec<f64> {
        self.json[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    }

    fn config(&self) -> GptConfig {
        let size = |key: &str| self.json["config"][key].as_u64().unwrap() as usize;
        GptConfig {
            vocabulary: size("vocab_size"),
            sequence_length: size("n_positions"),
            width: size("n_embd"),
            layers: size("n_layer"),
            heads: size("n_head"),
            tied_head: self.json["config"]["tie_word_embeddings"].as_bool().unwrap(),
            activation: match self.json["config"]["activation_function"].as_str().unwrap() {
                "gelu" => Gelu::Gelu,
                _ => Gelu::GeluTanh,
            },
            dropout: 0.0,
            initializer_range: 0.02,
        }
    }

    fn engine(&self, device: &Device) -> Gpt {
        self.engine_of(device, Groups::single_rank(), EngineSettings::default())
    }

    fn engine_of(&self, device: &Device, groups: Groups, settings: EngineSettings) -> Gpt {
        let mut model = self.config().model(0, device).unwrap();
        let tensors = self.tensors.clone();
        model.chain_mut().load(move |name, _| {
            let name = in_file(name);
            Ok(tensors.get(&format!("weights/{name}")).cloned())
        });
        let adamw = AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(1e-8);
        let optimizer = OptimizerFactory::new(
            adamw.clone().with_weight_decay(0.1).build(),
            adamw.with_weight_decay(0.0).build(),
        );
        let settings = EngineSettings { gradient_clipping: Some(1.0), ..settings };
        Engine::new(model, 0, &optimizer, groups, settings).unwrap()
    }

    /// Micro-batches of `rows` rows of batch `index`.
    fn batches(&self, index: usize, rows: usize, device: &Device) -> Vec<GptBatch> {
        let batch = &self.json["batches"][index];
        let table = |key: &str| -> Vec<Vec<i64>> {
            let number = |v: &Value| v.as_i64().unwrap_or_else(|| i64::from(v.as_bool().unwrap()));
            let row = |row: &Value| row.as_array().unwrap().iter().map(number).collect();
            batch[key].as_array().unwrap().iter().map(row).collect()
        };
        let (inputs, targets, valid) = (table("inputs"), table("targets"), table("valid"));
        let ints = |rows: &[Vec<i64>]| {
            Tensor::<2, Int>::from_data(TensorData::new(rows.concat(), [rows.len(), rows[0].len()]), device)
        };
        let chunks = inputs.chunks(rows).zip(targets.chunks(rows)).zip(valid.chunks(rows));
        chunks
            .map(|((inputs, targets), valid)| {
                Batch::new(
                    ints(inputs).into(),
                    Targets { tokens: ints(targets), mask: Some(ints(valid).float()) },
                    valid.concat().iter().sum::<i64>() as usize,
                )
            })
            .collect()
    }

    /// Compares tensors with those under `prefix`, by norm(a - b) / norm(b), leaving out the ranges
    /// whose true gradient is zero (attention's key biases, which softmax cancels).
    fn compare(&self, prefix: &str, given: &[NamedTensor], limit: f64) {
        let expected = self.tensors.keys().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(given.len(), expected, "as many tensors as PyTorch has");
        for NamedTensor { name, data } in given {
            let name = in_file(name);
            let reference = &self.tensors[&format!("{prefix}{name}")];
            let skip =
                self.json["undetermined"].as_array().unwrap().iter().find(|u| u["tensor"] == name.as_str());
            let skip = skip
                .map_or(0..0, |u| u["start"].as_u64().unwrap() as usize..u["end"].as_u64().unwrap() as usize);
            let given = data.as_slice::<f32>().unwrap();
            assert_eq!(given.len(), reference.len(), "{name}");
            let (mut difference, mut norm) = (0.0, 0.0);
            for i in (0..given.len()).filter(|i| !skip.contains(i)) {
                difference += (f64::from(given[i]) - f64::from(reference[i])).powi(2);
                norm += f64::from(reference[i]).powi(2);
            }
            let relative = (difference / norm).sqrt();
            assert!(relative <= limit, "{prefix}{name}: relative difference {relative:e}");
        }
    }
}

fn close(given: f64, reference: f64, limit: f64, what: &str) {
    let relative = ((given - reference) / reference).abs();
    assert!(relative <= limit, "{what}: {given} is not PyTorch's {reference} ({relative:e})");
}

fn follows_pytorch(variant: &str) {
    let device = Device::default();
    let reference = Reference::load(variant);
    let GptConfig { sequence_length, vocabulary, .. } = reference.config();
    cached::same_with_a_cache(reference.engine(&device).chain(), sequence_length, vocabulary);
    for rows in [4, 2, 1] {
        let (loss, gradients) =
            reference.engine(&device).gradients(&reference.batches(0, rows, &device), 0).unwrap();
        close(loss, reference.json["loss"].as_f64().unwrap(), 1e-5, "loss");
        reference.compare("gradients/", &gradients, 1e-5);
    }
    for rows in [4, 1] {
        let mut engine = reference.engine(&device);
        let steps = reference.numbers("losses").into_iter().zip(reference.numbers("gradient_norms"));
        for (step, (loss, norm)) in steps.enumerate() {
            let report = engine.step(reference.batches(step, rows, &device), 1e-2).unwrap();
            close(report.loss, loss, 1e-4, "loss");
            close(report.grad_norm, norm, 1e-4, "gradient norm");
        }
        reference.compare("final/", &engine.chain().tensors().unwrap(), 1e-4);
    }
}

#[test]
fn tied_head_follows_pytorch() {
    follows_pytorch("tied-gelu");
}

#[test]
fn untied_head_follows_pytorch() {
    follows_pytorch("untied-gelu");
}

#[test]
fn tanh_gelu_follows_pytorch() {
    follows_pytorch("tied-gelu_tanh");
}

/// Two stages of two ranks each under ZeRO-3 follow PyTorch's losses, gradient norms and final weights.
#[test]
fn a_composed_mesh_follows_pytorch() {
    let reference = Reference::load("tied-gelu");
    std::thread::scope(|scope| {
        for world in threads(4, Timeouts::default()) {
            let reference = &reference;
            scope.spawn(move || {
                let device = Device::default();
                let groups = brigade_cpu::groups(&world, Mesh::new(4, [(PP, 2), (DP, 2)]).unwrap()).unwrap();
                let zero = Zero { stage: 3, ..Zero::default() };
                let settings = EngineSettings { zero, ..EngineSettings::default() };
                let mut engine = reference.engine_of(&device, groups.clone(), settings);
                let steps = reference.numbers("losses").into_iter().zip(reference.numbers("gradient_norms"));
                for (step, (loss, norm)) in steps.enumerate() {
                    let batches = reference.batches(step, 1, &device).into_iter().enumerate();
                    let own = batches.filter(|(number, _)| number % 2 == groups.over(&DATA).rank());
                    let report = engine.step(own.map(|(_, batch)| batch).collect(), 1e-2).unwrap();
                    close(report.loss, loss, 1e-4, "loss");
                    close(report.grad_norm, norm, 1e-4, "gradient norm");
                }
                let weights = engine.tensors(3).unwrap();
                if world.rank() == 3 {
                    reference.compare("final/", &weights, 1e-4);
                }
            });
        }
    });
}

#[test]
fn a_saved_file_loads_again_with_hugging_face_names() {
    let device = Device::default();
    let reference = Reference::load("tied-gelu");
    let tensors = reference.engine(&device).chain().tensors().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("model.safetensors");
    brigade_models::save_safetensors(&path, &tensors, &mapping()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let mut found: Vec<String> =
        SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(str::to_owned).collect();
    found.sort();
    let mut expected: Vec<String> = reference
        .tensors
        .keys()
        .filter_map(|name| name.strip_prefix("weights/"))
        .map(str::to_owned)
        .collect();
    expected.sort();
    assert_eq!(found, expected);

    let mut chain = reference.config().chain(99, &device).unwrap();
    chain.load_weights(&path, &mapping(), Strict::Parameters).unwrap();
    assert!(chain.tensors().unwrap_err().to_string().contains("initialize"));
    chain.initialize(99).unwrap();
    for (a, b) in chain.tensors().unwrap().iter().zip(&tensors) {
        assert_eq!((&a.name, &a.data), (&b.name, &b.data));
    }
}

#[test]
fn a_file_of_another_model_is_refused_by_name() {
    let device = Device::default();
    let reference = Reference::load("tied-gelu");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    brigade_models::save_safetensors(
        &path,
        &reference.engine(&device).chain().tensors().unwrap(),
        &mapping(),
    )
    .unwrap();
    let load = |config: GptConfig| {
        let mut chain = config.chain(0, &device).unwrap();
        chain.load_weights(&path, &mapping(), Strict::Parameters).unwrap_err().to_string()
    };
    let wider = load(GptConfig { width: 48, ..reference.config() });
    assert!(
        wider.contains("`wpe.weight` is F32 [16, 24], but the model needs F32, F16 or BF16 [16, 48]"),
        "{wider}"
    );
    let deeper = load(GptConfig { layers: 4, ..reference.config() });
    assert!(deeper.contains("has no tensor `h.3."), "{deeper}");
    std::fs::write(&path, b"not weights").unwrap();
    assert!(load(reference.config()).contains("is not a complete safetensors file"));
}
