//! The training step of one rank: the schedule's actions, sums over ranks, the optimizer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_plan::{Program, ScheduleKind, Stage, split};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::clock::Clock;
use crate::collectives::Traffic;
use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::memory::{Bytes, Memory};
use crate::model::{Chain, Loss, Model};
use crate::norm::clip_factor;
use crate::optimizer::OptimizerFactory;
use crate::pass::Sums;
use crate::store::Store;
use crate::ties::Tie;
use crate::unit::Unit;
use crate::zero::{Precision, Recompute, Zero};

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// End the run; the message names rank, step and block.
    #[default]
    Stop,
    /// Leave weights and optimizer as they are and go on with the next step; also where no target
    /// of the global batch is valid.
    Skip,
}

/// Settings of the step. The default is plain data parallelism in fp32.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Global-norm clipping: gradients of a larger norm are scaled down to it.
    pub gradient_clipping: Option<f64>,
    /// What to do when the loss or the gradient norm is not finite.
    pub on_nonfinite: NonFinite,
    /// What is sharded over the data-parallel ranks.
    pub zero: Zero,
    /// The schedule of the pipeline; without effect where there is one stage with one chunk.
    pub schedule: ScheduleKind,
    /// Chunks of blocks per pipeline stage (interleaving).
    pub chunks: usize,
    /// Number of blocks in each of the `stages · chunks` parts of the model, in order; empty to balance by cost.
    pub split: Vec<usize>,
    /// Which blocks are run again in the backward pass.
    pub recompute: Recompute,
    /// Number types.
    pub precision: Precision,
    /// Keeps the optimizer's state and fp32 masters on this device, and steps them there: the host's, where the
    /// blocks' device is another one.
    pub offload: Option<Device>,
    /// In a process without data-parallel peers: sums the gradients of so many neighbouring micro-batches
    /// first, as that many ranks do which sum each micro-batch at once ([`crate::ReduceEvery`]). It makes one
    /// process the reference for them where their number is no power of two.
    pub sum_group: usize,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            gradient_clipping: None,
            on_nonfinite: NonFinite::Stop,
            zero: Zero::default(),
            schedule: ScheduleKind::default(),
            chunks: 1,
            split: Vec::new(),
            recompute: Recompute::None,
            precision: Precision::default(),
            offload: None,
            sum_group: 1,
        }
    }
}

/// What one step did. Loss, norm, targets and whether it was skipped are equal on all ranks, to the bit.
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
    /// Where this rank's time went.
    pub clock: Clock,
    /// The time from the step's start to the end of all ranks' last backward in which this rank stood still
    /// because of the pipeline: it waited for a neighbouring stage, or for the other stages to finish.
    pub bubble: Duration,
    /// Most micro-batches that were between forward and backward on this rank, chunk by chunk.
    pub in_flight: usize,
    /// Bytes that this rank holds.
    pub memory: Memory,
    /// Calls and bytes that this rank sent in this step.
    pub traffic: Traffic,
}

