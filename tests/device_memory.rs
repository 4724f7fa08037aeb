//! What a training step takes of a device's memory, against the plan. A program of its own: a device's pools belong to the
//! whole process.

#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "backends/backend.rs"]
mod backend;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use brigade::core::plan::{Configuration, Footprint};
use brigade::core::{Batch, DATA, Dtype, Engine, EngineSettings, Groups, OptimizerFactory, Recompute, Zero};
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
    initializer_range: 0.02,
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
    let activations = model.measure_activations(batch(&host), Dtype::F32, false, Some(&*meter)).unwrap();
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

/// Bytes of a device, and what was planned.
struct Memory {
    /// Most that tensors had at a time in two steps.
    in_use: f64,
    /// What the pools have taken after them.
    reserved: f64,
    planned: f64,
}

/// The most bytes in use while something runs, looked at every millisecond.
fn most_in_use(device: &Device, run: impl FnOnce()) -> u64 {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Relaxed) {
                most = most.max(device.memory_pool_usage().unwrap().bytes_in_use);
                thread::sleep(Duration::from_millis(1));
            }
            most
        });
        run();
        is_done.store(true, Relaxed);
        watcher.join().unwrap()
    })
}

fn memory_of_steps(device: &Device, groups: &Groups) -> Memory {
    let adamw = AdamWConfig::new().build();
    let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
    let model = SHAPE.model(1, device).unwrap();
    let mut engine = Engine::new(model, 1, &optimizer, groups.clone(), settings()).unwrap();
    let planned = planned(engine.chain().units(&[]).unwrap(), groups.over(&DATA).size());
    let in_use = most_in_use(device, || {
        for _ in 0..2 {
            engine.step(vec![batch(device), batch(device)], 1e-3).unwrap();
        }
    });
    let reserved = device.memory_pool_usage().unwrap().bytes_reserved;
    Memory { in_use: in_use as f64, reserved: reserved as f64, planned: planned as f64 }
}

/// What tensors may take of the plan: its goal is 10%. The watcher mostly misses the very peak: of 23 runs, one saw 1.07, the others 0.90 to 0.96.
const IN_USE: std::ops::Range<f64> = 0.85..1.1;

/// What pools may take of the plan, with the pages that are not full. They weigh much beside a small model: on Mesa's
/// software adapter there are seven of 26 MB, and 1.8 of the plan are taken.
const RESERVED: std::ops::Range<f64> = 0.95..1.9;

#[test]
fn pools_take_what_is_planned_and_pages_that_are_not_full() {
    for backend in backends() {
        let Memory { in_use, reserved, planned } =
            backend.on_threads(1, 1, |device, groups| memory_of_steps(&device, &groups)).swap_remove(0);
        let text = format!(
            "{}: {in_use} bytes in use, {reserved} in pools, {planned} planned: {:.3}, {:.3}",
            backend.name,
            in_use / planned,
            reserved / planned
        );
        println!("{text}");
        assert!(IN_USE.contains(&(in_use / planned)) && RESERVED.contains(&(reserved / planned)), "{text}");
    }
}
