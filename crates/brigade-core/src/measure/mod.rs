//! What a model's blocks need inside and how long they take, measured by running them.

mod extend;
mod heap;
mod run;
mod running;
mod seconds;

use std::rc::Rc;

use brigade_kernels::cast;
use brigade_plan::{BoundaryTensor, SavedActivations};
use brigade_sorted::SortedMap;

use crate::error::Result;
use crate::model::Dtype;
use crate::model::activation::{Activation, Part, Parts, flatten};
use crate::model::batch::Batch;
use crate::model::block::NamedBlock;
use crate::model::chain::blocks::Blocks;
use crate::model::objective::{Model, Objective, SmallerModel, Target};

use extend::{combined, extended};
pub use heap::HeapMeter;
use run::{RunMode, Trial, run_block, run_loss};

/// What a model's blocks take for one micro-batch: the part of a memory plan that shapes of parameters do not give.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasuredActivations {
    /// The tensors that go into each block.
    pub boundary_activations: Vec<Vec<BoundaryTensor>>,
    /// What each block needs inside, and then the loss. Empty where the heap cannot be measured.
    pub saved_activations: Vec<SavedActivations>,
}

impl MeasuredActivations {
    /// What a micro-batch of `samples` needs, by what two others do, of which the second has more samples: most tensors have as many rows as it has
    /// samples.
    pub fn of_samples(samples: usize, others: [(usize, Self); 2]) -> Self {
        let [(few, a), (more, b)] = others;
        let bytes = |a: u64, b: u64| {
            let of_one = (b as f64 - a as f64) / (more as f64 - few as f64);
            (a as f64 + of_one * (samples as f64 - few as f64)).round().max(0.0) as u64
        };
        combined([a, b], bytes, |a, b| bytes(a.bytes, b.bytes))
    }
}

impl<I: Activation, O: Activation, T: 'static> Model<I, O, T> {
    /// Runs each block and the loss forward and backward on one micro-batch, and measures what they take of the heap. They run
    /// where the micro-batch is, which must be a device whose tensors are on the process's heap; the model may be on another one. `splits`: whether backwards
    /// come in two halves. Without a meter, only the tensors between blocks are found, by forwards alone.
    ///
    /// One block is in memory at a time: a copy, whose parameters get some value where they have none. The model itself stays as it
    /// is, also its running state. Of blocks that are alike in their type, their fields and the shapes of their parameters and
    /// inputs, one is run.
    ///
    /// Where [smaller models](Self::measured_by) stand for this one, they are measured, with the same parameters frozen, and what they need is extended to its size: each tensor
    /// is as large as its sizes say, so no more than the temporary memory of operations is other than it would be measured.
    ///
    /// # Errors
    /// If a block refuses its input, or the model has no parameters.
    pub fn measure_activations(
        &self,
        batch: Batch<I, T>,
        compute: Dtype,
        splits: bool,
        meter: Option<&dyn HeapMeter>,
    ) -> Result<MeasuredActivations> {
        let mut measured = match self.smaller.as_ref().and_then(|smaller| smaller(&batch)) {
            Some([a, b]) => {
                let measured = |SmallerModel { divisor, mut model, batch }| -> Result<_> {
                    model.chain.freeze_as(&self.chain);
                    Ok((divisor, model.measure_directly(batch, compute, splits, meter)?))
                };
                extended([measured(a)?, measured(b)?])
            }
            None => self.measure_directly(batch, compute, splits, meter)?,
        };
        let first_trained = self.chain.first_trained();
        let without = measured.boundary_activations.iter_mut().take(first_trained + 1).skip(1);
        without.flatten().for_each(|tensor| tensor.has_gradient = false);
        Ok(measured)
    }

    fn measure_directly(
        &self,
        batch: Batch<I, T>,
        compute: Dtype,
        splits: bool,
        meter: Option<&dyn HeapMeter>,
    ) -> Result<MeasuredActivations> {
        let (input, target): (_, Target) = (flatten(batch.input), Rc::new(batch.target));
        measure(&self.chain, &self.objective, (input, target), compute, splits, meter)
    }
}

fn measure(
    chain: &Blocks,
    objective: &Objective,
    (input, target): (Parts, Target),
    compute: Dtype,
    splits: bool,
    meter: Option<&dyn HeapMeter>,
) -> Result<MeasuredActivations> {
    chain.check_names()?;
    chain.device()?;
    let mut parts = input.map_floats(|flat| cast(flat, compute.dtype()));
    let mut measured = MeasuredActivations::default();
    let (first_trained, mut trials) = (chain.first_trained(), SortedMap::<String, Trial>::new());
    for (index, named) in chain.blocks.iter().enumerate() {
        let wants_gradient = index > first_trained;
        measured.boundary_activations.push(parts.0.iter().map(boundary_tensor).collect());
        let is_last = index + 1 == chain.blocks.len();
        let mode = RunMode { wants_gradient, again: false, wait: splits, defers: splits && !is_last };
        let kind = format!("{} {mode:?}", kind(named, &parts));
        let trial = match trials.remove(&kind) {
            Some(trial) => trial,
            None => run_block(named, &parts, compute, mode, meter)?,
        };
        measured.saved_activations.push(trial.activations);
        parts = trial.output.clone();
        trials.insert(kind, trial);
    }
    match meter {
        Some(meter) => {
            let loss = run_loss((chain.last_name(), objective), &parts, &target, meter)?;
            measured.saved_activations.push(loss);
        }
        None => measured.saved_activations.clear(),
    }
    Ok(measured)
}

fn boundary_tensor(part: &Part) -> BoundaryTensor {
    BoundaryTensor {
        bytes: part.bytes() as u64,
        dimensions: part.shape().len(),
        has_gradient: matches!(part, Part::Float(..)),
    }
}

/// What blocks that take the same memory have in common.
fn kind(named: &NamedBlock, input: &Parts) -> String {
    let dtypes: Vec<_> = input.0.iter().map(|part| part.bytes()).collect();
    let (fields, specs) = (named.block.fields(), named.block.specs());
    format!("{fields} {specs:?} {} {dtypes:?}", input.describe())
}