/// Trains one rank's part of a model, together with the other ranks of a mesh.
///
/// A rank runs its stage's blocks on its micro-batches in the order of a schedule, sums gradients over its
/// data-parallel peers, steps its part of the parameters, and gives the others what they need of them.
pub struct Engine<I, O, T> {
    pub(crate) chain: Chain<I, O>,
    pub(crate) loss: Loss<O, T>,
    pub(crate) store: Store,
    pub(crate) stage: Stage,
    pub(crate) settings: EngineSettings,
    pub(crate) step: u64,
    pub(crate) memory: Memory,
    pub(crate) programs: BTreeMap<(usize, bool), Arc<Program>>,
    pub(crate) shapes: Vec<BTreeMap<String, Vec<usize>>>,
    pub(crate) ties: Vec<Tie>,
}

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// Takes a model: gives the parameters of this rank's blocks their initial values from (`seed`, path)
    /// where they have none, one block after the other, and keeps of each what this rank is to hold.
    ///
    /// # Errors
    /// If the model has no blocks, two of one name, a wrong tie, nothing to train, or cannot be split so.
    pub fn new(
        model: Model<I, O, T>,
        seed: u64,
        optimizer: &OptimizerFactory,
        groups: Groups,
        settings: EngineSettings,
    ) -> Result<Self> {
        let Model { mut chain, loss } = model;
        chain.check_names()?;
        let (ties, mesh) = (chain.resolved_ties()?, groups.mesh());
        if let Some(tie) = ties.iter().find(|tie| tie.owner.0 > tie.follower.0) {
            return Err(Error::Model(format!(
                "tie: the owner `{}` must stand in the same block as its follower `{}` or an earlier one",
                tie.owner.1, tie.follower.1
            )));
        }
        let split = split(&settings.split, &chain.costs(), mesh.pp * settings.chunks.max(1))?;
        let stage = Stage::new(groups.pp.rank(), mesh.pp, &split);
        let blocks = chain.blocks.len();
        let shapes = chain.blocks.iter().map(|named| named.block.shapes()).collect();
        let mut store = Store {
            units: Vec::new(),
            holders: (0..blocks).map(|block| stage.holder(block)).collect(),
            shared: chain.shared(&ties),
            handed_out: vec![false; blocks],
            by_block: vec![Vec::new(); blocks],
            groups,
            zero: settings.zero,
            precision: settings.precision,
            device: chain.device()?,
            offload: settings.offload.clone(),
            frozen_bytes: 0,
            bytes: Bytes::default(),
        };
        let mut frozen = BTreeSet::new();
        for index in 0..blocks {
            let lends = ties.iter().any(|tie| tie.owner.0 == index && stage.holds(tie.follower.0));
            if stage.holds(index) || lends {
                let mut settling = Settling {
                    chain: &mut chain,
                    store: &mut store,
                    ties: &ties,
                    frozen_owners: &mut frozen,
                };
                settling.block(index, seed, optimizer)?;
            }
        }
        chain.finish_loading(mesh.pp > 1 || store.gathers());
        for index in (0..blocks).filter(|index| stage.holds(*index)) {
            store.hand_out(index, &mut chain.blocks[index]);
        }
        let engine = Self {
            chain,
            loss,
            store,
            stage,
            settings: EngineSettings { split, ..settings },
            step: 0,
            memory: Memory::default(),
            programs: BTreeMap::new(),
            shapes,
            ties,
        };
        let trained = engine.store.units.len() as f64;
        if engine
            .store
            .groups
            .pp
            .all_gather_scalars(vec![trained])
            .wait()?
            .iter()
            .all(|units| units[0] == 0.0)
        {
            return Err(Error::Model("the model has no trainable parameter".into()));
        }
        Ok(engine)
    }

    /// The model with the values of the last step. Where pipeline stages or ZeRO-3 leave this rank with a part of it,
    /// it gives no values: see [`collect`](Self::collect).
    pub fn chain(&self) -> &Chain<I, O> {
        &self.chain
    }

    /// As [`chain`](Self::chain).
    pub fn into_chain(self) -> Chain<I, O> {
        self.chain
    }

    /// Number of blocks in each part of the pipeline.
    pub fn split(&self) -> &[usize] {
        &self.settings.split
    }

    /// Bytes that this rank holds.
    pub fn memory(&self) -> Memory {
        Memory { parameters: self.store.bytes, ..self.memory }
    }

    /// Runs one step on this rank's micro-batches. Ranks of the same pipeline are given the same ones; of them
    /// the first stage uses the inputs, the last one the targets.
    ///
    /// # Errors
    /// If a collective fails, a block refuses its input, no target is valid, or (unless it is to be
    /// skipped) something is not finite; the weights are then those of the step before.
    pub fn step(&mut self, batches: Vec<Batch<I, T>>, learning_rate: f64) -> Result<StepReport> {
        self.step += 1;
        let before = self.store.groups.traffic();
        let mut clock = Clock::default();
        let sums = self.sums(&batches, &mut clock)?;
        let skips = self.settings.on_nonfinite == NonFinite::Skip;
        if sums.targets == 0.0 && !skips {
            return Err(Error::NoTargets { step: self.step });
        }
        let skipped = sums.targets == 0.0 || !(sums.loss.is_finite() && sums.grad_norm.is_finite());
        if skipped && !skips {
            return Err(self.not_finite(&batches, &sums));
        }
        let Sums { gradients, grad_norm, loss, targets, in_flight } = sums;
        // Until here waits for neighbours are the pipeline's, and so is the wait for the last of them.
        let idle = |what: &str| clock.waits.get(what).copied().unwrap_or_default();
        let bubble = if self.stage.stages > 1 {
            idle("pipeline") + idle("all_gather_scalars")
        } else {
            Duration::ZERO
        };
        if !skipped {
            let scale = clip_factor(grad_norm, self.settings.gradient_clipping);
            self.update(gradients, learning_rate, scale, &mut clock)?;
        }
        Ok(StepReport {
            step: self.step,
            loss: if targets == 0.0 { f64::NAN } else { loss },
            grad_norm,
            targets: targets as u64,
            skipped,
            bubble,
            in_flight,
            memory: self.memory(),
            clock,
            traffic: difference(self.store.groups.traffic(), &before),
        })
    }

    /// Steps what this rank owns, and gives the others what they need of it.
    fn update(
        &mut self,
        gradients: Vec<Option<Tensor<1>>>,
        learning_rate: f64,
        scale: Option<f64>,
        clock: &mut Clock,
    ) -> Result<()> {
        let started = Instant::now();
        let waited = clock.comm_wait();
        let mut sent = Vec::new();
        for (unit, gradient) in gradients.into_iter().enumerate() {
            let values = self.store.own_values(unit)?;
            let stored = &mut self.store.units[unit];
            let (Some(optimizer), Some(gradient)) = (&mut stored.optimizer, gradient) else { continue };
            let gradient = gradient.to_device(&values.device());
            let values = optimizer.step(learning_rate, values, gradient, scale);
            sent.extend(self.store.lend(unit, &values));
            self.store.set_own_values(unit, values);
        }
        self.store.borrow(clock)?;
        for pending in sent {
            clock.waiting("pipeline", || pending.wait())?;
        }
        if !self.store.gathers() {
            for index in (0..self.chain.blocks.len()).filter(|index| self.stage.holds(*index)) {
                self.store.settle(index, clock)?;
                self.store.hand_out(index, &mut self.chain.blocks[index]);
            }
        }
        if self.memory.optimizer.live == 0 {
            let states = self.store.units.iter().filter_map(|stored| stored.optimizer.as_ref());
            self.memory.optimizer.set(states.map(|optimizer| optimizer.state_bytes()).sum());
        }
        clock.optimizer += started.elapsed().saturating_sub(clock.comm_wait() - waited);
        Ok(())
    }
}

