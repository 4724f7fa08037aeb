//! One training step of one rank: a schedule of `brigade-plan`, run as the interpreter of `brigade-core` runs it, but with kernels
//! that check their inputs in place of blocks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use brigade_comm::Work;
use brigade_cuda::{Error, NcclWork};
use brigade_plan::{
    Action, Pass, Pipeline, PipelineScheduleKind, ReshardPolicy, Stage, StageSchedule, StageTask,
};

use super::compute_stream::{Kernel, Numbers};
use super::memory_pool::Buffer;
use super::mesh::{Incoming, SimRank};
use super::values::hash;

/// Blocks per virtual stage.
const BLOCKS: usize = 2;
/// Elements of each part of an activation, and of a gradient. Most are equal, so that memory is reused among them.
const PARTS: [usize; 2] = [64, 32];
pub const GRADIENT: usize = 64;

/// The error of a rank that exits early.
pub const EXITED: &str = "exited";

/// How data-parallel ranks divide parameters and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharding {
    /// Each unit's gradients are summed over the ranks after the last micro-batch, while earlier blocks compute.
    Whole,
    /// Parameters are gathered ahead of each use, and each micro-batch's gradients are reduce-scattered.
    Full,
}

/// A step.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub schedule: PipelineScheduleKind,
    pub chunks: usize,
    pub micro_batches: usize,
    pub sharding: Sharding,
    /// Whether the host waits for each send at once, the hardest case for a schedule.
    pub sends_block: bool,
    /// The longest time that a kernel takes.
    pub takes: Duration,
    /// The step's number, which determines all values and delays.
    pub step: u64,
    pub exit: Option<RankExit>,
    pub compiles: Option<Compiles>,
}

/// How long rank 0 compiles before a step.
#[derive(Debug, Clone, Copy)]
pub struct Compiles {
    pub step: u64,
    pub takes: Duration,
}

/// A rank that exits in the middle of a step.
#[derive(Debug, Clone, Copy)]
pub struct RankExit {
    /// Its number in the world.
    pub rank: usize,
    pub step: u64,
    /// The index of the first action that it does not run.
    pub action: usize,
    /// Whether it leaves everything as it is; otherwise everything is dropped.
    pub hangs: bool,
}

/// A buffer, and what it will hold once the compute stream gets there.
pub type Checked = (Buffer, Numbers);
pub type Key = (Pass, usize, usize);
type Posted = Box<dyn FnOnce() -> Result<Incoming, Error>>;

pub struct Step<'a> {
    pub sim: &'a SimRank,
    pub plan: Plan,
    pub stage: Stage,
    pub replicas: usize,
    pub random: u64,
    pub turn: usize,
    pub tapes: BTreeMap<StageTask, Vec<Vec<Checked>>>,
    pub posted: BTreeMap<Key, Posted>,
    pub outgoing: BTreeMap<Key, Vec<Checked>>,
    pub sent: VecDeque<(Work<Vec<u8>>, NcclWork)>,
    pub shards: BTreeMap<usize, Buffer>,
    pub gathering: BTreeMap<usize, (Buffer, NcclWork)>,
    pub gathered: BTreeMap<usize, Buffer>,
    /// Sums over the micro-batches, or over those that have been reduced.
    pub sums: BTreeMap<usize, Checked>,
    pub reducing: BTreeMap<usize, (Checked, NcclWork)>,
}

/// Runs a step. The error of a rank that exits early is [`EXITED`].
pub fn run_step(sim: &SimRank, plan: Plan, replicas: usize, stages: usize) -> Result<(), String> {
    let pipeline = Pipeline::new(plan.schedule, stages, plan.chunks, plan.micro_batches).unwrap();
    let stage = Stage::new(pipeline.placement(), sim.stage, stages, &vec![BLOCKS; stages * plan.chunks]);
    let blocks = BLOCKS * stages * plan.chunks;
    let sharded = replicas > 1 && plan.sharding == Sharding::Full;
    let units: Vec<Vec<usize>> =
        (0..blocks).map(|block| if sharded { vec![block] } else { Vec::new() }).collect();
    let schedule = StageSchedule::new(&stage, &pipeline, &units, ReshardPolicy::AfterUseUnlessNext, 1);
    let mut step = Step {
        sim,
        plan,
        stage,
        replicas,
        random: hash(&[plan.step, sim.world.rank() as u64]),
        turn: 0,
        tapes: BTreeMap::new(),
        posted: BTreeMap::new(),
        outgoing: BTreeMap::new(),
        sent: VecDeque::new(),
        shards: BTreeMap::new(),
        gathering: BTreeMap::new(),
        gathered: BTreeMap::new(),
        sums: BTreeMap::new(),
        reducing: BTreeMap::new(),
    };
    let result = step.run(&schedule);
    if result.as_ref().is_err_and(|error| error == EXITED) && plan.exit.is_some_and(|exit| exit.hangs) {
        std::mem::forget(step);
    }
    result
}

