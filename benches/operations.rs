//! Times training steps of one rank on the shape of `peers/torch_bench.py`, part by part.
//!
//!     cargo bench --bench step -- [rows] [steps] [default-heap]
//!
//! `default-heap` leaves the allocator as it is, to see what keeping the heap gains.
//!
//! Prints one JSON line a step, in the format of the peer's script, with the parts of the step beside.

use std::time::Instant;

use brigade::core::{Batch, Engine, EngineSettings, Groups, OptimizerFactory};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor, TensorData};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (rows, steps) = (numbers.next().unwrap_or(8), numbers.next().unwrap_or(8));
    if !std::env::args().any(|argument| argument == "default-heap") {
        // SAFETY: nothing has started a thread yet.
        unsafe { brigade_cpu::keep_heap() };
    }
    let device = brigade_cpu::device();
    let config = GptConfig {
        vocabulary: 4096,
        sequence_length: 256,
        width: 384,
        layers: 6,
        heads: 6,
        tied_head: false,
        activation: Gelu::Gelu,
    };
    let adamw = AdamWConfig::new().with_epsilon(1e-8);
    let optimizer = OptimizerFactory::new(
        adamw.clone().with_weight_decay(0.01).build(),
        adamw.with_weight_decay(0.0).build(),
    );
    let model = config.model(0, &device)?;
    let mut engine = Engine::new(model, 0, &optimizer, Groups::alone(), EngineSettings::default())?;
    let tokens: Vec<i64> = (0..rows * 256).map(|i| (i * 7919 % 4096) as i64).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [rows, 256]), &device);
    for step in 0..steps {
        let started = Instant::now();
        let target = Targets { tokens: tokens.clone(), mask: None };
        let batch = Batch { input: tokens.clone(), target, valid_targets: rows * 256 };
        let report = engine.step(vec![batch], 1e-3)?;
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{{\"mode\": \"brigade step\", \"world\": 1, \"step\": {step}, \"seconds\": {seconds:.4}, \"tokens_per_second\": {:.1}, \
             \"forward\": {:.4}, \"backward\": {:.4}, \"optimizer\": {:.4}, \"loss\": {:.6}}}",
            (rows * 256) as f64 / seconds,
            report.clock.forward.as_secs_f64(),
            report.clock.backward.as_secs_f64(),
            report.clock.optimizer.as_secs_f64(),
            report.loss
        );
    }
    Ok(())
}
