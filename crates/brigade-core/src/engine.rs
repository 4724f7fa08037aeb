//! The training step: blocks forward and backward, gradients summed over ranks, optimizer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::accumulate::PairwiseSum;
use crate::activation::{Activation, Parts, flatten};
use crate::collectives::{Collectives, Traffic};
use crate::diagnose::diagnose;
use crate::error::{Error, Result};
use crate::gradient::{Clock, Sums};
use crate::layout::FlatLayout;
use crate::model::{Chain, Loss, Model, NamedTensor, Tie, restore_output, to_host};
use crate::norm::clip_factor;
use crate::optimizer::{FlatOptimizer, OptimizerFactory};

/// One micro-batch of a rank.
#[derive(Debug, Clone)]
pub struct Batch<I, T> {
    /// What the first block takes.
    pub input: I,
    /// What the loss takes beside the model's output.
    pub target: T,
    /// Number of targets that count in the loss (tokens that are not masked, samples).
    pub valid_targets: usize,
}

/// What to do when the loss or the gradient norm is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// End the run; the message names rank, step and block.
    Stop,
    /// Leave weights and optimizer as they are and go on with the next step; also where no target
    /// of the global batch is valid.
    Skip,
}

/// Settings of the step.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Global-norm clipping: gradients of a larger norm are scaled down to it.
    pub gradient_clipping: Option<f64>,
    /// What to do when the loss or the gradient norm is not finite.
    pub on_nonfinite: NonFinite,
}

/// What one step did. All numbers but the seconds and the traffic are equal on all ranks, to the bit.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// Mean loss over the valid targets of the global batch.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Valid targets in the global batch.
    pub targets: u64,
    /// Whether the optimizer was left out because something was not finite.
    pub skipped: bool,
    /// Time in forward passes.
    pub forward: Duration,
    /// Time in backward passes, packing and accumulating gradients.
    pub backward: Duration,
    /// Time in the optimizer, norm and handing the new weights to the blocks.
    pub optimizer: Duration,
    /// Time in which this rank stood waiting for a collective.
    pub comm_wait: Duration,
    /// Calls and bytes that this rank sent in this step.
    pub traffic: Traffic,
}

/// The flat side of one block.
pub(crate) struct FlatState {
    pub layout: FlatLayout,
    pub values: Tensor<1>,
    pub gradient: PairwiseSum<Tensor<1>>,
    optimizer: Box<dyn FlatOptimizer>,
}

