//! The units and the schedule of one pipeline stage.

use brigade_compress::{Cost, GatherCodes};
use brigade_sorted::SortedSet;

use super::configuration::Configuration;
use super::sizes::UnitSize;
use crate::schedule::{Action, Pipeline, StageTask};
use crate::stage::{Stage, StageSchedule};

/// What every rank of one stage has.
pub(super) struct StageUnits<'a> {
    pub configuration: &'a Configuration,
    pub stage: Stage,
    pub schedule: StageSchedule,
    /// The units that the stage's blocks read.
    pub units: Vec<StageUnit>,
    /// For each block of the model, which of [`units`](Self::units) it reads; empty for blocks of other stages.
    pub by_block: Vec<Vec<usize>>,
}

/// One unit on a stage.
pub(super) struct StageUnit {
    /// The block that owns it.
    pub owner_block: usize,
    /// Elements without padding.
    pub elements: usize,
    /// Elements of the whole buffer.
    pub length: usize,
    /// Elements of a rank's own part of it.
    pub own: usize,
    /// Bytes of an element in forward and backward.
    pub compute_bytes: u64,
    /// Whether training changes the unit.
    pub trainable: bool,
    /// Whether the stage owns it.
    pub is_owned: bool,
    /// Whether the stage steps the unit; if not, another one sends it new values, or it has none.
    pub is_stepped: bool,
    /// Other stages that read it.
    pub other_readers: usize,
    /// What it travels as when its shards are gathered.
    pub gathered_as: GatherCodes,
    /// What the codes of its gradient take, if it travels as codes.
    pub codes: Option<Cost>,
}

impl StageUnit {
    /// Bytes that a rank sends to another one to gather it.
    pub fn gathered_bytes(&self) -> u64 {
        self.gathered_as.bytes(self.own).unwrap_or(self.compute_bytes * self.own as u64)
    }
}

impl<'a> StageUnits<'a> {
    /// What stage `rank` has. The configuration must have passed its check.
    pub fn new(configuration: &'a Configuration, pipeline: &Pipeline, rank: usize) -> Self {
        let stage = Stage::new(pipeline.placement(), rank, configuration.pp, &configuration.split);
        let blocks: usize = configuration.split.iter().sum();
        let holders: Vec<usize> = (0..blocks).map(|block| stage.holder(block)).collect();
        let (mut units, mut by_block) = (Vec::new(), vec![Vec::new(); blocks]);
        for unit in &configuration.units {
            let readers: SortedSet<usize> = unit.users.iter().map(|user| holders[*user]).collect();
            if !readers.contains(&rank) {
                continue;
            }
            let here = unit.users.iter().filter(|user| holders[**user] == rank);
            here.for_each(|user| by_block[*user].push(units.len()));
            let (length, own) = configuration.lengths(unit.elements);
            units.push(StageUnit {
                owner_block: unit.owner_block,
                elements: unit.elements,
                length,
                own,
                compute_bytes: configuration.bytes_per_value(unit),
                trainable: unit.trainable,
                is_owned: holders[unit.owner_block] == rank,
                is_stepped: unit.trainable && holders[unit.owner_block] == rank,
                other_readers: readers.len() - 1,
                gathered_as: configuration.gathered_as(unit),
                codes: configuration.codes(unit),
            });
        }
        let gathered = if configuration.gathers() { &by_block } else { &vec![Vec::new(); blocks] };
        let Configuration { reshard, prefetch, .. } = *configuration;
        let schedule = StageSchedule::new(&stage, pipeline, gathered, reshard, prefetch);
        Self { configuration, stage, schedule, units, by_block }
    }

    /// Bytes that a block holds between the halves of its backward; none where it has no second half. The gradients of shared parameters
    /// are sent with the message to the previous stage, so a block that reads any cannot wait.
    pub fn deferred(&self, block: usize) -> Option<u64> {
        let shares = |unit: &UnitSize| unit.users.len() > 1 && unit.users.contains(&block);
        let saved = self.configuration.saved_activations.get(block)?;
        (saved.deferred > 0 && !self.configuration.units.iter().any(shares)).then_some(saved.deferred)
    }

    /// The blocks whose gradients an action completes, in order.
    pub fn completes(&self, action: &Action) -> Vec<usize> {
        let blocks = |task: &StageTask| self.stage.blocks(task.chunk).rev();
        match action {
            Action::Backward(task) => blocks(task).collect(),
            Action::BackwardInput(task) => {
                blocks(task).filter(|block| self.deferred(*block).is_none()).collect()
            }
            Action::BackwardWeights(task) => {
                blocks(task).filter(|block| self.deferred(*block).is_some()).collect()
            }
            _ => Vec::new(),
        }
    }
}
