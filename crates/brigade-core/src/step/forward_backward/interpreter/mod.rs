//! The interpreter: runs a rank's list of actions. It knows no schedule by name.

mod backward;
mod forward;
mod train_block;

use std::collections::VecDeque;
use std::time::Instant;

use brigade_plan::{Action, Pass, Stage, StageSchedule, StageTask, UnshardStep};
use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::Tensor;

use crate::dist::{DATA, Message, Pending, PendingValues};
use crate::error::{Error, Result};
use crate::metrics::Bytes;
use crate::metrics::{Activity, Clock};
use crate::model::activation::{Part, Parts};
use crate::model::batch::TargetSum;
use crate::model::block::NamedBlock;
use crate::model::cache::Cache;
use crate::model::objective::Objective;
use crate::optim::sum_of_squares;
use crate::sharding::store::ParameterStore;
use crate::sharding::zero::ReduceEvery;
use crate::step::forward_backward::check_blocks::CheckBlocks;
use crate::step::forward_backward::micro_batches::MicroBatches;
use crate::step::forward_backward::non_finite::NonFiniteCheck;
use crate::step::forward_backward::recompute::Recompute;
use crate::step::forward_backward::tape::{Place, Tape};
use crate::step::forward_backward::tied_gradients::TiedSums;
use crate::step::running_state::{RunningState, Terms};
use crate::step::strategy::Reduction;
use backward::{Deferred, Halves};

/// Most messages to other stages that may be on their way at once: further ones wait for the first to have left, so
/// that a stage does not run ahead of a slower one by more than what receives were posted for.
const MAX_UNSENT: usize = 2;

/// After how many micro-batches of an evaluation all ranks wait for one another, at least.
const BETWEEN_BARRIERS: usize = 4;

/// What a pass is for.
pub(crate) enum PassMode<'a> {
    /// Gradients, to be summed; `completes` with those of earlier steps, or there are more to come.
    Train { reduction: &'a mut dyn Reduction, completes: bool },
    /// Losses only: nothing is kept for a backward.
    Evaluate,
    /// The model's output only, in fp32, on the ranks that run its last block.
    Predict(&'a mut Option<Parts>),
    /// The same for what follows the input before; in fp32 if a loss would get it so.
    PredictCached(&'a mut Option<Parts>, &'a mut Cache),
    /// Looks for values that are not finite; gradients are checked and dropped.
    CheckFinite(&'a mut NonFiniteCheck),
}

impl PassMode<'_> {
    /// Whether blocks run as in training, with a backward after the forward.
    pub(crate) fn has_backward(&self) -> bool {
        match self {
            Self::Train { .. } | Self::CheckFinite(_) => true,
            Self::Evaluate | Self::Predict(_) | Self::PredictCached(..) => false,
        }
    }
}

/// What waits for an action: a place of the pipeline and a micro-batch.
type Key = (Pass, usize, usize);

/// One pass of a rank over its micro-batches.
pub(crate) struct Interpreter<'a> {
    pub blocks: &'a mut [NamedBlock],
    pub store: &'a mut ParameterStore,
    pub stage: &'a Stage,
    pub objective: &'a Objective,
    /// The first block that is trained.
    pub first_trained: usize,
    pub recompute: Recompute,
    /// How often gradients of shared parameters go to the stage before.
    pub tied_gradients: ReduceEvery,
    /// Of which micro-batches blocks are run twice; the first is that after which nothing was updated yet.
    pub checks: CheckBlocks,
    pub running: &'a mut RunningState,
    /// The seed of the run, and the step; of several steps with one update, the last.
    pub seed: u64,
    pub step: u64,
    /// This rank's micro-batches between two updates, and how many of them were before this pass.
    pub per_update: usize,
    pub before: usize,
    /// Micro-batches of the global batch that are those of workers before this one, in worlds of their own.
    pub before_worker: usize,
    /// The number in the global batch of the first of them, where the mesh does not say.
    pub first: Option<usize>,
    /// The micro-batches; in an evaluation fewer than the schedule has, where other ranks have more.
    pub batches: &'a mut dyn MicroBatches,
    pub mode: PassMode<'a>,
    pub clock: &'a mut Clock,
    pub state: State,
}

