//! The engine of a model, with the types of its input, output and targets.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::UntypedEngine;
use crate::dist::{Collectives, Groups};
use crate::error::{BoxError, Result};
use crate::model::activation::{Activation, flatten};
use crate::model::batch::Batch;
use crate::model::cache::Cache;
use crate::model::chain::Chain;
use crate::model::chain::predict::restore_output;
use crate::model::chain::values::NamedTensor;
use crate::model::objective::Model;
use crate::optim::OptimizerFactory;
use crate::step::engine::rounds::Share;
use crate::step::forward_backward::micro_batches::{MicroBatches, UntypedBatch};
use crate::step::report::{Evaluation, StepReport};
use crate::step::settings::EngineSettings;

/// Trains one rank's part of a model, together with the other ranks of a mesh.
///
/// A rank runs its stage's blocks on its micro-batches in the order of a schedule, reduces gradients together with the ranks that run other
/// micro-batches, updates its part of the parameters, and sends the others what they need of them. A [`Strategy`](crate::Strategy) provides
/// the second and third part. What does not depend on the model's types is in [`UntypedEngine`].
pub struct Engine<I, O, T> {
    untyped: UntypedEngine,
    types: PhantomData<fn(I, T) -> O>,
}

impl<I, O, T> Deref for Engine<I, O, T> {
    type Target = UntypedEngine;

    fn deref(&self) -> &UntypedEngine {
        &self.untyped
    }
}

impl<I, O, T> DerefMut for Engine<I, O, T> {
    fn deref_mut(&mut self) -> &mut UntypedEngine {
        &mut self.untyped
    }
}

impl<I, O, T> Engine<I, O, T> {
    /// The model with the values of the last step. Where pipeline stages or ZeRO-3 leave this rank with a part of it,
    /// it gives no values: see [`collect`](UntypedEngine::collect). Where workers synchronise one [fragment](crate::Fragments) after the other, the values are
    /// this one's own until [`keep_model_values`](UntypedEngine::keep_model_values).
    pub fn chain(&self) -> &Chain<I, O> {
        Chain::of_ref(&self.untyped.chain)
    }

