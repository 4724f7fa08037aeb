//! A step reports the time in which its rank stood still because of the pipeline, under any schedule.

use std::sync::Barrier;
use std::thread::sleep;
use std::time::Duration;

use brigade::core::plan::PipelineScheduleKind::{self, OneFOneB, ZbH1, ZbH2, Zbv};
use brigade::core::{Batch, Block, Chain, CheckBlocks, Engine, EngineSettings, Groups};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;

use crate::case::floats;
use crate::layers::adamw;
use crate::mesh::on_threads;

const WIDTH: usize = 2;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Module, Debug)]
struct Slow {
    linear: Linear,
}

impl Block for Slow {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        sleep(PAUSE);
        self.linear.forward(x)
    }
}

/// Of each rank.
fn bubbles(schedule: PipelineScheduleKind, chunks: usize, stages: usize) -> Vec<Duration> {
    let start = Barrier::new(stages);
    on_threads(stages, 1, |groups: Groups| {
        let slow =
            || Slow { linear: LinearConfig::new(WIDTH, WIDTH).init(&brigade_cpu::device().autodiff()) };
        let chain =
            (1..4).fold(Chain::new().then("0", slow()), |chain, index| chain.then(index.to_string(), slow()));
        let model = chain.loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
        let settings = EngineSettings {
            schedule,
            chunks,
            check_blocks: CheckBlocks::Never,
            ..EngineSettings::default()
        };
        let mut engine = Engine::new(model, 3, &adamw(), groups, settings).unwrap();
        let batch = |number| Batch::new(floats(number, 1, [1, WIDTH]), floats(number, 2, [1, WIDTH]), 1);
        let batches = (0..4).map(batch).collect();
        start.wait();
        engine.step(batches, 1e-3).unwrap().bubble
    })
}

/// The second rank has nothing to do before the first one's blocks have seen a micro-batch.
#[test]
fn is_measured() {
    for (schedule, chunks) in [(OneFOneB, 1), (ZbH1, 1), (ZbH2, 1), (Zbv, 2)] {
        let found = bubbles(schedule, chunks, 2);
        let first = PAUSE * (2 / chunks as u32);
        assert!(found[1] >= first.mul_f64(0.9), "{schedule}: {found:?}");
    }
    assert_eq!(bubbles(OneFOneB, 1, 1), [Duration::ZERO]);
}
