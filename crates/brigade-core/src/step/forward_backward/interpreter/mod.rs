//! The interpreter: runs a rank's list of actions. It knows no schedule by name.

mod backward;
mod train_block;

use std::collections::VecDeque;
use std::time::Instant;

use brigade_plan::{Action, Pass, Stage, StageSchedule, StageTask, UnshardStep};
use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::{DATA, Message, Pending, PendingValues};
use crate::error::{Error, Result};
use crate::metrics::Bytes;
use crate::metrics::{Activity, Clock};
use crate::model::Float;
use crate::model::activation::{Part, Parts};
use crate::model::batch::TargetSum;
use crate::model::block::NamedBlock;
use crate::model::cache::Cache;
use crate::model::objective::{Objective, widened};
use crate::model::parameters::precision::cast;
use crate::model::random_state::with_seed;
use crate::sharding::store::{ParameterStore, compact};
use crate::step::forward_backward::micro_batches::MicroBatches;
use crate::step::forward_backward::non_finite::NonFiniteCheck;
use crate::step::forward_backward::recompute::Recompute;
use crate::step::forward_backward::tape::{Place, Tape, graph_input, inner, predict, predict_cached};
use crate::step::running_state::{RunningState, Terms};
use crate::step::settings::CheckBlocks;
use crate::step::strategy::Reduction;
use backward::{Deferred, Halves};

/// Most messages to other stages that may be on their way at once: further ones wait for the first to have left, so
/// that a stage does not run ahead of a slower one by more than what receives were posted for.
const MAX_UNSENT: usize = 2;

/// What stands for the name of a block where the loss draws random numbers.
const LOSS: &str = "(loss)";

