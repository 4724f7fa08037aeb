//! What a footprint is computed from.

use brigade_compress::{Compression, Cost, GatherCodes, Method};
use thiserror::Error;

use super::sizes::{BoundaryTensor, SavedActivations, UnitSize};
use crate::schedule::{Pipeline, PipelineScheduleKind, ScheduleError};
use crate::split::{SplitError, by_hand};
use crate::unshard::ReshardPolicy;

/// Elements per chunk of a flat buffer: the unit in which norms are summed, and of which shard boundaries are
/// multiples.
pub const CHUNK: usize = 256;

/// Bytes of a value in fp32: of masters, gradients, and parameters that are kept in it.
pub(super) const FP32: u64 = 4;

/// How many blocks ahead parameters may be gathered at most.
const MAX_LOOKAHEAD: usize = 1000;

/// How many blocks a model may have at most.
const MAX_BLOCKS: usize = 1 << 20;

/// How workers that make updates of their own synchronise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterSteps {
    /// Number of workers.
    pub workers: usize,
    /// Updates of each from one outer step to the next; what is sent is that of all of them, and of the outer step.
    pub inner_steps: usize,
    /// Bytes of an element while it is summed over the workers: 4, 2, or 1 for 8-bit integers with a scale of 4 bytes for each
    /// [chunk](CHUNK).
    pub bytes: usize,
    /// Bytes per element that a rank keeps for outer steps: the values after the last one, and the outer optimizer's state.
    pub state_bytes: usize,
    /// In how many fragments of blocks outer gradients are under way while workers make inner steps: block `b` belongs to fragment
    /// `b % fragments`. 0 where the workers wait for them.
    pub overlapped_fragments: usize,
}

/// The configuration of a run, as far as its cost depends on it. The default is one rank with plain fp32 AdamW,
/// one micro-batch, and a model without blocks, which is refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// The model's parameters.
    pub units: Vec<UnitSize>,
    /// The tensors that go into each block, or none if they are unknown; unknown ones count as nothing. Empty if none are known.
    pub boundary_activations: Vec<Vec<BoundaryTensor>>,
    /// What each block saves for the backward, and then the loss. Empty if unknown, and then counted as nothing.
    pub saved_activations: Vec<SavedActivations>,
    /// Pipeline stages.
    pub pp: usize,
    /// Data-parallel ranks of each stage that sharded state is divided among.
    pub dp: usize,
    /// How often each stage has them: replicas of the shards. 1 without hybrid sharding, and always without ZeRO.
    pub replicas: usize,
    /// Number of blocks in each of the `pp · chunks` parts of the model, in order.
    pub split: Vec<usize>,
    /// The pipeline schedule; without effect if there is one stage with one chunk.
    pub schedule: PipelineScheduleKind,
    /// Chunks of blocks per stage.
    pub chunks: usize,
    /// Whether the gradients of parameters that several stages share go to the one that owns them for each micro-batch, or once a step.
    pub tied_each_micro_batch: bool,
    /// Micro-batches of a rank in a step.
    pub micro_batches: usize,
    /// Steps from one update to the next; what is held and sent is that of all of them.
    pub sync_every: usize,
    /// The outer steps of workers that make updates of their own, each of which has these ranks; none where all ranks make every
    /// update.
    pub outer: Option<OuterSteps>,
    /// 0 to 3: nothing, optimizer state, gradients too, parameters too are sharded over the data-parallel ranks.
    pub zero_stage: u8,
    /// ZeRO-3: when gathered parameters are freed.
    pub reshard: ReshardPolicy,
    /// ZeRO-3: how many blocks ahead parameters are gathered.
    pub prefetch: usize,
    /// ZeRO-2 and ZeRO-3: whether gradients are reduced after every micro-batch, or once per update.
    pub reduce_each_micro_batch: bool,
    /// Activation checkpointing: `k` if every k-th block is recomputed in the backward, so 1 is all and 0 none. It must be all if
    /// gathered parameters are freed after use by a backend that cannot free them under a graph.
    pub recompute_every: usize,
    /// Bytes of an element of parameters in forward and backward, but for those that are kept in fp32: 4, or 2 with fp32
    /// masters.
    pub compute_bytes: usize,
    /// Bytes of an element of a gradient while it is summed over ranks: 4 or 2.
    pub reduce_bytes: usize,
    /// What gradients travel as, after the warm-up.
    pub compression: Compression,
    /// What parameters travel as when shards are gathered.
    pub gather_codes: GatherCodes,
    /// Bytes of optimizer state per element: 8 for Adam and AdamW.
    pub optimizer_bytes: usize,
    /// Whether the optimizer's state and its master weights are on another device than the blocks.
    pub offload: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            units: Vec::new(),
            boundary_activations: Vec::new(),
            saved_activations: Vec::new(),
            pp: 1,
            dp: 1,
            replicas: 1,
            split: Vec::new(),
            schedule: PipelineScheduleKind::default(),
            chunks: 1,
            tied_each_micro_batch: true,
            micro_batches: 1,
            sync_every: 1,
            outer: None,
            zero_stage: 0,
            reshard: ReshardPolicy::AfterUseUnlessNext,
            prefetch: 1,
            reduce_each_micro_batch: true,
            recompute_every: 0,
            compute_bytes: 4,
            reduce_bytes: 4,
            compression: Compression::default(),
            gather_codes: GatherCodes::None,
            optimizer_bytes: 8,
            offload: false,
        }
    }
}

