//! A GPT that learns on a backend, and how its losses follow the CPU's.

use brigade::core::{Batch, DATA, Dtype, Engine, EngineSettings, Groups, OptimizerFactory, Zero};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::backend::{CPU, backends};

const STEPS: usize = 20;
const SEQUENCE: usize = 16;
const SEQUENCES: usize = 4;
const VOCABULARY: usize = 64;

/// The losses of a run on two ranks, each with two micro-batches of [`SEQUENCES`].
fn losses(device: &Device, groups: &Groups) -> Vec<f64> {
    let config = GptConfig {
        vocabulary: VOCABULARY,
        sequence_length: SEQUENCE,
        width: 48,
        layers: 2,
        heads: 4,
        tied_head: true,
        activation: Gelu::Gelu,
        dropout: 0.0,
        initializer_range: 0.02,
    };
    let adamw = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8);
    let optimizer = OptimizerFactory::new(
        adamw.clone().with_weight_decay(0.1).build(),
        adamw.with_weight_decay(0.0).build(),
    );
    let settings = EngineSettings {
        gradient_clipping: Some(1.0),
        zero: Zero { stage: 2, ..Zero::default() },
        ..EngineSettings::default()
    };
    let model = config.model(0, device).unwrap();
    let mut engine = Engine::new(model, 0, &optimizer, groups.clone(), settings).unwrap();
    let micro_batch = |step: usize, number: usize| {
        // Each token follows from the one before: the next of a cycle, from another start in each sequence.
        let tokens = |shift: usize| {
            let token = |i: usize| {
                let (sequence, place) = (i / SEQUENCE, i % SEQUENCE);
                ((step * 16 + number * SEQUENCES + sequence) * 13 + (place + shift) * 5) % VOCABULARY
            };
            let tokens: Vec<i64> = (0..SEQUENCES * SEQUENCE).map(|i| token(i) as i64).collect();
            Tensor::<2, Int>::from_data(TensorData::new(tokens, [SEQUENCES, SEQUENCE]), device)
        };
        let target = Targets { tokens: tokens(1), mask: None };
        Batch::new(tokens(0).into(), target, SEQUENCES * SEQUENCE)
    };
    let rank = groups.over(&DATA).rank();
    let step = |step: usize| {
        let batches = (0..2).map(|k| micro_batch(step, 2 * k + rank)).collect();
        let rate = 3e-3 * ((step + 1) as f64 / 5.0).min(1.0);
        engine.step(batches, rate).unwrap().loss
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn a_gpt_learns_as_on_the_cpu() {
    let reference = CPU.on_threads(1, 2, |device, groups| losses(&device, &groups)).swap_remove(0);
    for backend in backends() {
        let ranks = backend.on_threads(1, 2, |device, groups| losses(&device, &groups));
        // AdamW makes more of a difference than it was, step by step.
        let most = 10.0 * backend.tolerance(Dtype::F32).relative;
        assert_eq!(ranks[0], ranks[1], "both ranks know the same losses");
        for (step, (loss, reference)) in ranks[0].iter().zip(&reference).enumerate() {
            let difference = (loss - reference).abs() / reference;
            assert!(difference < most, "step {step} on {}: {loss}, not {reference}", backend.name);
        }
        assert!(ranks[0][STEPS - 1] < 0.7 * ranks[0][0], "it learns: {:?}", ranks[0]);
    }
}
