//! What a training step takes of the heap, against the plan.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use brigade_core::plan::{Configuration, Footprint};
use brigade_core::{Batch, Engine, EngineSettings, Groups, OptimizerFactory, Recompute};
use brigade_models::gpt::{Gelu, GptConfig, Targets};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor, TensorData};

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

/// Counts the bytes of each thread.
struct Counting;

impl Counting {
    fn count(bytes: i64) {
        let live = LIVE.get() + bytes;
        LIVE.set(live);
        MOST.set(MOST.get().max(live));
    }
}

// SAFETY: all memory is the system's; the counters are no memory of the heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size() as i64);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size() as i64);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        Self::count(-(layout.size() as i64));
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SEQUENCES: usize = 2;

/// The most that two steps of two micro-batches take of the heap, and what was planned.
fn measured_and_planned(shape: &GptConfig, recompute: Recompute) -> (f64, f64) {
    let before = LIVE.get();
    MOST.set(before);
    let device = brigade_cpu::device();
    let adamw = AdamWConfig::new().build();
    let settings = EngineSettings { recompute, ..EngineSettings::default() };
    let optimizer = OptimizerFactory::new(adamw.clone(), adamw);
    let model = shape.model(1, &device).unwrap();
    let mut engine = Engine::new(model, 1, &optimizer, Groups::alone(), settings).unwrap();
    assert_eq!(shape.costs().unwrap(), engine.chain().costs(), "also without a device");
    let configuration = Configuration {
        units: engine.chain().units(&[]).unwrap(),
        boundary_activations: shape.boundary_activations(SEQUENCES, 4),
        saved_activations: shape.saved_activations(SEQUENCES, 4),
        split: vec![shape.layers + 2],
        micro_batches: 2,
        recompute_every: usize::from(recompute != Recompute::None),
        ..Configuration::default()
    };
    let plan = &Footprint::of(&configuration).unwrap().stages[0].memory;
    for _ in 0..2 {
        MOST.set(LIVE.get());
        let tokens = || {
            let tokens = vec![3i64; SEQUENCES * shape.sequence_length];
            Tensor::<2, Int>::from_data(TensorData::new(tokens, [SEQUENCES, shape.sequence_length]), &device)
        };
        let batch = || {
            Batch::new(tokens(), Targets { tokens: tokens(), mask: None }, SEQUENCES * shape.sequence_length)
        };
        engine.step(vec![batch(), batch()], 1e-3).unwrap();
    }
    ((MOST.get() - before) as f64, plan.peak() as f64)
}

#[test]
fn a_step_takes_what_is_planned_within_a_tenth() {
    let wide = GptConfig {
        vocabulary: 500,
        sequence_length: 64,
        width: 128,
        layers: 3,
        heads: 2,
        tied_head: true,
        activation: Gelu::GeluTanh,
    };
    let shapes = [
        wide.clone(),
        GptConfig { activation: Gelu::Gelu, ..wide.clone() },
        // Mostly scores.
        GptConfig { sequence_length: 256, width: 64, heads: 8, ..wide.clone() },
        // Mostly logits.
        GptConfig { vocabulary: 20_000, layers: 1, tied_head: false, ..wide },
    ];
    for shape in shapes {
        for recompute in [Recompute::None, Recompute::Every(1)] {
            let (measured, planned) = measured_and_planned(&shape, recompute);
            let ratio = measured / planned;
            assert!(
                (0.9..1.1).contains(&ratio),
                "{measured} bytes, {planned} planned of {shape:?}, {recompute:?}"
            );
        }
    }
}
