//! A small run: four layers, samples that are computed, and any mesh.

use std::path::Path;

use brigade_launch::interrupt::Interrupt;
use burn::tensor::{Device, Tensor, TensorData};

use super::{SAMPLES, on_ranks};
use crate::dataset::{Dataset, samples};
use crate::folder::WEIGHTS_FILE;
use crate::run::{Session, StartFrom};
use crate::settings::{MetricMode, Settings};
use crate::test_model::{Layers, layers};
use crate::training_setup::Training;

pub const WIDTH: usize = 6;

/// Pipeline stages, data-parallel ranks, and stage of ZeRO.
pub const MESHES: [(usize, usize, u8); 5] = [(1, 1, 0), (1, 2, 0), (1, 2, 3), (2, 1, 0), (2, 2, 1)];

pub type Mesh = (usize, usize, u8);
pub type Rows = Tensor<2>;

pub fn model() -> Layers {
    layers(WIDTH, &["0", "1", "2", "3"])
}

/// Input and target of these samples.
pub fn rows(numbers: &[usize], device: &Device) -> (Rows, Rows) {
    let value = |i: usize| ((numbers[i / WIDTH] + 3) * (i % WIDTH + 5) * 7919 % 101) as f32 / 50.0 - 1.0;
    let values: Vec<f32> = (0..WIDTH * numbers.len()).map(value).collect();
    let x = Tensor::<2>::from_data(TensorData::new(values, [numbers.len(), WIDTH]), device);
    (x.clone(), x.sin())
}

pub fn data() -> impl Dataset<Input = Rows, Target = Rows> {
    samples(SAMPLES, rows)
}

/// Data for training and validation.
pub fn training() -> Training<Rows, Rows, Rows> {
    Training::on(data()).validate(samples(10, |numbers, device| {
        rows(&numbers.iter().map(|number| number + SAMPLES).collect::<Vec<_>>(), device)
    }))
}

/// Steps of four samples, one at a time, at one learning rate; validations and checkpoints every second step.
pub fn settings(steps: u64) -> Settings {
    let mut settings = Settings::default();
    (settings.train.steps, settings.train.global_batch_size, settings.train.micro_batch_size) = (steps, 4, 1);
    settings.train.validate_every = 2;
    settings.checkpoint.every = 2;
    settings.optimizer.learning_rate = 1e-2;
    settings.schedule.name = brigade_core::LrSchedulerKind::Constant;
    settings
}

/// The highest validation loss counts as the best, which is the first. Only the newest checkpoint is kept beside it.
pub fn keeping_best(steps: u64) -> Settings {
    let mut settings = settings(steps);
    settings.checkpoint.keep = 1;
    settings.checkpoint.keep_best = true;
    settings.checkpoint.best_mode = MetricMode::Max;
    settings.checkpoint.load_best_at_end = true;
    settings
}

/// Runs each rank's part on a mesh; gives what rank 0's gives.
pub fn on_mesh<R: Send>(
    out: &Path,
    settings: &Settings,
    (pp, dp, stage): Mesh,
    start_from: StartFrom,
    part: impl Fn(&Session, Interrupt) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<R> {
    let mut settings = settings.clone();
    (settings.mesh.pp, settings.mesh.dp, settings.zero.stage) = (pp, dp, stage);
    on_ranks(pp * dp, out, &settings, start_from, |session, interrupt| part(&session, interrupt))
}

/// The bytes of the weights in a run's folder.
pub fn weights(out: &Path) -> Vec<u8> {
    std::fs::read(out.join(WEIGHTS_FILE)).unwrap()
}

/// What each line of the metrics says.
pub fn metrics(out: &Path) -> Vec<brigade_report::StepRecord> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The steps of a run's checkpoints, newest first.
pub fn checkpoints(out: &Path) -> Vec<u64> {
    let storage = brigade_checkpoint::LocalStorage::new(out.join("checkpoints"));
    brigade_checkpoint::list(&storage).unwrap().iter().map(|found| found.step).collect()
}