/// The move of a model's values into the store, block by block.
struct Settling<'a, I, O> {
    chain: &'a mut Chain<I, O>,
    store: &'a mut Store,
    ties: &'a [Tie],
    /// Shared parameters that are not trained: their followers keep copies.
    frozen_owners: &'a mut BTreeSet<(usize, String)>,
}

impl<I: Activation, O: Activation> Settling<'_, I, O> {
    /// Gives one block its values and takes into the store what this rank is to hold of them: its own units, if this
    /// rank holds the block, and those that other blocks of this rank share.
    fn block(&mut self, index: usize, seed: u64, optimizer: &OptimizerFactory) -> Result<()> {
        self.chain.initialize_block(index, seed)?;
        let (store, ties) = (&mut *self.store, self.ties);
        let is_here = |block: usize| store.holders[block] == store.groups.pp.rank();
        let here = is_here(index);
        let named = &mut self.chain.blocks[index];
        named.block.train();
        let values = named.block.values();
        let trainable = values.iter().filter(|(_, value)| value.trainable);
        let shapes = trainable.map(|(path, value)| (path.clone(), value.shape.clone())).collect();
        let units = Unit::of_block(index, &named.name, &shapes, ties);
        let used = |unit: &Unit| unit.users.iter().any(|user| is_here(user.block));
        for unit in units.into_iter().filter(used).collect::<Vec<_>>() {
            let values = |path: &str| values[path].flat.clone();
            let flat = unit.layout.params().iter().map(|param| (param.path.clone(), values(&param.path)));
            let flat = unit.layout.pack(flat.collect(), unit.layout.len(), &store.device);
            store.add(unit, flat, here.then_some(optimizer))?;
        }
        for (path, value) in values.iter().filter(|(_, value)| !value.trainable) {
            if ties.iter().any(|tie| tie.owner.0 == index && tie.owner.1 == *path) {
                self.frozen_owners.insert((index, path.clone()));
            }
            if here {
                store.frozen_bytes += 4 * value.shape.iter().product::<usize>() as u64;
            }
        }
        // What is in the store is handed out from there; a block of another stage keeps nothing.
        let device = store.device.clone();
        named.block.replace(&mut |path| {
            let value = values.get(path)?;
            let tie = ties.iter().find(|tie| tie.follower.0 == index && tie.follower.1 == path);
            let keeps = match tie {
                Some(tie) => self.frozen_owners.contains(&tie.owner),
                None => !value.trainable,
            };
            (!(here && keeps)).then(|| (Tensor::empty([0], &device), vec![0; value.shape.len()]))
        });
        for tie in ties.iter().filter(|tie| tie.owner.0 == index && self.frozen_owners.contains(&tie.owner)) {
            let value = &values[&tie.owner.1];
            self.chain.blocks[tie.follower.0].block.replace(&mut |path| {
                (path == tie.follower.1).then(|| (value.flat.clone(), value.shape.clone()))
            });
        }
        Ok(())
    }
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
