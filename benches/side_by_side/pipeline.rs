//! Times a pipeline whose stages are threads of this process, part by part and stage by stage.
//!
//!     cargo bench --bench pipeline -- [--pp 4] [--layers 46] [--stages 12,12,12,12] …   (--help lists all)
//!
//! Prints one JSON line for each step of each stage. `bookkeeping` is what is left of a step without forward, backward,
//! optimizer and waiting: the interpreter, and what it does to keep count. Where there are more stages than cores, a
//! stage may lose its core within any of these parts, and the time until it has one again counts there.
//!
//! The default is deep and narrow, so that a step has many actions which compute little: 48 blocks with the embedding
//! and the head.

use std::error::Error;
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use brigade::comm::{Timeouts, threads};
use brigade::core::plan::balanced;
use brigade::core::{Batch, Engine, EngineSettings, Groups, Mesh, OptimizerFactory, PP, StepReport};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor, TensorData};
use clap::Parser;

/// Times a pipeline whose stages are threads of this process.
#[derive(Debug, Parser)]
struct Options {
    /// Stages, each a thread.
    #[arg(long, default_value = "4")]
    pp: NonZeroUsize,
    /// Blocks of each stage, as 12,12,12,12 [default: balanced by cost].
    #[arg(long, value_delimiter = ',')]
    stages: Vec<usize>,
    /// Micro-batches in a step.
    #[arg(long, default_value_t = 8)]
    micro_batches: usize,
    /// Sequences in a micro-batch.
    #[arg(long, default_value = "2")]
    rows: NonZeroUsize,
    /// Transformer layers; the embedding and the head are two blocks more.
    #[arg(long, default_value_t = 46)]
    layers: usize,
    #[arg(long, default_value_t = 64)]
    width: usize,
    #[arg(long, default_value_t = 4)]
    heads: usize,
    #[arg(long, default_value_t = 256)]
    vocabulary: usize,
    #[arg(long, default_value_t = 64)]
    sequence_length: usize,
    #[arg(long, default_value_t = 8)]
    steps: usize,
    /// Added by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A step of a stage.
struct Step {
    seconds: Duration,
    report: StepReport,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let options = Options::parse();
    // SAFETY: nothing has started a thread yet.
    unsafe { brigade_cpu::keep_heap() };
    let (options, config) = (&options, &options.model());
    let (pp, costs) = (options.pp.get(), config.costs()?);
    let split = &if options.stages.is_empty() { balanced(&costs, pp)? } else { options.stages.clone() };
    let stages = thread::scope(|scope| {
        let start = |world| {
            scope.spawn(move || {
                options.run(config, split, brigade_cpu::groups(&world, Mesh::new(pp, [(PP, pp)])?)?)
            })
        };
        let ranks: Vec<_> = threads(pp, Timeouts::default()).into_iter().map(start).collect();
        let end = |rank: thread::ScopedJoinHandle<'_, _>| {
            rank.join().unwrap_or_else(|_| Err("a stage panicked".into()))
        };
        ranks.into_iter().map(end).collect::<Outcome<Vec<_>>>()
    })?;
    for (rank, steps) in stages.iter().enumerate() {
        steps.iter().for_each(|step| options.print(rank, split, step));
    }
    Ok(())
}

impl Options {
    fn model(&self) -> GptConfig {
        GptConfig {
            vocabulary: self.vocabulary,
            sequence_length: self.sequence_length,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            tied_head: false,
            activation: Gelu::Gelu,
            dropout: 0.0,
            initializer_range: 0.02,
        }
    }

    /// Trains one stage.
    fn run(&self, config: &GptConfig, split: &[usize], groups: Groups) -> Outcome<Vec<Step>> {
        let device = brigade_cpu::device();
        let adamw = AdamWConfig::new().with_epsilon(1e-8);
        let optimizer = OptimizerFactory::new(
            adamw.clone().with_weight_decay(0.01).build(),
            adamw.with_weight_decay(0.0).build(),
        );
        let settings = EngineSettings { split: split.to_vec(), ..EngineSettings::default() };
        let mut engine = Engine::new(config.model(0, &device)?, 0, &optimizer, groups.clone(), settings)?;
        let shape = [self.rows.get(), self.sequence_length];
        let targets = shape[0] * shape[1];
        let tokens: Vec<i64> = (0..targets).map(|i| (i * 7919 % self.vocabulary) as i64).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, shape), &device);
        let mut steps = Vec::with_capacity(self.steps);
        for _ in 0..self.steps {
            let target = Targets { tokens: tokens.clone(), mask: None };
            let batch = Batch::new(tokens.clone().into(), target, targets);
            let batches = vec![batch; self.micro_batches];
            groups.world().barrier()?;
            let started = Instant::now();
            let report = engine.step(batches, 1e-3)?;
            steps.push(Step { seconds: started.elapsed(), report });
        }
        Ok(steps)
    }

    fn print(&self, rank: usize, split: &[usize], step: &Step) {
        let (clock, seconds) = (&step.report.clock, step.seconds.as_secs_f64());
        let [forward, backward, optimizer, wait] =
            [clock.forward, clock.backward, clock.optimizer, clock.comm_wait()]
                .map(|part| part.as_secs_f64());
        println!(
            "{{\"mode\": \"brigade pipeline\", \"world\": {}, \"stages\": {split:?}, \"rank\": {rank}, \"step\": {}, \"seconds\": {seconds:.6}, \
             \"tokens_per_second\": {:.1}, \"forward\": {forward:.6}, \"backward\": {backward:.6}, \"optimizer\": {optimizer:.6}, \
             \"wait\": {wait:.6}, \"bubble\": {:.6}, \"bookkeeping\": {:.6}, \"loss\": {:.6}}}",
            self.pp,
            step.report.step,
            (self.micro_batches * self.rows.get() * self.sequence_length) as f64 / seconds,
            step.report.bubble.as_secs_f64(),
            seconds - forward - backward - optimizer - wait,
            step.report.loss,
        );
    }
}
