//! The interpreter: a step of a deep and narrow model, whose many actions compute little, under each schedule.
//!
//!     cargo bench --bench interpreter
//!
//! Stages are threads of this process, so that with more stages than cores they also wait for a core.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use brigade::comm::{Timeouts, threads};
use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{Batch, Engine, EngineSettings, Groups, Mesh, OptimizerFactory, PP};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor, TensorData};
use criterion::{BenchmarkId, Criterion};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LENGTH: usize = 32;
const MICRO_BATCHES: usize = 8;
const STAGES: usize = 2;

fn config() -> GptConfig {
    GptConfig {
        vocabulary: 256,
        sequence_length: LENGTH,
        width: 32,
        layers: 22,
        heads: 4,
        tied_head: false,
        activation: Gelu::Gelu,
        dropout: 0.0,
        initializer_range: 0.02,
    }
}

/// Trains one stage, as many steps as it is asked for each time; answers with their time.
fn stage(
    groups: &Groups,
    settings: EngineSettings,
    asked: &Receiver<u64>,
    answers: &Sender<Duration>,
) -> Outcome<()> {
    let device = brigade_cpu::device();
    let adamw = AdamWConfig::new().with_epsilon(1e-8);
    let optimizer = OptimizerFactory::new(adamw.clone().build(), adamw.build());
    let mut engine = Engine::new(config().model(0, &device)?, 0, &optimizer, groups.clone(), settings)?;
    let tokens: Vec<i64> = (0..LENGTH).map(|i| (i * 7919 % 256) as i64).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [1, LENGTH]), &device);
    for steps in asked {
        groups.world().barrier()?;
        let started = Instant::now();
        for _ in 0..steps {
            let target = Targets { tokens: tokens.clone(), mask: None };
            let batch = Batch::new(tokens.clone().into(), target, LENGTH);
            engine.step(vec![batch; MICRO_BATCHES], 1e-3)?;
        }
        answers.send(started.elapsed())?;
    }
    Ok(())
}

/// The time of `steps` steps of all stages together: that of the slowest.
fn all(asked: &[Sender<u64>], answers: &Receiver<Duration>, steps: u64) -> Duration {
    for stage in asked {
        stage.send(steps).expect("the stage waits");
    }
    let times = asked.iter().map(|_| answers.recv().expect("the stage answers"));
    times.max().unwrap_or_default()
}

fn main() {
    // SAFETY: nothing has started a thread yet.
    unsafe { brigade_cpu::keep_heap() };
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("interpreter");
    group.sample_size(20);
    let schedules = [
        (PipelineScheduleKind::GPipe, 1),
        (PipelineScheduleKind::OneFOneB, 1),
        (PipelineScheduleKind::Interleaved, 2),
    ];
    for (schedule, chunks) in schedules {
        let settings = EngineSettings { schedule, chunks, ..EngineSettings::default() };
        thread::scope(|scope| {
            let (answer, answers) = channel();
            let mut asked = Vec::new();
            for world in threads(STAGES, Timeouts::default()) {
                let (ask, questions) = channel();
                let (settings, answer) = (settings.clone(), answer.clone());
                asked.push(ask);
                scope.spawn(move || {
                    let mesh = Mesh::new(STAGES, [(PP, STAGES)]).expect("a pipeline of all ranks");
                    let groups = brigade_cpu::groups(&world, mesh).expect("the ranks connect");
                    stage(&groups, settings, &questions, &answer).expect("the stage trains");
                });
            }
            group.bench_function(BenchmarkId::from_parameter(schedule), |bencher| {
                bencher.iter_custom(|steps| all(&asked, &answers, steps));
            });
        });
    }
    group.finish();
    criterion.final_summary();
}