/// Trains one rank's copy of a model, together with the other ranks of a group.
///
/// Every rank holds the whole model and the whole optimizer state; each runs its own micro-batches
/// and all sum their gradients, block by block, while the backward pass of earlier blocks still
/// runs (ZeRO stage 0, that is DDP).
pub struct Engine<I, O, T> {
    pub(crate) chain: Chain<I, O>,
    pub(crate) loss: Loss<O, T>,
    pub(crate) states: Vec<FlatState>,
    pub(crate) ties: Vec<Tie>,
    pub(crate) collectives: Arc<dyn Collectives>,
    settings: EngineSettings,
    pub(crate) step: u64,
}

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// Takes a model: gives its parameters their initial values from (`seed`, path) where they have
    /// none, and moves them into flat buffers.
    ///
    /// # Errors
    /// If the model has no blocks, two of one name, a wrong tie or nothing to train.
    pub fn new(
        model: Model<I, O, T>,
        seed: u64,
        optimizer: &OptimizerFactory,
        collectives: Arc<dyn Collectives>,
        settings: EngineSettings,
    ) -> Result<Self> {
        let Model { mut chain, loss } = model;
        chain.initialize(seed)?;
        let ties = chain.resolved_ties()?;
        if let Some(tie) = ties.iter().find(|tie| tie.owner.0 > tie.follower.0) {
            return Err(Error::Model(format!(
                "tie: the owner `{}` must stand in the same block as its follower `{}` or an earlier one",
                tie.owner.1, tie.follower.1
            )));
        }
        let mut states = Vec::with_capacity(chain.blocks.len());
        for (index, named) in chain.blocks.iter_mut().enumerate() {
            named.block.train();
            let mut values = named.block.values();
            values.retain(|path, value| value.trainable && !is_follower(&ties, index, path));
            let layout =
                FlatLayout::new(values.iter().map(|(path, value)| (path.clone(), value.shape.clone())));
            let device = values.values().next().map(|value| value.flat.device()).unwrap_or_default();
            let flat = values.into_iter().map(|(path, value)| (path, value.flat)).collect();
            let (values, optimizer) = (layout.pack(flat, &device), optimizer.build(&layout));
            states.push(FlatState { layout, values, gradient: PairwiseSum::new(), optimizer });
        }
        if states.iter().all(|state| state.layout.is_empty()) {
            return Err(Error::Model("the model has no trainable parameter".into()));
        }
        let mut engine = Self { chain, loss, states, ties, collectives, settings, step: 0 };
        engine.hand_out_values();
        Ok(engine)
    }

    /// The model, with the values of the last step.
    pub fn chain(&self) -> &Chain<I, O> {
        &self.chain
    }

    /// The model, with the values of the last step.
    pub fn into_chain(self) -> Chain<I, O> {
        self.chain
    }

    /// Runs one step on this rank's micro-batches.
    ///
    /// # Errors
    /// If a collective fails, a block refuses its input, no target is valid, or (unless it is to be
    /// skipped) something is not finite; the weights are then those of the step before.
    pub fn step(&mut self, batches: Vec<Batch<I, T>>, learning_rate: f64) -> Result<StepReport> {
        self.step += 1;
        let before = self.collectives.traffic();
        let mut clock = Clock::default();
        let sums = match self.sums(&batches, &mut clock) {
            Err(Error::NoTargets { .. }) if self.settings.on_nonfinite == NonFinite::Skip => Sums::nothing(),
            sums => sums?,
        };
        let Sums { gradients, grad_norm, loss, targets } = sums;

        let skipped = !(loss.is_finite() && grad_norm.is_finite());
        if skipped && self.settings.on_nonfinite == NonFinite::Stop {
            return Err(self.not_finite(&batches, targets, loss, grad_norm));
        }
        let started = Instant::now();
        if !skipped {
            self.update(gradients, learning_rate, clip_factor(grad_norm, self.settings.gradient_clipping));
        }
        clock.optimizer += started.elapsed();

        let traffic = difference(self.collectives.traffic(), &before);
        let Clock { forward, backward, optimizer, comm_wait } = clock;
        Ok(StepReport {
            step: self.step,
            loss,
            grad_norm,
            targets: targets as u64,
            skipped,
            forward,
            backward,
            optimizer,
            comm_wait,
            traffic,
        })
    }

    /// The gradients that a step on these micro-batches would use, summed over all ranks and before
    /// clipping, by parameter name, and the loss. Nothing is updated. All ranks call it together.
    ///
    /// # Errors
    /// As [`Engine::step`], but for values that are not finite.
    pub fn gradients(&mut self, batches: Vec<Batch<I, T>>) -> Result<(f64, Vec<NamedTensor>)> {
        let sums = self.sums(&batches, &mut Clock::default())?;
        let mut named = Vec::new();
        for ((block, state), gradient) in self.chain.blocks.iter().zip(&self.states).zip(sums.gradients) {
            let Some(gradient) = gradient else { continue };
            for param in state.layout.params() {
                let data = to_host(state.layout.view(&gradient, param), &param.shape)?;
                named.push(NamedTensor { name: format!("{}.{}", block.name, param.path), data });
            }
        }
        Ok((sums.loss, named))
    }

    /// Mean loss over the valid targets of all ranks' batches, without training. All ranks call it
    /// together; one that has no batch passes none.
    ///
    /// # Errors
    /// As [`Engine::step`], and those of the batches.
    pub fn evaluate(&self, batches: impl IntoIterator<Item = Batch<I, T>>) -> Result<f64> {
        let chain = self.chain.valid();
        let (mut losses, mut valid) = (PairwiseSum::new(), 0);
        for batch in batches {
            let loss = (self.loss)(chain.predict(batch.input)?, batch.target);
            let loss = loss.inner().try_into_vec_as::<f32>().map_err(|e| Error::Device(e.to_string()))?;
            losses.push(f64::from(loss[0]), |a, b| a + b);
            valid += batch.valid_targets;
        }
        let local = losses.finish(|a, b| a + b).unwrap_or(0.0);
        let shares = self.collectives.exchange(vec![local, valid as f64]).wait()?;
        let mut sum = PairwiseSum::new();
        shares.iter().for_each(|share| sum.push(share[0], |a, b| a + b));
        let valid: f64 = shares.iter().map(|share| share[1]).sum();
        Ok(sum.finish(|a, b| a + b).unwrap_or(0.0) / valid)
    }

    fn update(&mut self, gradients: Vec<Option<Tensor<1>>>, learning_rate: f64, scale: Option<f64>) {
        for (state, gradient) in self.states.iter_mut().zip(gradients) {
            if let Some(gradient) = gradient {
                let values = std::mem::replace(&mut state.values, Tensor::empty([0], &gradient.device()));
                state.values = state.optimizer.step(learning_rate, values, gradient, scale);
            }
        }
        self.hand_out_values();
    }

    /// Makes the blocks' parameters views of the flat buffers.
    fn hand_out_values(&mut self) {
        let (states, ties) = (&self.states, &self.ties);
        let value = |block: usize, path: &str| {
            let state = &states[block];
            let param = state.layout.params().iter().find(|param| param.path == path)?;
            Some(state.layout.view(&state.values, param))
        };
        for (index, named) in self.chain.blocks.iter_mut().enumerate() {
            named.block.replace(&mut |path| match ties
                .iter()
                .find(|t| t.follower.0 == index && t.follower.1 == path)
            {
                Some(tie) => value(tie.owner.0, &tie.owner.1),
                None => value(index, path),
            });
        }
    }

    fn not_finite(&self, batches: &[Batch<I, T>], targets: f64, loss: f64, grad_norm: f64) -> Error {
        let (what, value) =
            if loss.is_finite() { ("the gradient norm", grad_norm) } else { ("the loss", loss) };
        let runs = batches.iter().map(|batch| (flatten(batch.input.clone()), batch.target.clone()));
        let loss = |parts: Parts, target: T| {
            Ok((self.loss)(restore_output(&self.chain.blocks, parts)?, target).div_scalar(targets))
        };
        match diagnose(&self.chain.blocks, runs, loss, self.collectives.as_ref()) {
            Ok(culprit) => Error::NonFinite { step: self.step, what, value, culprit },
            Err(error) => error,
        }
    }
}

fn is_follower(ties: &[Tie], block: usize, path: &str) -> bool {
    ties.iter().any(|tie| tie.follower.0 == block && tie.follower.1 == path)
}

fn difference(after: Traffic, before: &Traffic) -> Traffic {
    after
        .into_iter()
        .map(|(operation, (calls, bytes))| {
            let (calls_before, bytes_before) = before.get(&operation).copied().unwrap_or_default();
            (operation, (calls.saturating_sub(calls_before), bytes.saturating_sub(bytes_before)))
        })
        .filter(|(_, (calls, _))| *calls > 0)
        .collect()
}