/// Why there is no footprint.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum FootprintError {
    /// The schedule is impossible.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The split is impossible.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Another part of the configuration is invalid.
    #[error("{option} = {given} is not possible: {allowed}")]
    Setting {
        /// Full name of the option, or the part of the configuration.
        option: String,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
}

fn setting(
    option: impl Into<String>,
    given: impl std::fmt::Debug,
    allowed: impl Into<String>,
) -> FootprintError {
    FootprintError::Setting { option: option.into(), given: format!("{given:?}"), allowed: allowed.into() }
}

impl Configuration {
    /// Whether units are split into shards, one for each data-parallel rank.
    pub(super) fn is_sharded(&self) -> bool {
        self.zero_stage >= 1 && self.dp > 1
    }

    /// Whether each micro-batch's gradients are reduce-scattered at once.
    pub(super) fn sums_each_micro_batch(&self) -> bool {
        self.is_sharded() && self.zero_stage >= 2 && self.reduce_each_micro_batch
    }

    /// Whether parameters are whole only while they are used.
    pub(super) fn gathers(&self) -> bool {
        self.zero_stage >= 3 && self.dp > 1
    }

    /// Elements of a unit's whole buffer, padded if it is split into shards, and of a rank's own part.
    pub(super) fn lengths(&self, elements: usize) -> (usize, usize) {
        if self.is_sharded() {
            let whole = elements.next_multiple_of(CHUNK * self.dp);
            (whole, whole / self.dp)
        } else {
            (elements, elements)
        }
    }

    /// Between how many ranks a unit's gradient travels as codes, and whether they are those that it is divided among; else they have the
    /// same elements.
    pub(super) fn coded_over(&self) -> (usize, bool) {
        match self.is_sharded() {
            _ if self.replicas > 1 => (self.replicas, false),
            is_sharded => (self.dp, is_sharded),
        }
    }

    /// What the codes of a unit's gradient take on the first rank, if it travels as codes.
    pub(super) fn codes(&self, unit: &UnitSize) -> Option<Cost> {
        let ((length, own), (ranks, is_sharded)) = (self.lengths(unit.elements), self.coded_over());
        if ranks == 1 {
            return None;
        }
        let (slice, count) = match is_sharded {
            true => (length / ranks, unit.elements),
            false => (own.div_ceil(ranks), own.min(unit.elements)),
        };
        self.compression.cost(ranks, (slice, count), !is_sharded, &unit.matrices)
    }

    /// What a unit travels as when its shards are gathered: ZeRO-1 and 2 gather what was trained, ZeRO-3 all.
    pub(super) fn gathered_as(&self, unit: &UnitSize) -> GatherCodes {
        let gathers = self.zero_stage >= 3 || self.zero_stage >= 1 && unit.trainable;
        if gathers && !unit.keep_in_f32 { self.gather_codes } else { GatherCodes::None }
    }

    /// Bytes of an element of a unit in forward and backward.
    pub(super) fn bytes_per_value(&self, unit: &UnitSize) -> u64 {
        if unit.keep_in_f32 { FP32 } else { self.compute_bytes as u64 }
    }

    /// Whether a block is recomputed in its backward.
    pub(super) fn recomputes(&self, block: usize) -> bool {
        self.recompute_every > 0 && (block + 1).is_multiple_of(self.recompute_every)
    }

    /// The tensors that go into a block, as far as they are known.
    pub(super) fn boundary(&self, block: usize) -> &[BoundaryTensor] {
        self.boundary_activations.get(block).map_or(&[], Vec::as_slice)
    }

    /// The schedule in effect.
    pub(super) fn kind(&self) -> PipelineScheduleKind {
        if self.pp == 1 && self.chunks == 1 { PipelineScheduleKind::default() } else { self.schedule }
    }

