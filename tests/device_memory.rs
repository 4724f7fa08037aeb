//! What a training step takes of a device's memory, against the plan. A program of its own: a device's pools belong to the
//! whole process.

#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "backends/backend.rs"]
mod backend;

use brigade::core::plan::{Configuration, Footprint};
use brigade::core::{Batch, DATA, Engine, EngineSettings, Float, Groups, OptimizerFactory, Recompute, Zero};
use brigade::models::Tokens;
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

use backend::backends;

const SEQUENCES: usize = 2;

/// Mostly logits.
const SHAPE: GptConfig = GptConfig {
    vocabulary: 12_000,
    sequence_length: 256,
    width: 256,
    layers: 2,
    heads: 4,
    tied_head: true,
    activation: Gelu::GeluTanh,
    dropout: 0.0,
};

/// ZeRO-3 and recomputation of all blocks, as the plan's goal has it.
fn settings() -> EngineSettings {
    EngineSettings {
        recompute: Recompute::Every(1),
        zero: Zero { stage: 3, ..Zero::default() },
        ..EngineSettings::default()
    }
}

/// A micro-batch whose tokens differ.
fn batch(device: &Device) -> Batch<Tokens, Targets> {
    let tokens = || {
        let tokens = (0..SEQUENCES * SHAPE.sequence_length).map(|i| (i * 7919 % SHAPE.vocabulary) as i64);
        let data = TensorData::new(tokens.collect::<Vec<_>>(), [SEQUENCES, SHAPE.sequence_length]);
        Tensor::<2, Int>::from_data(data, device)
    };
    Batch::new(tokens().into(), Targets { tokens: tokens(), mask: None }, SEQUENCES * SHAPE.sequence_length)
}

fn planned(units: Vec<brigade::core::plan::UnitSize>, dp: usize) -> u64 {
    let host = brigade_cpu::device();
    let meter = brigade_cpu::heap_meter().unwrap();
    let model = SHAPE.model(1, &host).unwrap();
    let activations = model.measure_activations(batch(&host), Float::F32, false, Some(&*meter)).unwrap();
    let configuration = Configuration {
        units,
        boundary_activations: activations.boundary_activations,
        saved_activations: activations.saved_activations,
        split: vec![SHAPE.layers + 2],
        dp,
        micro_batches: 2,
        zero_stage: 3,
        reshard: settings().zero.reshard_policy(1),
        prefetch: settings().zero.prefetch,
        recompute_every: 1,
        ..Configuration::default()
    };
    Footprint::of(&configuration).unwrap().stages[0].memory.peak()
}

/// Bytes that the device's pools have taken after two steps, and what was planned.
fn taken_and_planned(device: &Device, groups: &Groups) -> (f64, f64) {
    let adamw = AdamWConfig::new().build();
    let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
    let model = SHAPE.model(1, device).unwrap();
    let mut engine = Engine::new(model, 1, &optimizer, groups.clone(), settings()).unwrap();
    let planned = planned(engine.chain().units(&[]).unwrap(), groups.over(&DATA).size());
    for _ in 0..2 {
        engine.step(vec![batch(device), batch(device)], 1e-3).unwrap();
    }
    (device.memory_pool_usage().unwrap().bytes_reserved as f64, planned as f64)
}

/// What pools may take of the plan: never less, and with the pages that are not full, which weigh much beside a small
/// model, 1.55 of it on Mesa's software adapter.
const TAKEN: std::ops::Range<f64> = 0.95..1.75;

#[test]
fn pools_take_what_is_planned_and_pages_that_are_not_full() {
    for backend in backends() {
        let (taken, planned) =
            backend.on_threads(1, 1, |device, groups| taken_and_planned(&device, &groups)).swap_remove(0);
        let ratio = taken / planned;
        println!("{}: {taken} bytes, {planned} planned: {ratio:.3}", backend.name);
        assert!(TAKEN.contains(&ratio), "{}: {taken} bytes, {planned} planned", backend.name);
    }
}
