//! Bytes of one rank of a stage.

use super::activations::{ActivationSettings, layer_activations, layer_working, loss_activations};
use super::kept::kept;
use super::{Accounting, KeptBytes, MemoryParts};
use crate::footprint::REDUCING;
use crate::model::ModelShape;
use crate::schedule::{PipelineScheduleKind, formula};
use crate::unshard::ReshardPolicy;

/// How parameters are held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sharding {
    /// ZeRO's stage.
    pub zero: u8,
    /// Ranks that share what is sharded: the data-parallel ranks, or those of a replica.
    pub shards: usize,
    /// Replicas of what is sharded, which hold the same shard and add up its gradients; 1 where there are none.
    pub replicas: usize,
    /// Micro-batches of a rank in a step.
    pub micro_batches: usize,
    /// ZeRO-2 and 3: whether each micro-batch's gradients are reduced.
    pub reduce_each_micro_batch: bool,
    /// ZeRO-3: when gathered parameters are freed.
    pub reshard: ReshardPolicy,
    /// Whether the optimizer's state is in the host's memory.
    pub offload: bool,
    /// Whether the gradients of a tied head go to the stage of its table with each micro-batch; else it holds their sum.
    pub tied_each_micro_batch: bool,
    /// What is kept of gradients that travel as codes.
    pub kept: KeptBytes,
}

/// What a stage has of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageShape {
    /// Ranks of the pipeline.
    pub stages: usize,
    /// Which of them it is.
    pub rank: usize,
    /// Its chunks of blocks.
    pub chunks: Vec<std::ops::Range<usize>>,
}

impl StageShape {
    fn holds(&self, block: usize) -> bool {
        self.chunks.iter().any(|chunk| chunk.contains(&block))
    }
}

/// What a rank of a stage holds at its peak. `recompute_every`: `k` if every k-th block is recomputed, 0 if none.
pub fn stage_memory(
    model: &ModelShape,
    stage: &StageShape,
    accounting: &Accounting,
    sharding: &Sharding,
    activations: &ActivationSettings,
    kind: PipelineScheduleKind,
    recompute_every: usize,
) -> MemoryParts {
    let mut parts = MemoryParts::default();
    state(&mut parts, model, stage, accounting, sharding, activations.tp as u64);
    parts.activations = in_blocks(model, stage, activations, kind, sharding.micro_batches, recompute_every);
    if stage.stages > 1 {
        let is_relayed = model.trains_table() && !accounting.steps_copies;
        let relayed = if is_relayed { model.tied_parameters() / activations.tp as u64 } else { 0 };
        let bytes = if sharding.tied_each_micro_batch { accounting.parameter } else { accounting.sum };
        parts.buffers += 2 * (activations.boundary(model) + bytes * relayed);
    }
    let moving = parts.activations + parts.buffers;
    parts.fragmentation = (moving as f64 * MemoryParts::FRAGMENTATION) as u64;
    parts
}

/// Parameters, gradients, the optimizer's state, and buffers of parameters.
fn state(
    parts: &mut MemoryParts,
    model: &ModelShape,
    stage: &StageShape,
    accounting: &Accounting,
    sharding: &Sharding,
    tp: u64,
) {
    let blocks = || stage.chunks.iter().cloned().flatten();
    let own: u64 = blocks().map(|block| model.block_parameters(block)).sum();
    let copies = match stage.holds(model.blocks() - 1) && !stage.holds(0) {
        true => model.tied_parameters(),
        false => 0,
    };
    let trained: u64 = blocks().map(|block| model.trained_parameters(block)).sum();
    let trained_copies = if model.trains_table() { copies } else { 0 };
    let stepped_copies = if accounting.steps_copies { trained_copies } else { 0 };
    let (held, stepped) = ((own + copies) / tp, (trained + stepped_copies) / tp);
    let largest = |parameters: &dyn Fn(usize) -> u64| blocks().map(parameters).max().unwrap_or(0) / tp;
    let Sharding { zero, shards, micro_batches, reduce_each_micro_batch, reshard, offload, .. } = *sharding;
    let ranks = shards as u64;
    let is_sharded = |stage: u8| zero >= stage && shards > 1;
    let share = |elements: u64, sharded: bool| if sharded { elements.div_ceil(ranks) } else { elements };

    let gathers = is_sharded(3);
    parts.parameters = match gathers {
        true => {
            accounting.parameter_shard * share(stepped, true)
                + accounting.parameter * share(held - stepped, true)
        }
        false => accounting.parameter * held,
    };
    let sums_each = is_sharded(2) && reduce_each_micro_batch;
    let sums = accounting.sum * accounting.sums(micro_batches, sums_each);
    parts.gradients = sums * share(stepped, sums_each) + accounting.gradient * share(stepped, sums_each);
    if !sharding.tied_each_micro_batch && !accounting.steps_copies && micro_batches > 1 {
        parts.gradients += accounting.sum * accounting.sums(micro_batches, false) * trained_copies / tp;
    }
    parts.gradients += kept(sharding, stepped);
    let has_masters = accounting.master > 0 || offload;
    let master = if has_masters && !(gathers && accounting.master == 0) { 4 } else { 0 };
    let state = (master + accounting.moments) * share(stepped, is_sharded(1));
    if offload {
        parts.host = state;
    } else {
        parts.optimizer = state;
    }
    if gathers {
        let all = matches!(reshard, ReshardPolicy::AfterBackward | ReshardPolicy::AfterStep);
        // The block that runs, and the one that is gathered ahead.
        parts.buffers += accounting.parameter
            * if all { held } else { held.min(2 * largest(&|block| model.block_parameters(block))) };
    }
    if sums_each {
        let most = REDUCING as u64 * largest(&|block| model.trained_parameters(block));
        parts.buffers += accounting.sum.max(accounting.gradient) * stepped.min(most);
    }
}

/// What blocks keep of all micro-batches in flight, and what the running one needs.
fn in_blocks(
    model: &ModelShape,
    stage: &StageShape,
    settings: &ActivationSettings,
    kind: PipelineScheduleKind,
    micro_batches: usize,
    recompute_every: usize,
) -> u64 {
    let boundary = settings.boundary(model);
    let (saved, working) = (layer_activations(model, settings), layer_working(model, settings));
    let (last, first_trained) = (model.blocks() - 1, model.first_trained());
    let recomputes = |block: usize| recompute_every > 0 && (block + 1).is_multiple_of(recompute_every);
    let of_block = |block: usize| match block {
        0 => 0,
        block if block == last => boundary,
        // Without a backward, it keeps its input alone.
        block if block < first_trained || recomputes(block) => boundary,
        _ => saved,
    };
    let of_chunk = |chunk: &std::ops::Range<usize>| chunk.clone().map(of_block).sum::<u64>();
    let most = stage.chunks.iter().map(of_chunk).max().unwrap_or(0);
    let in_flight =
        formula::peak_in_flight(kind, stage.stages, stage.chunks.len(), micro_batches, stage.rank) as u64;
    let kept = match stage.chunks.len() {
        1 => in_flight * most,
        // Tasks of all chunks take turns.
        chunks => in_flight * stage.chunks.iter().map(of_chunk).sum::<u64>() / chunks as u64,
    };
    let any_recomputed =
        stage.chunks.iter().cloned().flatten().any(|block| block > 0 && block < last && recomputes(block));
    let layer = working + if any_recomputed { saved } else { 0 };
    let loss = if stage.holds(last) { loss_activations(model, settings) } else { 0 };
    // The loss is over before the backward of the last layer begins.
    kept + layer.max(loss)
}
