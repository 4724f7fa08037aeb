//! Simulating a step: every stage performs its list of actions on a stream for computation, while gathers and reductions run on another and messages on links.
//!
//! The data-parallel ranks of a stage do the same at the same time, so one column of the mesh stands for all that are alike; slow ranks
//! have columns of their own. A collective begins when the last column has come to it.

use super::parts::StepParts;
use crate::schedule::{Action, Pass, Pipeline, ScheduleError, StageTask};
use crate::stage::{Stage, StageSchedule};
use crate::unshard::ReshardPolicy;

/// A block of the model in seconds of one micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedBlock {
    /// Its forward.
    pub forward: f64,
    /// What runs again before its backward.
    pub recompute: f64,
    /// The gradient of its input.
    pub backward_input: f64,
    /// The gradients of its weights.
    pub backward_weights: f64,
    /// Collectives of tensor parallelism in the forward.
    pub tensor_parallel: f64,
    /// Gathering the inputs of its products again in the backward, where tensor-parallel ranks kept their shards alone.
    pub gather_again: f64,
    /// What of the backward's collectives takes no time of its own, because the gradients of its weights are computed beside it.
    pub hidden: f64,
    /// Gathering its parameters; 0 where they are there.
    pub gather: f64,
    /// Reducing its gradients; 0 where no other rank has the block.
    pub reduce: f64,
}

impl SimulatedBlock {
    /// Seconds of tensor parallelism in the backward: of as many collectives as in the forward, those of a forward that runs again, and gathering again, less what is hidden.
    pub fn backward_collectives(&self) -> f64 {
        let passes = if self.recompute > 0.0 { 2.0 } else { 1.0 };
        passes * self.tensor_parallel + self.gather_again - self.hidden
    }
}

/// What a stage does after its last gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedStage {
    /// Summing gradients over replicas of its shards.
    pub reduce: f64,
    /// The optimizer's step.
    pub optimizer: f64,
    /// Gathering the new parameters.
    pub gather: f64,
}

impl SimulatedStage {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.reduce + self.optimizer + self.gather
    }
}

/// A step to be simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    /// The blocks.
    pub blocks: Vec<SimulatedBlock>,
    /// The number of blocks in each of the parts of the model.
    pub split: Vec<usize>,
    /// The stages.
    pub stages: Vec<SimulatedStage>,
    /// By pass: a message from each part of the model to the next, and one back.
    pub messages: [Vec<f64>; 2],
    /// When gathered parameters are freed.
    pub reshard: ReshardPolicy,
    /// How many blocks ahead parameters are gathered.
    pub prefetch: usize,
    /// Whether each micro-batch's gradients are reduced, not only the sums.
    pub reduce_each_micro_batch: bool,
    /// Whether gathers and reductions run beside the computation.
    pub overlap: bool,
    /// Agreeing on the norm of all gradients.
    pub norm: f64,
    /// What the host does besides in a step.
    pub host: f64,
    /// How many times as long computation takes while gathers and reductions run beside it.
    pub beside: f64,
    /// By column: how many times longer each stage computes. The first column is that of ranks that are not slow.
    pub slow: Vec<Vec<f64>>,
}

