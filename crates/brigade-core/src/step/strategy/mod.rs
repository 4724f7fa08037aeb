//! What makes the second and the third part of a step: the reduction of gradients, and the update.
//!
//! The first part, forward and backward, is a [schedule](brigade_plan::StageSchedule), and replaced by another schedule.

pub(crate) mod async_server;
mod compressed;
mod optimizers;
mod outer;
mod rank_sums;
mod synchronous;
mod unit_codes;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Tensor};

use crate::dist::{Collectives, PendingTensor};
use crate::error::{Error, Result};
use crate::metrics::{Bytes, Clock};
use crate::optim::{FlatState, OptimizerFactory, SavedState};
use crate::sharding::SeparateWorlds;
use crate::sharding::layout::{FlatLayout, FlatParam};
use crate::sharding::zero::Zero;

pub use async_server::AsyncServer;
pub use compressed::Compressed;
pub(crate) use outer::fragments::Due;
pub use outer::fragments::Fragments;
pub use outer::local_updates::LocalUpdates;
pub use outer::outer_optimizer::OuterOptimizer;
pub use outer::outer_sum::OuterDtype;
pub use synchronous::Synchronous;

/// How ranks that run different micro-batches train one model together: it provides the second and third part of their steps.
/// [`Synchronous`] is plain data parallelism and ZeRO.
///
/// A program's own strategy decides what is reduced and how parameters are updated. It cannot define other exchanges between workers or with servers:
/// [`outer_schedule`](Self::outer_schedule) and [`parameter_servers`](Self::parameter_servers) only choose among those that the engine implements.
pub trait Strategy: Debug + Send + Sync {
    /// Whether step `step`, counted from 1, ends with an update, for which gradients are reduced. The others only add gradients
    /// up ([`Engine::accumulate`](crate::Engine::accumulate)). It must be the same on all ranks.
    fn synchronizes(&self, step: u64) -> bool;

    /// Steps from one that synchronizes to the next.
    fn period(&self) -> usize;

    /// When workers that make updates of their own synchronise in outer steps; none where every update is one of all ranks, which are then one
    /// worker.
    fn outer_schedule(&self) -> Option<OuterSchedule> {
        None
    }

    /// The ranks that alone update parameters; none where each updates its part.
    fn parameter_servers(&self) -> Option<ParameterServers> {
        None
    }

    /// The second part: what becomes of the gradients of the rank's micro-batches.
    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction>;

    /// The third part: what becomes of the parameters.
    fn update(&self, optimizer: OptimizerFactory, data: DataParallel) -> Box<dyn Update> {
        let _ = data;
        Box::new(optimizers::Optimizers::new(optimizer))
    }
}

/// When workers that make updates of their own synchronise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterSchedule {
    /// A worker's own updates from one outer step to the next, at least 1.
    pub inner_steps: u64,
    /// The parts of the model whose outer steps come one after the other; none where the workers synchronise all of it at once.
    pub fragments: Option<Fragments>,
}

/// Ranks that update parameters, for others that run micro-batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterServers {
    /// How many they are: the last ones along [`DP`](crate::DP). Each updates its shard of every unit, and runs no micro-batches in training.
    pub count: usize,
    /// How workers push gradients that are applied one by one; none where a step is one update of all ranks.
    pub rounds: Option<Rounds>,
    /// Whether servers and workers are worlds of their own, so that workers may come and go; else they are ranks of one world.
    pub separate: Option<SeparateWorlds>,
}

impl dyn Strategy + '_ {
    /// [`OuterSchedule::inner_steps`].
    pub fn inner_steps(&self) -> Option<u64> {
        self.outer_schedule().map(|outer| outer.inner_steps)
    }

    /// [`OuterSchedule::fragments`].
    pub fn fragments(&self) -> Option<Fragments> {
        self.outer_schedule()?.fragments
    }

    /// [`ParameterServers::count`], or 0.
    pub fn servers(&self) -> usize {
        self.parameter_servers().map_or(0, |servers| servers.count)
    }

    /// [`ParameterServers::rounds`].
    pub fn rounds(&self) -> Option<Rounds> {
        self.parameter_servers()?.rounds
    }

    /// [`ParameterServers::separate`].
    pub fn separate_worlds(&self) -> Option<SeparateWorlds> {
        self.parameter_servers()?.separate
    }
}

