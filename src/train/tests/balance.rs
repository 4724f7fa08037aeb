//! Stages that are balanced by the time of each block.

use std::path::Path;
use std::time::Duration;

use brigade_core::Block;
use brigade_launch::interrupt::Interrupt;
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::tanh;

use super::fixture::{Mesh, Rows, WIDTH, metrics, on_mesh, settings, training, weights};
use crate::checkpoint::{RunDescription, newest};
use crate::run::{Session, StartFrom};
use crate::settings::{Balance, Settings};
use crate::test_model::{Layers, linear};

/// A layer that may take its time.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    sleeps: bool,
}

impl Block for Layer {
    type Input = Rows;
    type Output = Rows;

    fn forward(&self, x: Rows) -> Rows {
        if self.sleeps {
            std::thread::sleep(Duration::from_millis(10));
        }
        tanh(self.linear.forward(x))
    }
}

/// Six layers with the same number of parameters, of which one takes much longer than all the others.
fn model(slow: &str) -> Layers {
    let layer = |name: &str| Layer { linear: linear(WIDTH), sleeps: name == slow };
    crate::test_model::model(&["0", "1", "2", "3", "4", "5"], layer)
}

fn run(out: &Path, settings: &Settings, mesh: Mesh, start_from: StartFrom, slow: &str) -> Vec<u8> {
    let part = |session: &Session, _: Interrupt| session.train(model(slow), training()).map(|_| ());
    on_mesh(out, settings, mesh, start_from, part).unwrap();
    weights(out)
}

fn description(out: &Path) -> RunDescription {
    newest(out.join("checkpoints").to_str().unwrap()).unwrap().unwrap().1
}

#[test]
fn a_slow_block_has_a_stage_to_itself() {
    let measured = |steps| {
        let mut settings = settings(steps);
        settings.pipeline.balance = Balance::Measured;
        settings
    };
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [by_cost, by_time, resumed] = folders.each_ref().map(|folder| folder.path());
    let expected = run(by_cost, &settings(4), (2, 1, 0), StartFrom::Scratch, "0");
    let even = metrics(by_cost)[0].memory.parameter_bytes;
    assert!(description(by_cost).block_seconds.is_empty());

    assert!(
        run(by_time, &measured(4), (2, 1, 0), StartFrom::Scratch, "0") == expected,
        "the bits of the weights"
    );
    let seconds = description(by_time).block_seconds;
    assert!(seconds.len() == 6 && seconds["0"] >= 0.01, "{seconds:?}");
    // The other five lie on one rank, not three on each.
    assert_eq!(metrics(by_time)[0].memory.parameter_bytes, even / 3 * 5);

    // A run that resumes divides them as before, even if they take another time now.
    run(resumed, &measured(2), (2, 1, 0), StartFrom::Scratch, "0");
    let before = description(resumed).block_seconds;
    assert!(
        run(resumed, &measured(4), (2, 2, 0), StartFrom::CheckpointIfAny, "5") == expected,
        "after a resume"
    );
    assert_eq!(description(resumed).block_seconds, before);
    // With recomputation they are measured again.
    let mut recomputed = measured(6);
    recomputed.compute.recompute = "all".into();
    run(resumed, &recomputed, (2, 1, 0), StartFrom::CheckpointIfAny, "5");
    let after = description(resumed).block_seconds;
    // On a busy machine any block may take a while.
    assert!(after["0"] < after["5"] && after["5"] >= 0.01, "{after:?}");
    assert_eq!(metrics(resumed)[3].memory.parameter_bytes, even / 3 * 5);
}

#[test]
fn it_is_given_or_measured() {
    let mut settings = settings(1);
    (settings.mesh.pp, settings.pipeline.balance, settings.pipeline.stages) =
        (2, Balance::Measured, vec![1, 5]);
    assert_eq!(
        settings.plan(2, 1).unwrap_err().to_string(),
        "pipeline.balance = measured is not possible: pipeline.stages = [1, 5] already says how many blocks each stage has; set only one of the two"
    );
}