/// What the interpreter holds between actions.
#[derive(Default)]
pub(crate) struct State {
    /// What the targets of the global batch weigh: on its way, then known. Only the last stage asks.
    pub total: TargetWeight,
    /// Loss of each micro-batch, where this rank knows it: divided, if anything divides it.
    pub losses: SortedMap<usize, Tensor<1>>,
    /// The metrics of each micro-batch, where this rank computes the loss.
    pub metrics: SortedMap<usize, Vec<Tensor<1>>>,
    /// What each micro-batch adds to running state.
    pub running: SortedMap<usize, Terms>,
    /// Tensors at the cuts between blocks, the gradients that second halves of backwards wait with, and those that go to another stage once a step, in bytes.
    pub activations: Bytes,
    /// Most micro-batches (of a chunk each) between forward and backward.
    pub most_in_flight: usize,
    /// Blocks after which the device was told to begin.
    pub flushed: usize,
    /// Whether all ranks wait for one another before the next forward.
    needs_barrier: bool,
    tapes: SortedMap<StageTask, Tape>,
    /// Of each task between the halves of its backward, the blocks whose gradients are not added up yet.
    deferred: SortedMap<StageTask, Vec<Deferred>>,
    /// Blocks whose operations leave nothing any more, because one had left a part of a gradient of which another had found a part.
    mixed: SortedSet<usize>,
    /// Of each chunk, what it holds of the gradients of parameters that blocks before it own, where they go there once a step.
    tied: SortedMap<usize, TiedSums>,
    /// Whether blocks have left something for their second halves, where that must be alike on all ranks.
    pub leaves: SortedMap<usize, bool>,
    /// Whether any block has; none where no backward was parted.
    pub second_halves: Option<bool>,
    /// What was asked for, with the rank of the pipeline that sends it.
    received: SortedMap<Key, (usize, Pending<Message>)>,
    to_send: SortedMap<Key, Message>,
    sent: VecDeque<Pending<()>>,
    block_runs: usize,
    /// When the action under way began to do its own work, where spans are recorded.
    began: Option<Instant>,
}

/// A number that all ranks of the last stage ask each other for at the start and need at the first backward.
#[derive(Default)]
pub(crate) enum TargetWeight {
    #[default]
    Unasked,
    Pending(PendingValues),
    Known(f64),
}

impl TargetWeight {
    /// The weight, or 1 where nothing was asked for or nothing weighs: there is nothing to divide then.
    fn divisor(&mut self, clock: &mut Clock) -> Result<f64> {
        if let Self::Pending(_) = self
            && let Self::Pending(pending) = std::mem::replace(self, Self::Unasked)
        {
            let values = clock.waiting("all_gather_scalars", || pending.wait())?;
            *self = Self::Known(TargetSum::over_ranks(&values).weight());
        }
        Ok(
            if let Self::Known(total) = self
                && *total != 0.0
            {
                *total
            } else {
                1.0
            },
        )
    }
}

impl State {
    pub(crate) fn new(total: TargetWeight) -> Self {
        Self { total, ..Self::default() }
    }
}

