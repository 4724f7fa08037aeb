//! Runs that are stopped and resumed on other meshes. The file of weights must have the bytes that a run in one process
//! writes that was never stopped.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use brigade_checkpoint::frozen_file;
use brigade_core::{Block, Chain, ForwardContext, NamedTensor, initialize};
use brigade_launch::interrupt::Interrupt;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Distribution, Tensor, TensorData, activation::tanh};

use super::{SAMPLES, on_ranks, sampler};
use crate::dataset::samples;
use crate::error::Preempted;
use crate::folder::WEIGHTS_FILE;
use crate::run::StartFrom;
use crate::settings::Settings;
use crate::test_model::{Layers, linear, model};
use crate::training_setup::Training;

const WIDTH: usize = 6;

/// The blocks of a model.
const BLOCKS: [&str; 4] = ["0", "1", "2", "3"];

/// Input and target of these samples, the input with noise that is drawn anew each time.
fn batch(numbers: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let values = |salt: usize| {
        let value = |number: &usize, i: usize| ((number + salt) * (i + 3) * 7919 % 101) as f32 / 50.0 - 1.0;
        let values: Vec<f32> =
            numbers.iter().flat_map(|number| (0..WIDTH).map(move |i| value(number, i))).collect();
        Tensor::from_data(TensorData::new(values, [numbers.len(), WIDTH]), device)
    };
    let noise = Tensor::random([numbers.len(), WIDTH], Distribution::Normal(0.0, 0.1), device);
    (values(0) + noise, values(7))
}

/// A mesh, with its stage of ZeRO.
struct Mesh {
    pp: usize,
    dp: usize,
    stage: u8,
}

const ONE_PROCESS: Mesh = Mesh { pp: 1, dp: 1, stage: 0 };

/// Trains to the end, which is step 9, or until the machine is taken away in step `preempted_in`. Gives the weights of one
/// process; ranks of a mesh have none to give.
fn train(
    out: &Path,
    start_from: StartFrom,
    mesh: &Mesh,
    preempted_in: Option<u64>,
    model: impl Fn() -> Layers + Sync,
) -> anyhow::Result<Vec<NamedTensor>> {
    let Mesh { pp, dp, stage } = *mesh;
    let mut settings = Settings::default();
    settings.train.steps = 9;
    settings.train.global_batch_size = 4;
    settings.train.micro_batch_size = 1;
    settings.checkpoint.every = 2;
    settings.mesh.pp = pp;
    settings.mesh.dp = dp;
    settings.zero.stage = stage;
    // The first sample of the step: one data-parallel rank alone reads it.
    let last = preempted_in.map(|step| sampler().global_micro_batch(step - 1, 0).unwrap()[0]);
    on_ranks(pp * dp, out, &settings, start_from, |session, interrupt: Interrupt| {
        let data = samples(SAMPLES, move |numbers: &[usize], device: &Device| {
            if last.is_some_and(|last| numbers.contains(&last)) {
                interrupt.preempt();
            }
            batch(numbers, device)
        });
        let trained = session.train(model(), Training::on(data))?;
        if pp * dp == 1 { Ok(trained.model().tensors()?) } else { Ok(Vec::new()) }
    })
}

/// Whether two checkpoints have a rank's frozen values in one file on the disk; none where the later one has no such file.
fn share_frozen(out: &Path, steps: [u64; 2], rank: usize) -> Option<bool> {
    let file = |step: u64| {
        let folder = out.join("checkpoints").join(format!("step-{step:08}"));
        Some(std::fs::metadata(folder.join(frozen_file(rank))).ok()?.ino())
    };
    let [earlier, later] = steps.map(file);
    later.map(|_| earlier == later)
}