/// Steps in which workers only wait for each other at a bound: see [`Engine::round`](crate::Engine::round). Between two rounds all ranks
/// have the same parameters.
///
/// A share is the part of a step's global batch that one worker would have in plain data parallelism over the workers. Workers take one share
/// after the other, in the order of the data, as they become free, so a slow one takes fewer. The gradient of a share, divided by the weight of
/// its own targets and clipped by its own norm, is an update with the learning rate of its step divided by the number of workers: together, the
/// shares of a step move the parameters about as far as one synchronous step (the linear scaling rule for the smaller batch: Goyal et al.,
/// "Accurate, large minibatch SGD", 2017).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// Steps of a round, at least 1.
    pub steps: u64,
    /// How many steps the parameters that a worker takes may be ahead of those that any other worker still computes with, at least 1.
    pub staleness: u64,
    /// λ of delay compensation, 0 for none: a gradient `g` of parameters `b` is applied to parameters `w` as `g + λ g² (w - b)`, element by element
    /// (Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017).
    pub delay_compensation: f64,
}

/// What a rank shares with those that run other micro-batches.
#[derive(Clone)]
pub struct DataParallel {
    /// The ranks that a unit's elements are divided among: with ZeRO those along [`DP`](crate::DP), else the rank alone.
    pub shard: Arc<dyn Collectives>,
    /// The ranks that have the same elements.
    pub replicate: Arc<dyn Collectives>,
    /// Where collectives take tensors from.
    pub device: Device,
    /// What is sharded.
    pub zero: Zero,
    /// The number type in which gradients are summed over the ranks.
    pub dtype: FloatDType,
    /// See [`EngineSettings::sum_group`](crate::EngineSettings::sum_group).
    pub sum_group: usize,
    /// The run's seed, the same on all ranks, for what a reduction draws.
    pub seed: u64,
}

/// A flat buffer of parameters, as a [`Reduction`] sees it.
#[derive(Debug, Clone)]
pub struct ReducedUnit {
    /// Its name, which no mesh changes.
    pub name: String,
    /// The parameters in it, in order and without gaps; behind them is padding.
    pub parameters: Vec<FlatParam>,
    /// Elements of the whole buffer, padded so that shards are equal.
    pub elements: usize,
    /// Those that this rank updates.
    pub own: Range<usize>,
    /// Whether it updates them: not if they are frozen, or another pipeline stage or a server does.
    pub is_updated: bool,
    /// The elements that each server updates; none where there are no servers, or the unit is frozen.
    pub served: Vec<Range<usize>>,
}

/// The second part of a step: from gradients of micro-batches to the gradient of the elements that this rank updates. Units are
/// numbered as in the list that it was made with.
pub trait Reduction: Send {
    /// Says which step the gradients that follow are of, counted from 1: the same on all ranks. By default that makes no difference.
    fn begin(&mut self, step: u64) {
        let _ = step;
    }

    /// Adds a micro-batch's gradient of a unit: the whole buffer. Micro-batches come in the same order for every unit.
    ///
    /// # Errors
    /// If a collective fails.
    fn add(&mut self, unit: usize, gradient: Tensor<1>, clock: &mut Clock) -> Result<()>;

    /// All gradients of a unit have been added, up to a step that [synchronizes](Strategy::synchronizes): sums over the ranks can
    /// begin. It may be called again without effect.
    fn complete(&mut self, unit: usize);

    /// Ends a step that synchronizes: waits, and gives each unit's gradient of the own elements, in fp32; none where the unit is
    /// not updated here.
    ///
    /// # Errors
    /// If a collective fails.
    fn finish(&mut self, clock: &mut Clock) -> Result<Vec<Option<Tensor<1>>>>;

    /// Says what became of the gradients that [`finish`](Self::finish) gave: whether they made an update, or the step was skipped. What is
    /// kept from one update to the next changes only now, and only with an update. By default nothing is kept.
    fn commit(&mut self, updates: bool) {
        let _ = updates;
    }

    /// Drops what has been added since the last step that synchronized.
    fn reset(&mut self);

    /// Bytes of gradients.
    fn bytes(&self) -> Bytes;

    /// What it keeps of a unit from one update to the next, and the ranks save together beside the optimizer's state: of each array,
    /// every element is in a piece of one rank. `share` are own elements that this rank alone saves, for arrays that ranks have in
    /// common. By default there is nothing.
    fn state(&self, unit: usize, share: Range<usize>) -> ReductionState {
        let _ = (unit, share);
        ReductionState::default()
    }

    /// Which elements of an array that was saved of a unit this rank needs; maybe none. By default the own ones.
    fn needs(&self, unit: usize, array: &str, own: Range<usize>) -> Range<usize> {
        let _ = (unit, array);
        own
    }

