//! What blocks have beside parameters. Dropout over epochs: each sample meets another mask in each of them, and a run that is resumed draws those of the whole
//! run. Running state that ranks cannot merge ends a run before it has changed anything.

use std::sync::{Arc, Mutex};

use brigade_core::{Batch, Chain};
use brigade_sorted::SortedMap;
use burn::module::{Module, RunningState};
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};

use super::fixture::*;
use crate::dataset::samples;
use crate::run::StartFrom;
use crate::test_model::{Layers, linear};
use crate::training_setup::Training;

/// Two steps are an epoch.
const SAMPLES: usize = 8;
const STEPS: u64 = 4;

/// What a block draws for a sample.
type Mask = Vec<u32>;
/// The masks of each sample, by its first value, in the order in which they were drawn.
type Masks = SortedMap<u32, Vec<Mask>>;

fn bits(x: Rows) -> Vec<u32> {
    x.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// The first block drops; it tells `seen` of its masks.
fn dropping(seen: Arc<Mutex<Masks>>) -> Layers {
    let drop = move |dropout: &Dropout, x: Rows| {
        let mask = dropout.forward(Tensor::ones([1, 64], &x.device()));
        let mut seen = seen.lock().unwrap();
        let drawn = seen.entry(bits(x.clone())[0]).or_default();
        // The first micro-batch is run twice, to see whether it gives the same.
        if drawn.last() != Some(&bits(mask.clone())) {
            drawn.push(bits(mask.clone()));
        }
        x * mask.narrow(1, 0, WIDTH)
    };
    Chain::new()
        .then_fn("drop", DropoutConfig::new(0.5).init(), drop)
        .then_fn("layer", linear(WIDTH), |linear: &Linear, x| linear.forward(x))
        .loss(|output: Rows, target: Rows| (output - target).square().sum())
}

fn train(out: &std::path::Path, steps: u64, mesh: Mesh, start_from: StartFrom) -> Masks {
    let seen = Arc::new(Mutex::new(Masks::new()));
    let mut settings = settings(steps);
    settings.checkpoint.every = 3;
    on_mesh(out, &settings, mesh, start_from, |session, _| {
        session.train(dropping(seen.clone()), Training::on(samples(SAMPLES, rows))).map(drop)
    })
    .unwrap();
    std::mem::take(&mut seen.lock().unwrap())
}

#[test]
fn a_sample_meets_another_mask_in_the_second_epoch() {
    let whole = tempfile::tempdir().unwrap();
    let masks = train(whole.path(), STEPS, MESHES[0], StartFrom::Scratch);
    assert_eq!(masks.len(), SAMPLES);
    for drawn in masks.values() {
        assert_eq!(drawn.len(), 2, "one in each epoch");
        assert_ne!(drawn[0], drawn[1]);
    }
    for mesh in &MESHES[1..] {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(train(folder.path(), STEPS, *mesh, StartFrom::Scratch), masks, "{mesh:?}");
        assert!(weights(folder.path()) == weights(whole.path()), "{mesh:?}");
    }
}

#[test]
fn a_run_resumed_in_the_second_epoch_draws_the_masks_of_the_whole_run() {
    let whole = tempfile::tempdir().unwrap();
    let masks = train(whole.path(), STEPS, MESHES[0], StartFrom::Scratch);
    for (first, then) in [(MESHES[0], MESHES[0]), (MESHES[1], MESHES[3])] {
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), STEPS - 1, first, StartFrom::Scratch);
        let resumed = train(folder.path(), STEPS, then, StartFrom::Checkpoint);
        assert_eq!(resumed.len(), 4, "the samples of one step");
        for (sample, drawn) in &resumed {
            assert_eq!(*drawn, masks[sample][1..], "{first:?} to {then:?}");
        }
        assert!(weights(folder.path()) == weights(whole.path()), "{first:?} to {then:?}");
    }
}

/// Squares its state in each forward.
#[derive(Module, Debug)]
struct Squaring {
    linear: Linear,
    state: RunningState<Tensor<1>>,
}

fn squaring() -> Layers {
    let state = RunningState::new(Tensor::from_floats([2.0, 3.0], &brigade_cpu::device().autodiff()));
    let forward = |block: &Squaring, x: Rows| {
        block.state.update(block.state.value_sync().square());
        block.linear.forward(x)
    };
    Chain::new()
        .then_fn("first", linear(WIDTH), |linear: &Linear, x| linear.forward(x))
        .then_fn("squares", Squaring { linear: linear(WIDTH), state }, forward)
        .loss(|output: Rows, target: Rows| (output - target).square().sum())
}

const NOT_MERGED: &str = "block `squares` has running state that ranks cannot merge";

#[test]
fn state_that_cannot_be_merged_leaves_an_earlier_run_as_it_is() {
    let out = tempfile::tempdir().unwrap();
    on_mesh(out.path(), &settings(2), MESHES[0], StartFrom::Scratch, |session, _| {
        session.train(model(), training()).map(drop)
    })
    .unwrap();
    let before = (weights(out.path()), checkpoints(out.path()));
    assert_eq!(before.1, [2]);
    for mesh in [MESHES[0], MESHES[1], MESHES[3]] {
        let mut again = settings(2);
        again.output.overwrite = true;
        let ended = on_mesh(out.path(), &again, mesh, StartFrom::Scratch, |session, _| {
            session.train(squaring(), training()).map(drop)
        });
        let error = ended.unwrap_err().to_string();
        assert!(error.contains(NOT_MERGED), "{error}");
        assert_eq!((weights(out.path()), checkpoints(out.path())), before, "{mesh:?}");
    }
}

#[test]
fn so_does_that_of_a_loop_without_data_and_of_a_further_model() {
    let measured = || {
        Training::without_data().measured_on(|count, device: &Device| {
            let (input, target) = rows(&(0..count).collect::<Vec<_>>(), device);
            Batch::new(input, target, count)
        })
    };
    let out = tempfile::tempdir().unwrap();
    let ended = on_mesh(out.path(), &settings(2), MESHES[1], StartFrom::Scratch, |session, _| {
        session.prepare(squaring(), measured()).map(drop)
    });
    let error = ended.unwrap_err().to_string();
    assert!(error.contains(NOT_MERGED), "{error}");
    on_mesh(out.path(), &settings(2), MESHES[1], StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        let error = trainer.add_model("critic", squaring(), measured()).err().unwrap().to_string();
        assert!(error.contains(NOT_MERGED), "{error}");
        trainer.add_model("critic", squaring(), Training::without_data()).map(drop)
    })
    .unwrap();
}