/// Trains on data-parallel ranks that shard all, then on a pipeline, then in one process that is interrupted, and compares with a run in one
/// process. Gives the weights, and of checkpoints that follow one another whether they share a file of frozen values: of one process on either rank,
/// of one mesh and another, and of two processes on one mesh. The models that resume are `resumed`.
fn ends_as_one_process(
    model: impl Fn() -> Layers + Sync,
    resumed: impl Fn() -> Layers + Sync,
) -> (Vec<NamedTensor>, [Option<bool>; 4]) {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let weights = train(&whole, StartFrom::Scratch, &ONE_PROCESS, None, &model).unwrap();
    let stopped_after = |step: u64, start_from, mesh: &Mesh, model: &(dyn Fn() -> Layers + Sync)| {
        let end = train(&parts, start_from, mesh, Some(step), model).unwrap_err();
        assert!(end.is::<Preempted>(), "{end:#}");
        let storage = brigade_checkpoint::LocalStorage::new(parts.join("checkpoints"));
        assert_eq!(brigade_checkpoint::list(&storage).unwrap()[0].step, step);
    };
    stopped_after(3, StartFrom::Scratch, &Mesh { pp: 1, dp: 2, stage: 3 }, &model);
    let on_ranks = [0, 1].map(|rank| share_frozen(&parts, [2, 3], rank));
    stopped_after(6, StartFrom::Checkpoint, &Mesh { pp: 2, dp: 1, stage: 0 }, &resumed);
    stopped_after(8, StartFrom::Checkpoint, &ONE_PROCESS, &resumed);
    train(&parts, StartFrom::Checkpoint, &ONE_PROCESS, None, &resumed).unwrap();
    let file = |out: &Path| std::fs::read(out.join(WEIGHTS_FILE)).unwrap();
    assert!(file(&parts) == file(&whole), "the files of weights have the same bytes");
    let [other_mesh, other_process] = [[6, 8], [8, 9]].map(|steps| share_frozen(&parts, steps, 0));
    (weights, [on_ranks[0], on_ranks[1], other_mesh, other_process])
}

/// A layer that is not trained, and one beside it that is.
#[derive(Module, Debug)]
struct Adapted {
    base: Linear,
    adapter: Linear,
}

impl Block for Adapted {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.base.forward(x.clone()) + self.adapter.forward(x))
    }
}

/// The frozen values of the models that resume are others: those of the run are in its checkpoints, which share them where the mesh is the same.
#[test]
fn frozen_parameters_stay_as_they_are() {
    let base = |seed: u64, name: &str| initialize(linear(WIDTH), seed, name).no_grad();
    let block = move |seed, name: &str| Adapted { base: base(seed, name), adapter: linear(WIDTH) };
    let adapted = |seed| move || model(&BLOCKS, |name| block(seed, name));
    let (weights, shared) = ends_as_one_process(adapted(1), adapted(2));
    // Units are sharded in whole chunks, and one chunk has all of these.
    assert_eq!(shared, [Some(true), None, Some(false), Some(true)]);
    let mut frozen = 0;
    for block in BLOCKS {
        let Linear { weight, bias } = base(1, block);
        let [weight, bias] = [weight.val().into_data(), bias.unwrap().val().into_data()];
        for (name, value) in [("weight", weight), ("bias", bias)] {
            let name = format!("{block}.base.{name}");
            let found = weights.iter().find(|tensor| tensor.name == name).unwrap();
            assert_eq!(found.data.as_bytes(), value.as_bytes(), "{name}");
            frozen += 1;
        }
    }
    assert_eq!((frozen, weights.len()), (8, 16));
}

/// A layer that drops some of its outputs in training, by a mask from its context.
#[derive(Module, Debug)]
struct Dropping {
    linear: Linear,
}

impl Block for Dropping {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.linear.forward(x))
    }

    fn forward_with(&self, x: Tensor<2>, context: &ForwardContext<'_>) -> Tensor<2> {
        let ([rows, _], seed, device) = (x.dims(), context.random_seed(), x.device());
        let mask: Vec<f32> = (0..rows * WIDTH).map(|i| f32::from(seed >> i & 1 == 1)).collect();
        self.forward(x) * Tensor::from_data(TensorData::new(mask, [rows, WIDTH]), &device)
    }
}

#[test]
fn masks_are_drawn_as_if_the_run_had_not_stopped() {
    let dropping = || model(&BLOCKS, |_| Dropping { linear: linear(WIDTH) });
    ends_as_one_process(dropping, dropping);
}

/// Burn's dropout and batch norm, as they are.
#[test]
fn masks_and_statistics_are_as_if_the_run_had_not_stopped() {
    let device = || brigade_cpu::device().autodiff();
    let layer = || (linear(WIDTH), BatchNormConfig::new(2).init(&device()), DropoutConfig::new(0.3).init());
    let model = move || {
        let forward = |(linear, norm, dropout): &(Linear, BatchNorm, Dropout), x: Tensor<2>| {
            let x = norm.forward(linear.forward(x).reshape([-1, 2, 3]));
            dropout.forward(x).reshape([-1, WIDTH as i32])
        };
        BLOCKS
            .into_iter()
            .fold(Chain::new(), |chain, name| chain.then_fn(name, layer(), forward))
            .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum())
    };
    // Running state is no parameter that is trained, but changes: it is not frozen.
    let (weights, shared) = ends_as_one_process(model, model);
    assert_eq!(shared, [None; 4]);
    let mean = weights.iter().find(|tensor| tensor.name == "3.1.running_mean").unwrap();
    assert!(mean.data.iter::<f32>().all(|value| value != 0.0));
}