impl Interpreter<'_> {
    /// Runs the schedule to its end.
    pub(crate) fn run(&mut self, schedule: &StageSchedule) -> Result<()> {
        for action in &schedule.actions {
            self.state.began = self.clock.now();
            match *action {
                Action::Forward(task) => {
                    if self.state.needs_barrier {
                        self.barrier()?;
                    }
                    self.forward(task, schedule)?;
                    self.state.needs_barrier = self.needs_barrier_after(task);
                }
                Action::Backward(task) => self.backward(task, Halves::Both, schedule)?,
                Action::BackwardInput(task) => self.backward(task, Halves::Input, schedule)?,
                Action::BackwardWeights(task) => self.backward_weights(task)?,
                Action::Send { pass, task, to } => self.send(pass, task, to)?,
                Action::Receive { pass, task, from } => {
                    let key = self.needed_by(pass, task);
                    if self.takes_part(task) {
                        let pending = self.store.groups.pp.receive(from, &self.store.device);
                        self.state.received.insert(key, (from, pending));
                    }
                }
                Action::Reduce { chunk } => self.reduce(chunk),
            }
            self.clock.record(Activity::Action(*action), self.state.began);
        }
        for pending in std::mem::take(&mut self.state.sent) {
            self.clock.waiting("pipeline", || pending.wait())?;
        }
        Ok(())
    }

    /// Whether a barrier of all ranks follows this forward. Nothing else keeps data-parallel ranks together in an evaluation, and a rank that falls further behind with every
    /// micro-batch would at its end be waited for longer than an operation may take. Then no rank needs anything that another one sends after
    /// the barrier: with several chunks, micro-batches go in groups of as many as there are stages, or (in a V) each of them comes up before any later one.
    fn needs_barrier_after(&self, task: StageTask) -> bool {
        let period = self.stage.stages * BETWEEN_BARRIERS.div_ceil(self.stage.stages);
        matches!(self.mode, PassMode::Evaluate)
            && task.chunk + 1 == self.stage.chunks()
            && (task.micro_batch + 1).is_multiple_of(period)
    }

    /// Waits until all ranks have come here, and their devices, which may be behind them.
    fn barrier(&mut self) -> Result<()> {
        let world = self.store.groups.all().world().clone();
        if world.size() == 1 {
            return Ok(());
        }
        if let Some((_, loss)) = self.state.losses.last_key_value() {
            sum_of_squares(&[], 1, vec![loss.clone()])?;
        }
        let pending = world.all_gather_scalars(vec![0.0]);
        self.clock.waiting("all_gather_scalars", || pending.wait()).map(drop)
    }

    /// Whether this rank has a micro-batch of this number; in an evaluation it may only help to gather.
    fn takes_part(&self, task: StageTask) -> bool {
        task.micro_batch < self.batches.count()
    }

    /// Where in training the pass of this rank's micro-batch stands. In an evaluation ranks take turns.
    fn place_of(&self, micro_batch: usize) -> Place {
        let (all, training) = (self.store.groups.all(), self.mode.has_backward());
        let (mesh, rank) = (all.mesh(), all.world().rank());
        let number = match (training, self.first) {
            (true, Some(first)) => first + micro_batch,
            (true, None) => {
                let own = self.before + micro_batch;
                self.before_worker + self.store.zero.micro_batch_number(mesh, rank, own, self.per_update)
            }
            (false, _) => micro_batch * mesh.size_over(&DATA) + mesh.position(rank, &DATA),
        };
        Place { seed: self.seed, step: self.step, micro_batch: number, training }
    }

    fn needed_by(&self, pass: Pass, task: StageTask) -> Key {
        (pass, self.stage.virtual_stage(task.chunk), task.micro_batch)
    }

    fn send(&mut self, pass: Pass, task: StageTask, to: usize) -> Result<()> {
        let place = self.stage.virtual_stage(task.chunk);
        let place = if pass == Pass::Forward { place + 1 } else { place.saturating_sub(1) };
        if let Some(message) = self.state.to_send.remove(&(pass, place, task.micro_batch)) {
            // No schedule needs a send to leave later than the next ones are made; what waits here is memory.
            while self.state.sent.len() >= MAX_UNSENT {
                if let Some(pending) = self.state.sent.pop_front() {
                    self.clock.waiting("pipeline", || pending.wait())?;
                }
            }
            self.state.sent.push_back(self.store.groups.pp.send(message, to));
        }
        Ok(())
    }

    /// What another stage, or another chunk of this rank, has for an action.
    fn incoming(&mut self, key: Key) -> Result<Message> {
        if let Some(message) = self.state.to_send.remove(&key) {
            return Ok(message);
        }
        match self.state.received.remove(&key) {
            Some((from, pending)) => {
                let message = self.clock.waiting_for("pipeline", Some(from), || pending.wait());
                self.state.began = self.clock.now();
                message
            }
            None => Err(Error::Model(format!("the schedule has no receive for {key:?}"))),
        }
    }

    /// A graph that is kept would keep gathered parameters that are to be freed.
    fn must_recompute(&self) -> bool {
        use brigade_plan::ReshardPolicy::{AfterUse, AfterUseUnlessNext};
        let policy = self.store.zero.reshard_policy(self.stage.stages);
        self.store.unshards_on_use()
            && !self.store.reshards_under_graphs()
            && matches!(policy, AfterUse | AfterUseUnlessNext)
    }

    fn before_block(&mut self, block: usize, schedule: &StageSchedule) -> Result<()> {
        if !self.store.unshards_on_use() {
            return Ok(());
        }
        if let Some(UnshardStep { unshard, .. }) = schedule.unshard_plan.get(self.state.block_runs) {
            unshard.iter().for_each(|unit| self.store.unshard(*unit));
        }
        self.store.wait_all_gather(block, self.clock)?;
        if !self.store.bound[block] {
            self.store.bind_parameters(block, &mut self.blocks[block]);
        }
        Ok(())
    }

    fn after_block(&mut self, schedule: &StageSchedule) -> Result<()> {
        if self.store.unshards_on_use()
            && let Some(UnshardStep { reshard, .. }) = schedule.unshard_plan.get(self.state.block_runs)
        {
            reshard.iter().try_for_each(|unit| self.store.reshard(*unit, self.blocks))?;
        }
        self.state.block_runs += 1;
        Ok(())
    }

    fn count(&mut self) {
        let kept: u64 = self.state.tapes.values().map(Tape::bytes).sum();
        let deferred: u64 = self.state.deferred.values().flatten().map(|block| block.found.bytes()).sum();
        let tied: u64 = self.state.tied.values().map(TiedSums::bytes).sum();
        self.state.activations.set(kept + deferred + tied);
    }
}

pub(crate) fn activation(message: Message) -> Result<Parts> {
    let parts: Option<Vec<Part>> = message.into_iter().collect();
    parts.map(Parts).ok_or_else(|| Error::Model("a stage sent an activation with a part missing".into()))
}