    /// Checks everything, and makes the pipeline.
    pub(super) fn checked(&self) -> Result<Pipeline, FootprintError> {
        let pipeline = Pipeline::new(self.kind(), self.pp, self.chunks, self.micro_batches)?;
        let blocks = self.split.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
        if blocks > MAX_BLOCKS {
            let allowed = format!("there can be at most {MAX_BLOCKS} blocks");
            return Err(setting("sum of pipeline.stages", blocks, allowed));
        }
        by_hand(&self.split, blocks, self.pp * self.chunks)?;
        if !self.boundary_activations.is_empty() && self.boundary_activations.len() != blocks {
            let allowed = format!("the model has {blocks} blocks; each needs its tensors, or none of them");
            return Err(setting("number of boundary activations", self.boundary_activations.len(), allowed));
        }
        if !self.saved_activations.is_empty() && self.saved_activations.len() != blocks + 1 {
            let allowed =
                format!("the model has {blocks} blocks, and a loss; each needs its own, or none of them");
            return Err(setting("number of saved activations", self.saved_activations.len(), allowed));
        }
        if self.dp == 0 {
            return Err(setting("mesh.dp (--dp)", self.dp, "at least 1 is needed"));
        }
        if self.zero_stage > 3 {
            let allowed = "0 shards nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too";
            return Err(setting("zero.stage (--zero)", self.zero_stage, allowed));
        }
        if self.prefetch > MAX_LOOKAHEAD {
            let allowed = format!("it must be at most {MAX_LOOKAHEAD} blocks");
            return Err(setting("zero.prefetch", self.prefetch, allowed));
        }
        if self.sync_every == 0 {
            return Err(setting("train.sync_every", self.sync_every, "it must be at least 1"));
        }
        if let Some(outer) = self.outer.filter(|outer| outer.workers == 0 || outer.inner_steps == 0) {
            return Err(setting("workers and inner steps", outer, "at least 1 of each is needed"));
        }
        let widths = [("compute.dtype", self.compute_bytes), ("compute.reduce_dtype", self.reduce_bytes)];
        for (option, bytes) in widths {
            if ![2, 4].contains(&bytes) {
                return Err(setting(format!("bytes of {option}"), bytes, "it must be 2 or 4"));
            }
        }
        self.check_compression()?;
        for (index, unit) in self.units.iter().enumerate() {
            let in_order = unit.users.windows(2).all(|pair| pair[0] < pair[1]);
            let in_model = unit.users.iter().all(|user| *user < blocks);
            if !(in_order && in_model && unit.users.first() == Some(&unit.owner_block)) {
                let owner = unit.owner_block;
                let allowed =
                    format!("they must be in order, from {blocks} blocks, and begin with the owner, {owner}");
                return Err(setting(format!("users of unit {index}"), &unit.users, allowed));
            }
        }
        self.check_size().map(|()| pipeline)
    }

    /// Checks that gradients can travel as they are to.
    fn check_compression(&self) -> Result<(), FootprintError> {
        let Compression { method, .. } = self.compression;
        let refused = |allowed: &str| Err(setting("comm.compress (--compress)", method, allowed));
        self.compression.check().or_else(|error| refused(&error.to_string()))?;
        match method {
            Method::None => Ok(()),
            _ if self.reduce_bytes != 4 => refused("codes are made from fp32 (compute.reduce_dtype)"),
            Method::PowerSgd if self.replicas > 1 => refused("it needs whole matrices, not shards of them"),
            Method::PowerSgd if self.sums_each_micro_batch() => {
                refused("it needs zero.reduce_every = \"step\"")
            }
            _ => Ok(()),
        }
    }

    /// Checks that all bytes of the result can be counted, by a generous bound.
    fn check_size(&self) -> Result<(), FootprintError> {
        let (inner_steps, state) = self.outer.map_or((1, 0), |outer| (outer.inner_steps, outer.state_bytes));
        let passes =
            64.0 + (self.sync_every * inner_steps) as f64 * self.micro_batches as f64 * self.chunks as f64;
        let unit = |unit: &UnitSize| {
            let padded = unit.elements as f64 + CHUNK as f64 * self.dp as f64;
            padded * (16.0 * unit.users.len() as f64 * passes + (self.optimizer_bytes + state) as f64)
        };
        let tensor = |tensor: &BoundaryTensor| tensor.bytes as f64 + 16.0 + 8.0 * tensor.dimensions as f64;
        let units: f64 = self.units.iter().map(unit).sum();
        let tensors: f64 = self.boundary_activations.iter().flatten().map(tensor).sum();
        let saved_activations = |saved_activations: &SavedActivations| {
            let SavedActivations { saved, peak, output, deferred } = *saved_activations;
            [saved, peak, output, deferred].into_iter().map(|bytes| bytes as f64).sum::<f64>()
        };
        let saved_activations: f64 = self.saved_activations.iter().map(saved_activations).sum();
        let (bytes, most) = (units + 4.0 * passes * (tensors + saved_activations), i64::MAX as f64);
        if bytes < most {
            return Ok(());
        }
        Err(setting(
            "the sum of all sizes",
            format_args!("{bytes:.0e} bytes"),
            format!("at most {most:.0e} can be counted"),
        ))
    }
}
