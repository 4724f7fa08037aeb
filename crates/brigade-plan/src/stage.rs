//! The blocks of one pipeline rank, and its actions in a step.

use std::ops::Range;

use crate::schedule::{Action, Pipeline, Placement, StageTask};
use crate::split::ranges;
use crate::unshard::{BlockRun, ReshardPolicy, UnshardStep, unshard_plan};

/// A pipeline rank's chunks of blocks, and its position.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The rank along `pp`.
    pub rank: usize,
    /// Ranks along `pp`.
    pub stages: usize,
    /// Which rank has which virtual stage.
    pub placement: Placement,
    /// The blocks of every virtual stage of the pipeline.
    split: Vec<Range<usize>>,
}

impl Stage {
    /// The part of pipeline rank `rank` of `stages`. `counts`: the number of blocks in each virtual stage, of which
    /// there are as many as stages and chunks.
    pub fn new(placement: Placement, rank: usize, stages: usize, counts: &[usize]) -> Self {
        Self { rank, stages, placement, split: ranges(counts) }
    }

    /// Chunks of blocks that each rank has.
    pub fn chunks(&self) -> usize {
        self.split.len() / self.stages
    }

    /// The virtual stage of this rank's chunk.
    pub fn virtual_stage(&self, chunk: usize) -> usize {
        self.placement.virtual_stage(self.stages, self.rank, chunk)
    }

    /// The virtual stage that computes the loss.
    pub fn last_virtual_stage(&self) -> usize {
        self.split.len() - 1
    }

    /// The blocks of one of this rank's chunks.
    pub fn blocks(&self, chunk: usize) -> Range<usize> {
        self.split[self.virtual_stage(chunk)].clone()
    }

    /// The pipeline rank that holds a block.
    pub fn holder(&self, block: usize) -> usize {
        let virtual_stage = self.split.iter().position(|range| range.contains(&block)).unwrap_or(0);
        self.placement.owner(self.stages, virtual_stage).0
    }

    /// Whether this rank holds a block.
    pub fn holds(&self, block: usize) -> bool {
        self.holder(block) == self.rank
    }

    /// Whether this rank runs the model's last block, and so knows the loss.
    pub fn is_last(&self) -> bool {
        self.holder(self.split[self.last_virtual_stage()].start) == self.rank
    }
}

/// What a rank does in one pass over its micro-batches.
#[derive(Debug)]
pub struct StageSchedule {
    /// In order.
    pub actions: Vec<Action>,
    /// For each run of a block, in the order of the actions: which units to gather and to free.
    pub unshard_plan: Vec<UnshardStep>,
}

impl StageSchedule {
    /// What `stage` does in `pipeline`. `units`: for each block, the units that it reads and that must be gathered for it; empty lists
    /// if nothing is ever gathered. The second half of a backward reads no parameters, so it does not count as a
    /// run of a block.
    pub fn new(
        stage: &Stage,
        pipeline: &Pipeline,
        units: &[Vec<usize>],
        reshard: ReshardPolicy,
        prefetch: usize,
    ) -> Self {
        let actions = pipeline.actions(stage.rank).to_vec();
        let trains = pipeline.trains();
        let run = |block: usize, in_flight| BlockRun { units: units[block].clone(), in_flight };
        let mut runs = Vec::new();
        for action in &actions {
            match action {
                Action::Forward(StageTask { chunk, .. }) => {
                    runs.extend(stage.blocks(*chunk).map(|block| run(block, i32::from(trains))));
                }
                Action::Backward(StageTask { chunk, .. })
                | Action::BackwardInput(StageTask { chunk, .. }) => {
                    runs.extend(stage.blocks(*chunk).rev().map(|block| run(block, -1)));
                }
                _ => {}
            }
        }
        let unshard_plan = if runs.is_empty() { Vec::new() } else { unshard_plan(&runs, reshard, prefetch) };
        Self { actions, unshard_plan }
    }
}
