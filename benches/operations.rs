//! Operations of one rank on the CPU: a training step and its parts.
//!
//!     cargo bench --bench operations
//!     cargo bench --bench operations -- --save-baseline before      then: -- --baseline before
//!
//! With `BRIGADE_BENCH_DEFAULT_HEAP=1` the allocator's settings stay as they are, which shows what keeping the heap gains.

use brigade::core::{Batch, Engine, EngineSettings, Groups, OptimizerFactory, Recompute};
use brigade::models::Tokens;
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use criterion::{BenchmarkId, Criterion, Throughput};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SEQUENCE_LENGTH: usize = 128;

fn config() -> GptConfig {
    GptConfig {
        vocabulary: 1024,
        sequence_length: SEQUENCE_LENGTH,
        width: 128,
        layers: 4,
        heads: 4,
        tied_head: false,
        activation: Gelu::Gelu,
        dropout: 0.0,
        initializer_range: 0.02,
    }
}

fn batch(rows: usize, device: &Device) -> Batch<Tokens, Targets> {
    let count = rows * SEQUENCE_LENGTH;
    let tokens: Vec<i64> = (0..count).map(|i| (i * 7919 % 1024) as i64).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [rows, SEQUENCE_LENGTH]), device);
    Batch::new(tokens.clone().into(), Targets { tokens, mask: None }, count)
}

/// A whole training step, by the number of micro-batches of one sequence, and with activation checkpointing.
fn step(criterion: &mut Criterion, device: &Device) -> Outcome {
    let adamw = AdamWConfig::new().with_epsilon(1e-8);
    let optimizer = OptimizerFactory::new(adamw.clone().build(), adamw.build());
    let mut group = criterion.benchmark_group("step");
    group.sample_size(20);
    for (name, recompute) in [("saved activations", Recompute::None), ("recomputed", Recompute::Every(1))] {
        for micro_batches in [1, 4] {
            let settings = EngineSettings { recompute, ..EngineSettings::default() };
            let model = config().model(0, device)?;
            let mut engine = Engine::new(model, 0, &optimizer, Groups::single_rank(), settings)?;
            group.throughput(Throughput::Elements((micro_batches * SEQUENCE_LENGTH) as u64));
            group.bench_function(BenchmarkId::new(name, micro_batches), |bencher| {
                bencher.iter(|| {
                    let batches = vec![batch(1, device); micro_batches];
                    engine.step(batches, 1e-3).map(|report| report.loss).expect("the step works")
                });
            });
        }
    }
    group.finish();
    Ok(())
}

/// A product with the weights of a layer, forward, and forward with backward.
fn linear(criterion: &mut Criterion, device: &Device) {
    let mut group = criterion.benchmark_group("linear");
    for width in [128, 512] {
        group.throughput(Throughput::Elements(2 * (SEQUENCE_LENGTH * width * width) as u64));
        let input = Tensor::<2>::ones([SEQUENCE_LENGTH, width], device);
        let layer = LinearConfig::new(width, width).init(device);
        group.bench_function(BenchmarkId::new("forward", width), |bencher| {
            bencher.iter(|| layer.forward(input.clone()).into_data());
        });
        let device = device.clone().autodiff();
        let layer = LinearConfig::new(width, width).init(&device);
        let input = Tensor::<2>::ones([SEQUENCE_LENGTH, width], &device).require_grad();
        group.bench_function(BenchmarkId::new("forward and backward", width), |bencher| {
            bencher.iter(|| layer.forward(input.clone()).sum().backward());
        });
    }
    group.finish();
}

fn main() -> Outcome {
    if std::env::var_os("BRIGADE_BENCH_DEFAULT_HEAP").is_none() {
        // SAFETY: nothing has started a thread yet.
        unsafe { brigade_cpu::keep_heap() };
    }
    let device = brigade_cpu::device();
    let mut criterion = Criterion::default().configure_from_args();
    linear(&mut criterion, &device);
    step(&mut criterion, &device)?;
    criterion.final_summary();
    Ok(())
}