    /// Takes what was saved of a unit: every array, with the elements that this rank [needs](Self::needs). It has no slots if nothing
    /// was saved.
    ///
    /// # Errors
    /// If it is not of this reduction.
    fn restore(&mut self, unit: usize, saved: &SavedState) -> Result<()> {
        let _ = unit;
        saved.slots.keys().next().map_or(Ok(()), |array| Err(unit_codes::foreign(array)))
    }
}

/// What a [`Reduction`] keeps for a unit.
#[derive(Default)]
pub struct ReductionState {
    /// The names of its arrays, which have one value for each element of the unit, without padding. They are the same on all ranks that
    /// update the unit.
    pub arrays: Vec<String>,
    /// What this rank saves of them: the arrays of each state hold the elements from the given one on. They have no plain numbers.
    pub pieces: Vec<(usize, Box<dyn FlatState>)>,
}

/// The third part of a step: from the reduced gradients to new values of the elements that this rank updates.
pub trait Update: Send {
    /// Adds the next unit: its layout, and the range of the own elements, which are updated on `device`; none if the unit is not
    /// updated here.
    fn add(&mut self, layout: &FlatLayout, own: Option<Range<usize>>, device: &Device);

    /// Begins to make the own elements' next values; `scale` multiplies the gradient first. None where the unit is not updated
    /// here. Where it communicates, all ranks of a group come here for the same units in the same order. It must not wait for other ranks itself: what it gives
    /// [may be pending](PendingTensor). Burn's generator is seeded for it, and other threads of the process wait for that meanwhile.
    fn step(
        &mut self,
        unit: usize,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Option<PendingTensor>;

    /// Begins the outer step of a unit, after [as many updates](OuterSchedule::inner_steps) of each worker: tells the `workers`, the ranks
    /// that have the same elements in each of them, of this one's values of the own elements. None where the unit is not updated here. All
    /// workers come here for the same units in the same order. If a worker is lost meanwhile, the others begin again: until the outer step
    /// has [ended](Self::end_outer_step), nothing has changed.
    fn begin_outer_step(
        &mut self,
        unit: usize,
        values: Tensor<1>,
        workers: &Arc<dyn Collectives>,
    ) -> Option<PendingTensor> {
        let _ = (unit, values, workers);
        None
    }

    /// Ends the outer step of a unit over this many workers: from this one's `values` of the own elements, and what
    /// [`begin_outer_step`](Self::begin_outer_step) gave, to the values that it continues with.
    fn end_outer_step(
        &mut self,
        unit: usize,
        values: Tensor<1>,
        sum: Tensor<1>,
        workers: usize,
    ) -> Tensor<1> {
        let _ = (unit, values, workers);
        sum
    }

    /// The values of a unit's own elements that all workers have in common, where each [continues with others](OuterSchedule::fragments): those
    /// after the unit's last outer step. None where it is not updated here, and before the first step.
    fn common_values(&self, unit: usize) -> Option<Tensor<1>> {
        let _ = unit;
        None
    }

    /// Takes what [`common_values`](Self::common_values) gave, from a saved state.
    fn restore_common_values(&mut self, unit: usize, values: Tensor<1>) {
        let _ = (unit, values);
    }

    /// Bytes of the state.
    fn state_bytes(&self) -> u64;

    /// The state of a unit's elements in `range` for the worker's own updates; none where the unit is not updated here.
    fn state(&self, unit: usize, range: Range<usize>) -> Option<Box<dyn FlatState>>;

    /// Their state for outer steps, which is the same on all workers. By default there is none.
    fn outer_state(&self, unit: usize, range: Range<usize>) -> Option<Box<dyn FlatState>> {
        let _ = (unit, range);
        None
    }

    /// Takes what was saved of a unit's own elements, without padding.
    ///
    /// # Errors
    /// If it is not of this optimizer.
    fn restore(&mut self, unit: usize, saved: &SavedState, device: &Device) -> Result<()>;

    /// Takes what was saved of a unit's own elements for outer steps; `saved` is empty if nothing was.
    ///
    /// # Errors
    /// If it is not of this strategy.
    fn restore_outer(&mut self, unit: usize, saved: &SavedState, device: &Device) -> Result<()> {
        let _ = (unit, device);
        match saved.slots.keys().chain(saved.scalars.keys()).next() {
            Some(name) => Err(Error::State(format!(
                "the checkpoint has `{name}` of outer steps, which only the strategy (strategy.name, --strategy) that it was saved with can continue; \
                 leave this setting out to keep it, or resume with --strategy diloco --set strategy.outer_momentum=0, which keeps none, up to \
                 one checkpoint, and from there with this strategy"
            ))),
            None => Ok(()),
        }
    }
}