    /// As [`chain`](Self::chain).
    pub fn into_chain(self) -> Chain<I, O> {
        Chain::of(self.untyped.chain)
    }
}

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone + 'static,
{
    /// Takes a model: gives the parameters of this rank's blocks their initial values from (`seed`, path)
    /// where they have none, one block after the other, and keeps of each what this rank is to hold.
    ///
    /// # Errors
    /// If the model has no blocks, two of one name, a wrong tie, nothing to train, or cannot be split so. If ranks load
    /// [other values](crate::Blocks::compare_loaded), or parameters have other values on them already. If a parameter is not of floats.
    pub fn new(
        model: Model<I, O, T>,
        seed: u64,
        optimizer: &OptimizerFactory,
        groups: Groups,
        settings: EngineSettings,
    ) -> Result<Self> {
        let Model { chain, objective, .. } = model;
        let untyped = UntypedEngine::new(chain.into_blocks(), objective, seed, optimizer, groups, settings)?;
        Ok(Self { untyped, types: PhantomData })
    }

    /// Runs one step without an update: adds this rank's gradients up, as PyTorch's `no_sync` does, and learns nothing from other
    /// replicas. Its loss is part of the next [`step`](Self::step)'s report. A rank is given as many micro-batches in each step up to
    /// that one.
    ///
    /// # Errors
    /// If the step [synchronizes](UntypedEngine::synchronizes), a block refuses its input, a collective fails (those of the pipeline, and of
    /// ZeRO-2 and 3), or the number of micro-batches is another one. The gradients since the last update are then dropped.
    pub fn accumulate(&mut self, mut batches: Vec<Batch<I, T>>) -> Result<()> {
        self.untyped.accumulate(&mut batches)
    }

    /// Runs one step on this rank's micro-batches. Ranks of the same pipeline are given the same ones; of them
    /// the first stage uses the inputs, the last one the targets.
    ///
    /// # Errors
    /// If a collective fails, a block refuses its input, no target is valid, ranks were given different learning rates, or (unless
    /// it is to be skipped) something is not finite; the weights are then those of the step before. If the step does not
    /// [synchronize](UntypedEngine::synchronizes).
    pub fn step(&mut self, mut batches: Vec<Batch<I, T>>, learning_rate: f64) -> Result<StepReport> {
        self.untyped.step(&mut batches, learning_rate)
    }

    /// Runs one step that makes an update of this worker alone, without communicating with other workers. Its loss is part of
    /// the next [`step`](Self::step)'s report, which is of all workers.
    ///
    /// # Errors
    /// As those of [`step`](Self::step), and if the next step is [no such one](UntypedEngine::steps_alone).
    pub fn inner_step(&mut self, mut batches: Vec<Batch<I, T>>, learning_rate: f64) -> Result<()> {
        self.untyped.inner_step(&mut batches, learning_rate)
    }

    /// Runs a round: all its steps, whose shares workers take as they come to them. Then all ranks have the same parameters again. The
    /// report is of all of it. `learning_rate` gives that of a step, `read` the micro-batches of a share, on workers; `watch` is told
    /// on servers how many updates they have made in the round.
    ///
    /// # Errors
    /// If the strategy has no rounds, a collective fails, a block refuses its input, or (unless it is to be skipped) something is not finite, and those of
    /// `read` and `watch`. What servers have is then somewhere within the round, and training continues from a checkpoint alone.
    pub fn round(
        &mut self,
        learning_rate: &dyn Fn(u64) -> f64,
        read: &mut dyn FnMut(Share) -> Result<Vec<Batch<I, T>>, BoxError>,
        watch: &mut dyn FnMut(u64) -> Result<(), BoxError>,
    ) -> Result<StepReport> {
        self.untyped.round(learning_rate, &mut |share| Ok(boxed(read(share)?)), watch)
    }

    /// Works for servers that are a world of their own, until they have no share left. The group has this worker first, and then the
    /// servers. If it fails because a server was lost, nothing of this worker's is lost: it can be called again with another group.
    ///
    /// # Errors
    /// As [`round`](Self::round).
    pub fn work_for(
        &mut self,
        group: &Arc<dyn Collectives>,
        learning_rate: &dyn Fn(u64) -> f64,
        read: &mut dyn FnMut(Share) -> Result<Vec<Batch<I, T>>, BoxError>,
    ) -> Result<()> {
        self.untyped.work_for(group, learning_rate, &mut |share| Ok(boxed(read(share)?)))
    }

    /// Loss and metrics over all ranks' batches, without training. All ranks call it together, those of the same pipeline
    /// with the same batches. This rank has `count` of them, or none; `load` makes one of them, shortly before it is used,
    /// and not on stages that need neither inputs nor targets.
    ///
    /// # Errors
    /// As [`Engine::step`], and those of `load`.
    pub fn evaluate(
        &mut self,
        count: usize,
        mut load: impl FnMut(usize) -> Result<Batch<I, T>, BoxError>,
    ) -> Result<Evaluation> {
        let mut load = |number: usize| Ok(UntypedBatch::of(load(number)?));
        self.untyped.evaluate(count, &mut load)
    }

    /// The model's output for an input, as an evaluation computes it (nothing is drawn at random for training, no graph is
    /// recorded), with floats in fp32. All ranks call it together, and each gets the output: ranks of the same pipeline
    /// give the same input, of which the first stage uses its own; data-parallel ranks may each give another one.
    ///
    /// Its bits are the same on every mesh, as the losses of evaluations are.
    ///
    /// # Errors
    /// If a collective fails, or a block refuses its input.
    pub fn predict(&mut self, input: I) -> Result<O> {
        let input = flatten(input);
        let output = self.untyped.with_model_values(|engine| engine.predict_as_it_is(input))?;
        restore_output(self.untyped.chain.last_name(), output)
    }

    /// The model's output for what follows the inputs that were given before with this cache, as
    /// [`Chain::predict_cached`](crate::Chain::predict_cached) computes it. All ranks call it together, those of the same pipeline with the same input, and each
    /// with a cache of its own, which holds what belongs to the rank's blocks. The ranks that run the last block get the output, the others none.
    ///
    /// # Errors
    /// If a collective fails, or a block refuses its input.
    pub fn predict_cached(&mut self, input: I, cache: &mut Cache) -> Result<Option<O>> {
        let input = flatten(input);
        let found = self.untyped.with_model_values(|engine| engine.predict_cached_as_it_is(input, cache))?;
        found.map(|output| restore_output(self.untyped.chain.last_name(), output)).transpose()
    }

    /// The whole model for inference on rank `root`, with values in fp32 and without autodiff; none on the others. All ranks call
    /// this together. Rank `root` then holds the whole model beside its own part.
    ///
    /// # Errors
    /// As [`collect`](UntypedEngine::collect).
    pub fn whole_chain(&self, root: usize) -> Result<Option<Chain<I, O>>> {
        Ok(self.untyped.whole_blocks(root)?.map(Chain::of))
    }

    /// The loss of a step on these micro-batches and, on rank `root`, the gradients that the step would use, by parameter name: summed
    /// over all ranks, before clipping. It updates nothing, and drops what was [accumulated](Engine::accumulate). All ranks call it together.
    ///
    /// # Errors
    /// As [`Engine::step`], except for values that are not finite.
    pub fn gradients(&mut self, batches: &[Batch<I, T>], root: usize) -> Result<(f64, Vec<NamedTensor>)> {
        self.untyped.gradients(&mut batches.to_vec(), root)
    }
}

fn boxed<I: Activation + Clone, T: Clone + 'static>(batches: Vec<Batch<I, T>>) -> Box<dyn MicroBatches> {
    Box::new(batches)
}
