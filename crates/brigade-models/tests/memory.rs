//! What a training step takes of the heap, against the plan.

#![allow(clippy::unwrap_used)]

mod counting;

use std::cell::Cell;

use brigade_core::plan::{Configuration, Footprint};
use brigade_core::{
    Activation, Batch, Block, Chain, Dtype, Engine, EngineSettings, Groups, MeasuredActivations, Model,
    OptimizerFactory, ParameterGroup, Precision, Recompute,
};
use brigade_hf::{Config, Task};
use brigade_models::classifier::SequenceClassifier;
use brigade_models::encoder::Encoder;
use brigade_models::gpt::GptConfig;
use brigade_models::{CausalLm, LoraConfig, Tokens};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use counting::{Exact, LIVE, MOST, batch, measure, number_types, shapes};

/// The most that two steps of two micro-batches take of the heap, and what was planned.
fn taken_and_planned(shape: &GptConfig, recompute: Recompute, compute: Dtype) -> (f64, f64) {
    let activations = measure(shape, compute, &Exact(Cell::new(0)));
    let before = LIVE.get();
    let device = brigade_cpu::device();
    let adamw = AdamWConfig::new().build();
    let precision = Precision { compute, ..Precision::default() };
    let settings = EngineSettings { recompute, precision, ..EngineSettings::default() };
    let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
    let model = shape.model(1, &device).unwrap();
    let mut engine = Engine::new(model, 1, &optimizer, Groups::single_rank(), settings).unwrap();
    assert_eq!(shape.costs().unwrap(), engine.chain().costs(), "also without a device");
    let configuration = Configuration {
        units: engine.chain().units(&[]).unwrap(),
        boundary_activations: activations.boundary_activations,
        saved_activations: activations.saved_activations,
        split: vec![shape.layers + 2],
        micro_batches: 2,
        recompute_every: usize::from(recompute != Recompute::None),
        compute_bytes: compute.bytes(),
        ..Configuration::default()
    };
    let plan = &Footprint::of(&configuration).unwrap().stages[0].memory;
    for _ in 0..2 {
        MOST.set(LIVE.get());
        engine.step(vec![batch(shape), batch(shape)], 1e-3).unwrap();
    }
    ((MOST.get() - before) as f64, plan.peak() as f64)
}

#[test]
fn a_model_stays_as_it_is_when_it_is_measured() {
    let shape = &shapes()[0];
    let tensors = |measured: bool| {
        let mut model = shape.model(1, &brigade_cpu::device()).unwrap();
        if measured {
            model.measure_activations(batch(shape), Dtype::Bf16, false, Some(&Exact(Cell::new(0)))).unwrap();
        }
        model.chain_mut().initialize(1).unwrap();
        model.chain().tensors().unwrap()
    };
    assert!(tensors(true) == tensors(false));
}

/// A block with running state, which each forward in training changes.
#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
}

impl Block for Normed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.norm.forward(x)
    }
}

#[test]
fn running_state_stays_as_it_is_when_it_is_measured() {
    let device = brigade_cpu::device();
    let block = Normed { norm: BatchNormConfig::new(4).init(&device.clone().autodiff()) };
    let mean = || block.norm.running_mean.value_sync().into_data();
    let input = || Tensor::<2>::ones([8, 4], &device);
    let before = mean();
    let model = Chain::new().then("norm", block.clone()).loss(|output: Tensor<2>, _: ()| output.sum());
    let meter = Exact(Cell::new(0));
    for compute in [Dtype::F32, Dtype::Bf16] {
        model.measure_activations(Batch::new(input(), (), 8), compute, false, Some(&meter)).unwrap();
        assert_eq!(mean(), before, "{compute:?}");
    }
    drop(block.forward(input().autodiff()));
    assert_ne!(mean(), before, "a forward in training changes it");
}

#[test]
fn a_step_takes_what_is_planned_within_a_twentieth() {
    for shape in shapes() {
        for recompute in [Recompute::None, Recompute::Every(1)] {
            for compute in number_types(&shape) {
                let (taken, planned) = taken_and_planned(&shape, recompute, *compute);
                let ratio = taken / planned;
                assert!(
                    (0.95..1.05).contains(&ratio),
                    "{taken} bytes, {planned} planned of {shape:?}, {recompute:?}, {compute:?}"
                );
            }
        }
    }
}

/// Compares what smaller models say of a large one with what it needs when it is measured itself.
#[track_caller]
fn smaller_models_tell<O: Activation, T: Clone + 'static>(
    whole: Model<Tokens, O, T>,
    batch: impl Fn() -> Batch<Tokens, T>,
    compute: Dtype,
    what: &str,
) {
    let meter = Exact(Cell::new(0));
    let found = whole.measure_activations(batch(), compute, true, Some(&meter)).unwrap();
    let itself = whole.measured_by(|_| None);
    let exact = itself.measure_activations(batch(), compute, true, Some(&meter)).unwrap();
    assert_eq!(found.boundary_activations, exact.boundary_activations, "{what}");
    for (found, exact) in found.saved_activations.iter().zip(&exact.saved_activations) {
        let near = |found: u64, exact: u64, share: f64, bytes: f64| {
            found.abs_diff(exact) as f64 <= share * exact as f64 + bytes
        };
        let is_near = near(found.saved, exact.saved, 0.005, 32e3)
            && near(found.output, exact.output, 0.005, 32e3)
            && near(found.deferred, exact.deferred, 0.005, 32e3)
            // Products pack factors into a few MiB, whatever their size.
            && near(found.peak, exact.peak, 0.03, 4e6);
        assert!(is_near, "{found:?}, {exact:?}: {what}, {compute:?}");
    }
}