/// Simulates a step with the actions of this pipeline.
///
/// # Errors
/// If its actions wait for one another for ever.
pub fn simulate(plan: &StepPlan, pipeline: &Pipeline) -> Result<StepParts, ScheduleError> {
    let mut simulation = Simulation::new(plan, pipeline);
    loop {
        let mut moved = false;
        for rank in 0..pipeline.stages {
            while simulation.perform(rank) {
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let stuck = simulation.ranks.iter().position(|rank| rank.at < rank.schedule.actions.len());
    if let Some(rank) = stuck {
        return Err(ScheduleError::Fault { rank, fault: "it waits forever".into() });
    }
    Ok(simulation.end())
}

/// One stage.
struct Rank {
    schedule: StageSchedule,
    stage: Stage,
    /// The next action, and the next run of a block.
    at: usize,
    run: usize,
    /// By column: when its computation is free.
    clock: Vec<f64>,
    /// When its collectives are done.
    collectives: f64,
    /// When the gathered parameters of each block are there, and when its column came last to the gather.
    gathered: Vec<f64>,
    /// Seconds of reductions that begin when the last pass is over: those of a step's sums where nothing runs beside the computation.
    after: f64,
    /// Ends of reductions in flight, at most [`REDUCING`](crate::REDUCING) of them.
    reducing: Vec<f64>,
    /// By neighbour and column: when the link is free.
    links: [Vec<f64>; 2],
    parts: StepParts,
}

struct Simulation<'a> {
    plan: &'a StepPlan,
    pipeline: &'a Pipeline,
    columns: usize,
    ranks: Vec<Rank>,
    /// By pass, part of the model, micro-batch and column: when what it starts from arrives.
    arrived: [Vec<f64>; 2],
}

impl<'a> Simulation<'a> {
    fn new(plan: &'a StepPlan, pipeline: &'a Pipeline) -> Self {
        let columns = plan.slow.len().max(1);
        let blocks = plan.blocks.len();
        let gathers = plan.blocks.iter().any(|block| block.gather > 0.0);
        let units: Vec<Vec<usize>> =
            (0..blocks).map(|block| if gathers { vec![block] } else { Vec::new() }).collect();
        let rank = |rank| {
            let stage = Stage::new(pipeline.placement(), rank, pipeline.stages, &plan.split);
            let mut schedule = StageSchedule::new(&stage, pipeline, &units, plan.reshard, plan.prefetch);
            if !gathers {
                schedule.unshard_plan.clear();
            }
            Rank {
                schedule,
                stage,
                at: 0,
                run: 0,
                clock: vec![0.0; columns],
                collectives: 0.0,
                gathered: vec![0.0; blocks],
                after: 0.0,
                reducing: Vec::new(),
                links: [vec![0.0; columns], vec![0.0; columns]],
                parts: StepParts::default(),
            }
        };
        let places = pipeline.virtual_stages() * pipeline.micro_batches * columns;
        Self {
            plan,
            pipeline,
            columns,
            ranks: (0..pipeline.stages).map(rank).collect(),
            arrived: [vec![f64::NAN; places], vec![f64::NAN; places]],
        }
    }

    fn place(&self, part: usize, micro_batch: usize) -> usize {
        (part * self.pipeline.micro_batches + micro_batch) * self.columns
    }

    /// Performs the next action of a rank, unless there is none or it must wait.
    fn perform(&mut self, rank: usize) -> bool {
        let Some(action) = self.ranks[rank].schedule.actions.get(self.ranks[rank].at).copied() else {
            return false;
        };
        match action {
            Action::Forward(task) => {
                if !self.wait(rank, Pass::Forward, task) {
                    return false;
                }
                for block in self.ranks[rank].stage.blocks(task.chunk) {
                    let SimulatedBlock { forward, tensor_parallel, .. } = self.plan.blocks[block];
                    self.gather(rank, block);
                    self.compute(rank, forward, 0.0, tensor_parallel);
                }
            }
            Action::Backward(task) | Action::BackwardInput(task) => {
                if !self.wait(rank, Pass::Backward, task) {
                    return false;
                }
                let whole = matches!(action, Action::Backward(_));
                for block in self.ranks[rank].stage.blocks(task.chunk).rev() {
                    let simulated = self.plan.blocks[block];
                    self.gather(rank, block);
                    let weights = if whole { simulated.backward_weights } else { 0.0 };
                    let SimulatedBlock { backward_input, recompute, .. } = simulated;
                    let exchanges = simulated.backward_collectives();
                    self.compute(rank, backward_input + weights, recompute, exchanges);
                    if whole {
                        self.reduce(rank, block, task);
                    }
                }
            }
            Action::BackwardWeights(task) => {
                for block in self.ranks[rank].stage.blocks(task.chunk).rev() {
                    self.compute(rank, self.plan.blocks[block].backward_weights, 0.0, 0.0);
                    self.reduce(rank, block, task);
                }
            }
            Action::Send { pass, task, .. } => self.send(rank, pass, task),
            // A receive only has to be there in time, and reductions begin block by block.
            Action::Receive { .. } | Action::Reduce { .. } => {}
        }
        self.ranks[rank].at += 1;
        true
    }

    /// Lets the clock of a rank wait for what a pass starts from. False if that is not sent yet.
    fn wait(&mut self, rank: usize, pass: Pass, task: StageTask) -> bool {
        let part = self.pipeline.virtual_stage(rank, task.chunk);
        let parts = self.pipeline.virtual_stages();
        let from = match pass {
            Pass::Forward => part.checked_sub(1),
            Pass::Backward => Some(part + 1).filter(|next| *next < parts),
        };
        let placement = self.pipeline.placement();
        let Some(from) = from.filter(|from| placement.owner(self.pipeline.stages, *from).0 != rank) else {
            return true;
        };
        let place = self.place(part, task.micro_batch);
        let arrived = &self.arrived[index(pass)][place..place + self.columns];
        if arrived[0].is_nan() {
            return false;
        }
        let travels = self.plan.messages[index(pass)].get(from.min(part)).copied().unwrap_or(0.0);
        let me = &mut self.ranks[rank];
        let waited = (arrived[0] - me.clock[0]).max(0.0);
        me.parts.send += waited.min(travels);
        me.parts.bubble += (waited - travels).max(0.0);
        for (clock, arrived) in me.clock.iter_mut().zip(arrived) {
            *clock = clock.max(*arrived);
        }
        true
    }

    fn send(&mut self, rank: usize, pass: Pass, task: StageTask) {
        let part = self.pipeline.virtual_stage(rank, task.chunk);
        let to = if pass == Pass::Forward { part + 1 } else { part - 1 };
        let travels = self.plan.messages[index(pass)].get(part.min(to)).copied().unwrap_or(0.0);
        let place = self.place(to, task.micro_batch);
        let me = &mut self.ranks[rank];
        for column in 0..self.columns {
            let link = &mut me.links[index(pass)][column];
            *link = link.max(me.clock[column]) + travels;
            self.arrived[index(pass)][place + column] = *link;
        }
    }

    /// Starts the gathers that stand before a run of a block, and waits for the block's own.
    fn gather(&mut self, rank: usize, block: usize) {
        let me = &mut self.ranks[rank];
        let Some(step) = me.schedule.unshard_plan.get(me.run) else { return };
        me.run += 1;
        let come = me.clock.iter().copied().fold(0.0, f64::max);
        for unit in &step.unshard {
            me.collectives = me.collectives.max(come) + self.plan.blocks[*unit].gather;
            me.gathered[*unit] = me.collectives;
        }
        let ready = if self.plan.overlap { me.gathered[block] } else { me.collectives };
        me.parts.stragglers += (come.min(ready) - me.clock[0]).max(0.0);
        me.parts.all_gather += (ready - come.max(me.clock[0])).max(0.0);
        me.clock.iter_mut().for_each(|clock| *clock = clock.max(ready));
    }

    fn compute(&mut self, rank: usize, seconds: f64, again: f64, tensor_parallel: f64) {
        let me = &mut self.ranks[rank];
        me.parts.compute += seconds;
        me.parts.recompute += again;
        me.parts.tensor_parallel += tensor_parallel;
        for (column, clock) in me.clock.iter_mut().enumerate() {
            let slow = self.plan.slow.get(column).map_or(1.0, |stages| stages[rank]);
            let alone = (seconds + again) * slow;
            let together = (me.collectives - *clock).clamp(0.0, alone * self.plan.beside);
            let lost = together * (1.0 - 1.0 / self.plan.beside);
            *clock += alone + lost + tensor_parallel;
            if column == 0 {
                me.parts.contention += lost;
            }
        }
    }

    /// Starts to reduce a block's gradients where they are complete.
    fn reduce(&mut self, rank: usize, block: usize, task: StageTask) {
        let takes = self.plan.blocks[block].reduce;
        let is_last = task.micro_batch + 1 == self.pipeline.micro_batches;
        if takes == 0.0 || !(is_last || self.plan.reduce_each_micro_batch) {
            return;
        }
        let me = &mut self.ranks[rank];
        if !(self.plan.overlap || self.plan.reduce_each_micro_batch) {
            me.after += takes;
            return;
        }
        let come = me.clock.iter().copied().fold(0.0, f64::max);
        me.collectives = me.collectives.max(come) + takes;
        let mut until = 0.0;
        if !self.plan.overlap {
            until = me.collectives;
        } else if self.plan.reduce_each_micro_batch {
            if me.reducing.len() == crate::REDUCING {
                until = me.reducing.remove(0);
            }
            me.reducing.push(me.collectives);
        }
        me.parts.stragglers += (come.min(until) - me.clock[0]).max(0.0);
        me.parts.reduce += (until - come.max(me.clock[0])).max(0.0);
        me.clock.iter_mut().for_each(|clock| *clock = clock.max(until));
    }

    /// What comes after the last gradients: all ranks agree on the norm, then step.
    fn end(mut self) -> StepParts {
        let mut all = 0.0_f64;
        for me in &mut self.ranks {
            let come = me.clock.iter().copied().fold(0.0, f64::max);
            me.collectives = me.collectives.max(come) + me.after;
            me.parts.stragglers += come - me.clock[0];
            me.parts.reduce += (me.collectives - come).max(0.0);
            all = all.max(come.max(me.collectives));
            me.clock[0] = come.max(me.collectives);
        }
        let last = self.plan.stages.iter().map(SimulatedStage::total).fold(0.0, f64::max);
        let mut mean = StepParts::default();
        let stages = self.ranks.len() as f64;
        for (me, stage) in self.ranks.iter().zip(&self.plan.stages) {
            let mut parts = me.parts;
            parts.bubble += all - me.clock[0] + last - stage.total();
            parts.reduce += stage.reduce + self.plan.norm;
            parts.optimizer += stage.optimizer;
            parts.host += self.plan.host;
            parts.all_gather += stage.gather;
            mean = mean.combined(&parts, |sum, part| sum + part / stages);
        }
        mean
    }
}

fn index(pass: Pass) -> usize {
    usize::from(pass == Pass::Backward)
}