/// After the first blocks of a pass, whose device has nothing else to do, it is told to begin with what it was given.
const FLUSHED: usize = 2;

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
    /// Tensors at the cuts between blocks, and the gradients that second halves of backwards wait with, in bytes.
    pub activations: Bytes,
    /// Most micro-batches (of a chunk each) between forward and backward.
    pub most_in_flight: usize,
    /// Blocks after which the device was told to begin.
    pub flushed: usize,
    tapes: SortedMap<StageTask, Tape>,
    /// Of each task between the halves of its backward, the blocks whose gradients are not added up yet.
    deferred: SortedMap<StageTask, Vec<Deferred>>,
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
                Action::Forward(task) => self.forward(task, schedule)?,
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

    fn forward(&mut self, task: StageTask, schedule: &StageSchedule) -> Result<()> {
        let place = self.stage.virtual_stage(task.chunk);
        let takes_part = self.takes_part(task);
        let mut parts = match place {
            _ if !takes_part => Parts::default(),
            0 => self.model_input(task.micro_batch)?,
            _ => activation(self.incoming((Pass::Forward, place, task.micro_batch))?)?,
        };
        let mut tape = Tape::default();
        let at = self.place_of(task.micro_batch);
        for index in self.stage.blocks(task.chunk) {
            self.before_block(index, schedule)?;
            if takes_part {
                let (started, waited) = (Instant::now(), self.clock.comm_wait());
                parts = match &mut self.mode {
                    PassMode::Evaluate | PassMode::Predict(_) => predict(&self.blocks[index], parts, at)?,
                    PassMode::PredictCached(_, cache) => {
                        predict_cached(&self.blocks[index], parts, cache.of(index))?
                    }
                    PassMode::Train { .. } | PassMode::CheckFinite(_) => {
                        let input = graph_input(&parts, index > self.first_trained);
                        self.train_block(index, input, task.micro_batch, at, &mut tape)?
                    }
                };
                parts = self.apart_from_buffers(index, parts)?;
                if self.state.flushed < FLUSHED {
                    self.state.flushed += 1;
                    self.store.flush()?;
                }
                if let PassMode::CheckFinite(check) = &mut self.mode {
                    check.output(task.micro_batch, index, &parts)?;
                }
                let waited = self.clock.comm_wait() - waited;
                self.clock.forward += started.elapsed().saturating_sub(waited);
                if index + 1 == self.blocks.len() {
                    self.compute_loss(task, &mut tape, &parts)?;
                }
                let action = Action::Forward(task);
                self.clock.record(Activity::Block { block: index, action }, Some(started));
            }
            self.after_block(schedule)?;
        }
        if !takes_part {
            return Ok(());
        }
        if place < self.stage.last_virtual_stage() {
            let message = parts.0.into_iter().map(Some).collect();
            self.state.to_send.insert((Pass::Forward, place + 1, task.micro_batch), message);
        }
        if self.mode.has_backward() {
            self.state.tapes.insert(task, tape);
            let in_flight = self.state.tapes.len() + self.state.deferred.len();
            self.state.most_in_flight = self.state.most_in_flight.max(in_flight);
            self.count();
        }
        Ok(())
    }

    /// Computes the loss, in fp32, from the model's output, where the pass is not for that output alone.
    fn compute_loss(&mut self, task: StageTask, tape: &mut Tape, output: &Parts) -> Result<()> {
        let started = Instant::now();
        let (input, leaves) = match self.mode.has_backward() {
            true => tape.loss_input(output),
            false => (output.clone(), None),
        };
        if let PassMode::Predict(found) = &mut self.mode {
            **found = Some(widened(&input));
            return Ok(());
        }
        let input = self.objective.input(&input);
        if let PassMode::PredictCached(found, _) = &mut self.mode {
            **found = Some(input);
            return Ok(());
        }
        let target = self.batches.target(task.micro_batch)?;
        // A metric's own pass over the output has no graph.
        let apart = self.objective.has_metrics_of_their_own().then(|| (inner(&input), target.clone()));
        let seed = self.place_of(task.micro_batch).context(LOSS).random_seed();
        let last = self.blocks.last().map_or("", |named| &named.name);
        let compute = || self.objective.loss(last, input, target);
        let (loss, mut sums) = with_seed(&self.store.device, seed, compute)?;
        if !matches!(self.mode, PassMode::CheckFinite(_)) {
            if let Some((output, target)) = apart {
                sums.extend(self.objective.metrics(last, &output, &target)?);
            }
            self.state.metrics.insert(task.micro_batch, sums.into_iter().map(Tensor::inner).collect());
        }
        self.clock.forward += started.elapsed();
        if let PassMode::Evaluate = self.mode {
            self.state.losses.insert(task.micro_batch, loss.inner());
            return Ok(());
        }
        if let PassMode::CheckFinite(check) = &mut self.mode {
            check.loss(task.micro_batch, self.blocks.len() - 1, &loss)?;
        }
        tape.set_loss(loss.clone(), leaves);
        let divisor = self.state.total.divisor(self.clock)?;
        self.state.losses.insert(task.micro_batch, loss.inner().div_scalar(divisor));
        Ok(())
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

    fn model_input(&mut self, micro_batch: usize) -> Result<Parts> {
        let parts = self.batches.input(micro_batch)?;
        Ok(match self.store.precision.compute {
            Float::F32 => parts,
            compute => parts.map_floats(|flat| cast(flat, compute.dtype())),
        })
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

    /// Copies an output that may view parameters which are about to be emptied in their place.
    fn apart_from_buffers(&self, block: usize, parts: Parts) -> Result<Parts> {
        if !self.store.reshards_block_in_place(block) {
            return Ok(parts);
        }
        let part = |part| match part {
            Part::Float(flat, shape) => Ok(Part::Float(compact(flat)?, shape)),
            int => Ok(int),
        };
        parts.0.into_iter().map(part).collect::<Result<_>>().map(Parts)
    }

    fn count(&mut self) {
        let kept: u64 = self.state.tapes.values().map(Tape::bytes).sum();
        let deferred: u64 = self.state.deferred.values().flatten().map(|block| block.found.bytes()).sum();
        self.state.activations.set(kept + deferred);
    }
}

pub(crate) fn activation(message: Message) -> Result<Parts> {
    let parts: Option<Vec<Part>> = message.into_iter().collect();
    parts.map(Parts).ok_or_else(|| Error::Model("a stage sent an activation with a part missing".into()))
}