#[test]
fn few_samples_tell_what_many_need() {
    let (device, meter) = (brigade_cpu::device(), Exact(Cell::new(0)));
    for shape in shapes() {
        let model = shape.model(1, &device).unwrap().measured_by(|_| None);
        let of = |samples: usize| {
            let batch = shape.blank_batch(samples, &device);
            model.measure_activations(batch, Dtype::F32, false, Some(&meter)).unwrap()
        };
        let (told, measured) = (MeasuredActivations::of_samples(24, [(4, of(4)), (8, of(8))]), of(24));
        assert_eq!(told.boundary_activations, measured.boundary_activations, "{shape:?}");
        for (told, measured) in told.saved_activations.iter().zip(&measured.saved_activations) {
            let is_near = |told: u64, measured: u64, share: f64| {
                told.abs_diff(measured) as f64 <= share * measured as f64 + 4e6
            };
            assert!(is_near(told.saved, measured.saved, 0.02), "{told:?}, {measured:?}: {shape:?}");
            assert!(is_near(told.peak, measured.peak, 0.05), "{told:?}, {measured:?}: {shape:?}");
        }
    }
}

fn config(fields: &serde_json::Value) -> Config {
    Config::from_fields("config.json", fields.as_object().unwrap()).unwrap()
}

fn llama() -> Config {
    config(&serde_json::json!({
        "model_type": "llama", "vocab_size": 16_000, "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
        "num_labels": 3, "pad_token_id": 0,
    }))
}

#[test]
fn smaller_models_tell_what_a_large_one_needs() {
    let device = brigade_cpu::device();
    let lora = LoraConfig { rank: 16, ..LoraConfig::default() };
    for (length, adapters, compute) in [
        (512, LoraConfig::default(), Dtype::F32),
        (512, lora, Dtype::F32),
        (256, LoraConfig::default(), Dtype::Bf16),
    ] {
        let model = CausalLm::from_config(&llama(), Some(length)).unwrap().with_adapters(&adapters).unwrap();
        let what = format!("{length} tokens, {adapters:?}");
        let whole = model.model(1, &device).unwrap();
        smaller_models_tell(whole, || model.blank_batch(4, &device), compute, &what);
    }
}

#[test]
fn smaller_models_are_frozen_where_the_large_one_is() {
    let device = brigade_cpu::device();
    let model = CausalLm::from_config(&llama(), Some(512)).unwrap();
    let mut whole = model.model(1, &device).unwrap();
    let frozen = ["embed*", "layers.0.*", "layers.1.mlp.*"]
        .map(|pattern| ParameterGroup { frozen: true, ..ParameterGroup::matching(pattern) });
    whole.freeze(&frozen).unwrap();
    let of = |whole: &Model<_, _, _>| {
        let batch = model.blank_batch(4, &device);
        let measured =
            whole.measure_activations(batch, Dtype::F32, true, Some(&Exact(Cell::new(0)))).unwrap();
        measured.saved_activations[1].saved
    };
    let trained = of(&model.model(1, &device).unwrap());
    assert!(of(&whole) < trained / 10, "{} bytes of a frozen block, {trained} of a trained one", of(&whole));
    smaller_models_tell(whole, || model.blank_batch(4, &device), Dtype::F32, "frozen");
}

#[test]
fn smaller_models_tell_what_an_encoder_or_a_classifier_needs() {
    let device = brigade_cpu::device();
    let length = 256;
    let bert = config(&serde_json::json!({
        "model_type": "bert", "vocab_size": 16_000, "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 2, "num_attention_heads": 12, "max_position_embeddings": 256, "num_labels": 3,
    }));
    for compute in [Dtype::F32, Dtype::Bf16] {
        let model = Encoder::from_config(&bert, Task::MaskedLanguageModel, Some(length)).unwrap();
        let batch = || model.blank_batch(4, 160, &device);
        smaller_models_tell(model.masked_lm(1, &device), batch, compute, "masked tokens");
    }
    for config in [bert, llama()] {
        let model = SequenceClassifier::from_config(&config, Some(length)).unwrap();
        let input = || -> Tokens { Tensor::zeros([4, length], &device).into() };
        let batch = || Batch::new(input(), Tensor::zeros([4], &device), 4);
        smaller_models_tell(model.classification(1, &device).unwrap(), batch, Dtype::F32, "labels");
    }
}

/// Four times as much for rows four times as long: scores would take sixteen times as much.
#[test]
fn a_step_with_dropout_of_attention_takes_memory_that_grows_as_the_row_does() {
    let taken = |sequence_length| {
        let [_, _, scores, _] = shapes();
        taken_and_planned(&GptConfig { sequence_length, dropout: 0.1, ..scores }, Recompute::None, Dtype::F32)
            .0
    };
    let [short, long] = [256, 1024].map(taken);
    assert!(long < 4.2 * short, "{short} and {long} bytes");
}
