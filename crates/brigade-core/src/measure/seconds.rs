//! How long a model's blocks take.

use std::rc::Rc;
use std::time::Instant;

use brigade_kernels::cast;
use brigade_sorted::SortedMap;
use burn::tensor::Device;

use super::run::{RunMode, Trial, copy, run_copy, run_loss_once};
use super::{HeapMeter, kind};
use crate::error::{Error, Result};
use crate::model::Dtype;
use crate::model::activation::{Activation, Parts, flatten};
use crate::model::batch::Batch;
use crate::model::chain::blocks::Blocks;
use crate::model::objective::{Model, Objective, Target};
use crate::step::forward_backward::recompute::Recompute;

/// Runs of a block, after a first one that makes libraries ready, of which the fastest counts.
const RUNS: usize = 3;

impl<I: Activation, O: Activation, T: 'static> Model<I, O, T> {
    /// Runs each block and the loss forward and backward on one micro-batch, a few times, and gives the seconds of each
    /// block's fastest run; those of the loss are the last block's.
    ///
    /// The model stays as it is, and of blocks that are alike one is run, as in [`measure_activations`](Self::measure_activations).
    ///
    /// # Errors
    /// If a block refuses its input, the model has no parameters, or its device fails.
    pub fn measure_seconds(
        &self,
        batch: Batch<I, T>,
        compute: Dtype,
        recompute: Recompute,
    ) -> Result<Vec<f64>> {
        let (input, target): (_, Target) = (flatten(batch.input), Rc::new(batch.target));
        seconds(&self.chain, &self.objective, (input, target), compute, recompute)
    }
}

fn seconds(
    chain: &Blocks,
    objective: &Objective,
    (input, target): (Parts, Target),
    compute: Dtype,
    recompute: Recompute,
) -> Result<Vec<f64>> {
    chain.check_names()?;
    let device = chain.device()?;
    let mut parts = input.map_floats(|flat| cast(flat.to_device(&device), compute.dtype()));
    let mut all = Vec::new();
    let (first_trained, mut found) = (chain.first_trained(), SortedMap::<String, (f64, Trial)>::new());
    for (index, named) in chain.blocks.iter().enumerate() {
        let (wants_gradient, again) = (index > first_trained, recompute.applies_to(index));
        let mode = RunMode { wants_gradient, again, ..RunMode::default() };
        let kind = format!("{} {mode:?}", kind(named, &parts));
        let (seconds, trial) = match found.remove(&kind) {
            Some(found) => found,
            None => {
                let copy = copy(named, compute, &parts);
                fastest(&device, || run_copy(&copy, &parts, mode, Some(&Unmetered)))?
            }
        };
        all.push(seconds);
        parts = trial.output.clone();
        found.insert(kind, (seconds, trial));
    }
    let loss = || run_loss_once((chain.last_name(), objective), &parts, target.clone(), &Unmetered);
    let (seconds, _) = fastest(&device, loss)?;
    if let Some(last) = all.last_mut() {
        *last += seconds;
    }
    Ok(all)
}

/// The seconds of the fastest of some runs, and what the last of them gives.
fn fastest<R>(device: &Device, run: impl Fn() -> Result<R>) -> Result<(f64, R)> {
    let sync = || device.sync().map_err(|error| Error::Model(format!("the device failed: {error}")));
    let mut found = run()?;
    let mut seconds = f64::INFINITY;
    for _ in 0..RUNS {
        sync()?;
        let started = Instant::now();
        found = run()?;
        sync()?;
        seconds = seconds.min(started.elapsed().as_secs_f64());
    }
    Ok((seconds, found))
}

/// Where the heap does not matter.
struct Unmetered;

impl HeapMeter for Unmetered {
    fn in_use(&self) -> u64 {
        0
    }

    fn begin(&self) {}

    fn most_added(&self) -> u64 {
        0
    }
}
