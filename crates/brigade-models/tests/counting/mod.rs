//! What a thread takes of the heap, counted by the program's allocator, and models to measure.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use brigade_core::{Batch, Dtype, HeapMeter, MeasuredActivations};
use brigade_models::Tokens;
use brigade_models::gpt::{Gelu, GptConfig, Targets};

thread_local! {
    pub static LIVE: Cell<i64> = const { Cell::new(0) };
    pub static MOST: Cell<i64> = const { Cell::new(0) };
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

pub const SEQUENCES: usize = 2;

/// This thread's bytes, counted exactly.
pub struct Exact(pub Cell<i64>);

impl HeapMeter for Exact {
    fn in_use(&self) -> u64 {
        LIVE.get() as u64
    }

    fn begin(&self) {
        MOST.set(LIVE.get());
        self.0.set(LIVE.get());
    }

    fn most_added(&self) -> u64 {
        (MOST.get() - self.0.get()) as u64
    }
}

pub fn batch(shape: &GptConfig) -> Batch<Tokens, Targets> {
    shape.blank_batch(SEQUENCES, &brigade_cpu::device())
}

pub fn shapes() -> [GptConfig; 4] {
    let wide = GptConfig {
        vocabulary: 500,
        sequence_length: 64,
        width: 128,
        layers: 3,
        heads: 2,
        tied_head: true,
        activation: Gelu::GeluTanh,
        dropout: 0.0,
        initializer_range: 0.02,
    };
    [
        wide.clone(),
        GptConfig { activation: Gelu::Gelu, ..wide.clone() },
        // Mostly scores.
        GptConfig { sequence_length: 256, width: 64, heads: 8, ..wide.clone() },
        // Mostly logits.
        GptConfig { vocabulary: 20_000, layers: 1, tied_head: false, ..wide },
    ]
}

pub fn measure(shape: &GptConfig, compute: Dtype, meter: &dyn HeapMeter) -> MeasuredActivations {
    let model = shape.model(1, &brigade_cpu::device()).unwrap();
    model.measure_activations(batch(shape), compute, false, Some(meter)).unwrap()
}

/// Products in bf16 take long on the CPU.
pub fn number_types(shape: &GptConfig) -> &'static [Dtype] {
    if shape.vocabulary > 1000 { &[Dtype::F32] } else { &[Dtype::F32, Dtype::Bf16] }
}
