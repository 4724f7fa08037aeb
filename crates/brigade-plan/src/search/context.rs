//! What many configurations share: the times of blocks, splits into stages, and pipelines.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::candidate::Candidate;
use super::workload::{PlanError, StageBalance, Workload};
use crate::cluster::Device;
use crate::memory::StageShape;
use crate::schedule::{Pipeline, PipelineScheduleKind, ScheduleError};
use crate::split::{balanced, by_shares, ranges};
use crate::time::{BlockTime, BlockTimeInputs, block_times};

/// A split of the blocks, and what each stage has of it.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub split: Vec<usize>,
    pub stages: Vec<StageShape>,
}

/// Of times: tensor-parallel ranks, sequences of a micro-batch, whether gradients are added up. Of layouts: stages, chunks. Of pipelines: also micro-batches.
type TimesKey = (usize, usize, bool);
type LayoutKey = (PipelineScheduleKind, usize, usize);
type PipelineKey = (PipelineScheduleKind, usize, usize, usize);

/// Remembers what was computed before.
pub(super) struct Context<'a> {
    pub workload: &'a Workload,
    /// As it computes while all ranks do.
    pub device: Device,
    times: RefCell<HashMap<TimesKey, Rc<Vec<BlockTime>>>>,
    layouts: RefCell<HashMap<LayoutKey, Rc<Layout>>>,
    pipelines: RefCell<HashMap<PipelineKey, Arc<Pipeline>>>,
}

impl<'a> Context<'a> {
    pub fn new(workload: &'a Workload) -> Self {
        let (times, layouts, pipelines) = Default::default();
        Self { workload, device: workload.cluster.device_in_use(), times, layouts, pipelines }
    }

    /// The time of each block.
    pub fn times(&self, tp: usize, micro_batch: usize, accumulates: bool) -> Rc<Vec<BlockTime>> {
        let key = (tp, micro_batch, accumulates);
        if let Some(known) = self.times.borrow().get(&key) {
            return Rc::clone(known);
        }
        let Workload { model, sequence_length, dtype, fused_attention, accounting, .. } = self.workload;
        let settings = BlockTimeInputs {
            sequence_length: *sequence_length,
            micro_batch,
            dtype: *dtype,
            tp,
            fused_attention: *fused_attention,
            fused_loss: accounting.fused_loss,
            accumulates,
        };
        let times = Rc::new(block_times(model, &self.device, &settings));
        self.times.borrow_mut().insert(key, Rc::clone(&times));
        times
    }

    /// The split that makes the slowest part as fast as possible.
    pub fn layout(&self, candidate: &Candidate) -> Result<Rc<Layout>, PlanError> {
        let kind = candidate.kind();
        let key = (kind, candidate.pp, candidate.chunks);
        if let Some(known) = self.layouts.borrow().get(&key) {
            return Ok(Rc::clone(known));
        }
        let costs = self.costs();
        let (pp, chunks) = (candidate.pp, candidate.chunks);
        let split = match self.workload.balance {
            StageBalance::Time => balanced(&costs, pp * chunks)?,
            StageBalance::Parameters => by_shares(&costs, pp * chunks)?,
        };
        let parts = ranges(&split);
        let placement = kind.placement();
        let stage = |rank: usize| {
            let chunks =
                (0..chunks).map(|chunk| parts[placement.virtual_stage(pp, rank, chunk)].clone()).collect();
            StageShape { stages: pp, rank, chunks }
        };
        let layout = Rc::new(Layout { stages: (0..pp).map(stage).collect(), split });
        self.layouts.borrow_mut().insert(key, Rc::clone(&layout));
        Ok(layout)
    }

    /// What blocks cost, for the split.
    fn costs(&self) -> Vec<f64> {
        let model = &self.workload.model;
        let last = model.blocks() - 1;
        let parameters = |block: usize| match block {
            0 => 0,
            block if block == last => model.block_parameters(block) + model.tied_parameters(),
            block => model.block_parameters(block),
        };
        match self.workload.balance {
            StageBalance::Time => self.times(1, 1, true).iter().map(BlockTime::total).collect(),
            StageBalance::Parameters => (0..=last).map(|block| parameters(block) as f64).collect(),
        }
    }

    /// The pipeline of a candidate with this many micro-batches.
    pub fn pipeline(
        &self,
        candidate: &Candidate,
        micro_batches: usize,
    ) -> Result<Arc<Pipeline>, ScheduleError> {
        let key = (candidate.kind(), candidate.pp, candidate.chunks, micro_batches);
        if let Some(known) = self.pipelines.borrow().get(&key) {
            return Ok(Arc::clone(known));
        }
        let pipeline = Arc::new(Pipeline::new(key.0, key.1, key.2, key.3)?);
        self.pipelines.borrow_mut().insert(key, Arc::clone(&pipeline));
        Ok(pipeline)
    }
}
