//! What lets a plain Burn program end with the bits of its twin on Brigade. Plain training needs none of it.
//!
//! First weights, the order of samples and the masks of dropout are drawn at random, so both programs must draw them alike; and
//! sums of floats depend on the order of their terms, so both must add up gradients in the same one.

// Each program takes what it needs.
#![allow(dead_code)]

use std::path::Path;

use brigade::core::{keyed_seed, with_seed};
use brigade::models::{WeightsMapping, save_safetensors};
use brigade::{Chain, ForwardContext, data::Sampler};
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor};

/// The default of `train.seed`.
const SEED: u64 = 0;

/// The first weights. In plain Burn, a model that was just made has some.
pub fn first_weights<M: Module>(model: M) -> M {
    brigade::initialize(model, SEED, "")
}

/// The first weights of a further model, which have the seed of its name.
pub fn first_weights_of<M: Module>(name: &str, model: M) -> M {
    brigade::initialize(model, keyed_seed(SEED, name), "")
}

/// The order of samples. In plain Burn, a `DataLoader` shuffles.
pub struct Batches {
    sampler: Sampler,
    micro_batches: usize,
}

impl Batches {
    /// Batches of this size, in micro-batches of that size.
    pub fn new(samples: usize, batch: usize, micro_batch: usize) -> Self {
        let sampler = Sampler::new(samples, SEED, batch, micro_batch).expect("whole micro-batches");
        Self { sampler, micro_batches: batch / micro_batch }
    }

    /// The numbers of the samples of each micro-batch of a step, counted from 1.
    pub fn of_step(&self, step: u64) -> Vec<Vec<usize>> {
        let read = |k| self.sampler.global_micro_batch(step - 1, k).expect("a micro-batch of the batch");
        (0..self.micro_batches).map(read).collect()
    }

    /// The numbers of the samples of all steps, one after the other.
    pub fn of_steps(&self, steps: u64) -> Vec<usize> {
        (1..=steps).flat_map(|step| self.of_step(step).concat()).collect()
    }
}

/// The masks of dropout in a micro-batch. Plain Burn draws them from wherever its generator stands.
#[derive(Clone, Copy)]
pub struct Masks {
    pub step: u64,
    pub micro_batch: usize,
}

impl Masks {
    /// Runs the part of the model of this name, which is a block on Brigade.
    pub fn of<R>(self, block: &str, forward: impl FnOnce() -> R) -> R {
        let Self { step, micro_batch } = self;
        let context = ForwardContext { seed: SEED, step, micro_batch, block, training: true };
        with_seed(&Device::default(), context.random_seed(), forward)
    }
}

/// Adds up the gradients of micro-batches, the first two, the next two, then both sums, and so on. Burn's
/// `GradientsAccumulator` adds one after the other.
pub struct PairwiseAccumulator(Vec<GradientsParams>);

impl PairwiseAccumulator {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    pub fn accumulate(&mut self, gradients: GradientsParams) {
        self.0.push(gradients);
    }

    pub fn grads<M: Module>(self, model: &M) -> GradientsParams {
        sum(model, self.0)
    }
}

fn sum<M: Module>(model: &M, mut left: Vec<GradientsParams>) -> GradientsParams {
    let mut both = GradientsAccumulator::new();
    match left.len() {
        1 => both.accumulate(model, left.remove(0)),
        count => {
            let right = left.split_off(count / 2);
            both.accumulate(model, sum(model, left));
            both.accumulate(model, sum(model, right));
        }
    }
    both.grads()
}

/// Writes the weights into the file that the command line names, if it names one, as Brigade writes `model.safetensors`.
pub fn save<M: Module + 'static>(model: M) -> anyhow::Result<()> {
    match std::env::args().nth(1) {
        Some(path) => save_as(Path::new(&path), model),
        None => Ok(()),
    }
}

/// Writes the weights of a further model beside those of the first, with its name at the end of the file's.
pub fn save_added<M: Module + 'static>(name: &str, model: M) -> anyhow::Result<()> {
    match std::env::args().nth(1) {
        Some(path) => {
            save_as(Path::new(&path.replace(".safetensors", &format!("-{name}.safetensors"))), model)
        }
        None => Ok(()),
    }
}

fn save_as<M: Module + 'static>(path: &Path, model: M) -> anyhow::Result<()> {
    let chain = Chain::new().then_fn("model", model, |_, x: Tensor<1>| x);
    let mut weights = chain.tensors()?;
    weights.iter_mut().for_each(|weight| weight.name = weight.name.replacen("model.", "", 1));
    Ok(save_safetensors(path, &weights, &WeightsMapping::default())?)
}