impl Step<'_> {
    fn run(&mut self, schedule: &StageSchedule) -> Result<(), String> {
        let now = self.plan.step;
        if let Some(compiles) = self.plan.compiles.filter(|at| at.step == now && self.sim.world.rank() == 0) {
            std::thread::sleep(compiles.takes);
        }
        for (index, action) in schedule.actions.iter().enumerate() {
            let (rank, now) = (self.sim.world.rank(), self.plan.step);
            if self.plan.exit.is_some_and(|at| (at.rank, at.step, at.action) == (rank, now, index)) {
                return Err(EXITED.to_owned());
            }
            self.random_delay();
            match *action {
                Action::Forward(task) => self.forward(task, schedule)?,
                Action::Backward(task) => self.backward(task, schedule)?,
                Action::Send { pass, task, to } => self.send(pass, task, to)?,
                Action::Receive { pass, task, from } => self.receive(pass, task, from),
                Action::Reduce { .. } => {}
                other => panic!("{other}"),
            }
        }
        self.all_sent()?;
        for (block, (reduced, work)) in std::mem::take(&mut self.reducing) {
            work.synchronize().map_err(text)?;
            self.kernel(format!("the optimizer of block {block}"), &[reduced], &[]);
        }
        if self.plan.step.is_multiple_of(2) {
            self.sim.world.barrier().map_err(text)?;
        }
        Ok(())
    }

    fn forward(&mut self, task: StageTask, schedule: &StageSchedule) -> Result<(), String> {
        let place = self.stage.virtual_stage(task.chunk);
        let blocks = self.stage.blocks(task.chunk);
        let mut parts = if place == 0 {
            let data = self.buffers(&PARTS, |part| self.activation(0, part, task));
            self.kernel("data".to_owned(), &[], &data);
            data
        } else {
            self.incoming((Pass::Forward, place, task.micro_batch))?
        };
        let mut tape = Vec::new();
        for block in blocks {
            let mut reads = parts.clone();
            reads.extend(self.before_block(block, schedule)?);
            let output = self.buffers(&PARTS, |part| self.activation(block + 1, part, task));
            self.kernel(format!("forward of block {block}, {task}"), &reads, &output);
            tape.push(std::mem::replace(&mut parts, output));
            self.after_block(schedule);
        }
        self.tapes.insert(task, tape);
        if place < self.stage.last_virtual_stage() {
            self.outgoing.insert((Pass::Forward, place + 1, task.micro_batch), parts);
        }
        Ok(())
    }

    fn backward(&mut self, task: StageTask, schedule: &StageSchedule) -> Result<(), String> {
        let place = self.stage.virtual_stage(task.chunk);
        let blocks = self.stage.blocks(task.chunk);
        let mut tape = self.tapes.remove(&task).unwrap();
        let mut upstream = if place == self.stage.last_virtual_stage() {
            let loss = self.buffers(&[GRADIENT], |_| self.upstream(blocks.end, task));
            self.kernel("loss".to_owned(), &[], &loss);
            loss
        } else {
            self.incoming((Pass::Backward, place, task.micro_batch))?
        };
        for block in blocks.rev() {
            let mut reads = tape.pop().unwrap();
            reads.append(&mut upstream);
            reads.extend(self.before_block(block, schedule)?);
            upstream = self.buffers(&[GRADIENT], |_| self.upstream(block, task));
            let found = self.buffers(&[GRADIENT], |_| self.gradient(block, task, self.sim.replica));
            let writes: Vec<_> = upstream.iter().chain(&found).cloned().collect();
            self.kernel(format!("backward of block {block}, {task}"), &reads, &writes);
            drop((reads, writes));
            found.into_iter().try_for_each(|found| self.add(block, found, task))?;
            self.after_block(schedule);
        }
        if place > 0 {
            self.outgoing.insert((Pass::Backward, place - 1, task.micro_batch), upstream);
        }
        Ok(())
    }

    pub fn buffers(&self, sizes: &[usize], numbers: impl Fn(usize) -> Numbers) -> Vec<Checked> {
        let room = |(part, elements): (usize, &usize)| {
            (self.sim.pool.allocate(*elements, &self.sim.compute), numbers(part))
        };
        sizes.iter().enumerate().map(room).collect()
    }

    pub fn kernel(&mut self, name: String, reads: &[Checked], writes: &[Checked]) {
        let places = |checked: &[Checked]| {
            checked.iter().map(|(buffer, numbers)| (buffer.place(), *numbers)).collect()
        };
        let (name, reads, writes) =
            (format!("step {}: {name}", self.plan.step), places(reads), places(writes));
        let takes = self.plan.takes.mul_f64(self.chance().powi(3));
        self.sim.compute.launch(Kernel { name, reads, writes, takes });
    }

    /// In a third of the steps the host runs ahead, in a third it lags behind, in the others it does either.
    pub fn random_delay(&mut self) {
        let chance = self.chance();
        if match self.plan.step % 3 {
            0 => false,
            1 => true,
            _ => chance > 0.7,
        } {
            std::thread::sleep(self.plan.takes.mul_f64(chance));
        }
    }

    fn chance(&mut self) -> f64 {
        self.random = hash(&[self.random, 1]);
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub fn text(error: impl ToString) -> String {
    error.to_string()
}
