//! Which values of each axis are searched.

use super::candidate::Candidate;
use super::workload::Workload;
use crate::schedule::PipelineScheduleKind;
use crate::unshard::ReshardPolicy;

/// Whether tensor parallelism is searched. It is not built yet, so that a plan says what it would bring, and does not choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tensor {
    /// Not at all.
    None,
    /// Beside what can be run.
    Beside,
    /// Ranked among all.
    Among,
}

/// The axes of a search. An empty list stands for all values that make sense.
#[derive(Debug, Clone)]
pub struct Axes {
    /// Tensor-parallel ranks.
    pub tp: Vec<usize>,
    /// Whether they are searched.
    pub tensor: Tensor,
    /// Pipeline stages.
    pub pp: Vec<usize>,
    /// ZeRO's stages.
    pub zero: Vec<u8>,
    /// Schedules.
    pub schedules: Vec<PipelineScheduleKind>,
    /// Chunks of interleaved schedules.
    pub chunks: Vec<usize>,
    /// Sequences of a micro-batch.
    pub micro_batches: Vec<usize>,
    /// Which blocks are recomputed: every k-th, 0 for none.
    pub recompute: Vec<usize>,
    /// Whether the optimizer may be offloaded.
    pub offload: bool,
}

impl Default for Axes {
    fn default() -> Self {
        Self {
            tp: Vec::new(),
            tensor: Tensor::Beside,
            pp: Vec::new(),
            zero: Vec::new(),
            schedules: Vec::new(),
            chunks: Vec::new(),
            micro_batches: Vec::new(),
            recompute: Vec::new(),
            offload: true,
        }
    }
}

/// Divisors, rising.
pub(super) fn divisors(number: usize) -> Vec<usize> {
    let mut small: Vec<usize> =
        (1..).take_while(|d| d * d <= number).filter(|d| number.is_multiple_of(*d)).collect();
    let large: Vec<usize> = small.iter().rev().map(|d| number / d).filter(|d| !small.contains(d)).collect();
    small.extend(large);
    small
}

/// What is asked for, where it is possible; everything possible where nothing is.
fn chosen<T: Copy + PartialEq>(asked: &[T], possible: impl IntoIterator<Item = T>) -> Vec<T> {
    possible.into_iter().filter(|value| asked.is_empty() || asked.contains(value)).collect()
}

impl Axes {
    pub(super) fn tp_sizes(&self, workload: &Workload) -> Vec<usize> {
        let model = &workload.model;
        let fits = |tp: &usize| {
            model.heads.is_multiple_of(*tp)
                && model.intermediate.is_multiple_of(*tp)
                && (*tp == 1 || self.tensor != Tensor::None)
        };
        // Beyond the links of a node it is too slow to be worth a look.
        let possible = divisors(workload.cluster.devices_per_node).into_iter().filter(fits);
        chosen(&self.tp, possible)
    }

    pub(super) fn stages(&self, workload: &Workload, ranks: usize) -> Vec<usize> {
        let most = workload.model.blocks();
        chosen(&self.pp, divisors(ranks).into_iter().filter(|pp| *pp <= most))
    }

    /// Schedules and chunks of so many stages.
    pub(super) fn shapes(&self, blocks: usize, pp: usize) -> Vec<(PipelineScheduleKind, usize)> {
        if pp == 1 {
            return vec![(PipelineScheduleKind::default(), 1)];
        }
        let mut shapes = Vec::new();
        for kind in chosen(&self.schedules, PipelineScheduleKind::ALL) {
            let chunks = match kind {
                PipelineScheduleKind::Interleaved => chosen(&self.chunks, [2, 3, 4, 6, 8]),
                PipelineScheduleKind::Zbv => vec![2],
                _ => vec![1],
            };
            shapes.extend(
                chunks.into_iter().filter(|chunks| pp * chunks <= blocks).map(|chunks| (kind, chunks)),
            );
        }
        shapes
    }

    pub(super) fn micro_batch_sizes(&self, sequences: usize) -> Vec<usize> {
        chosen(&self.micro_batches, divisors(sequences).into_iter().filter(|size| *size <= 256))
    }

    /// ZeRO's stages, with when parameters are freed and gradients reduced.
    pub(super) fn shardings(&self, base: &Candidate) -> Vec<Candidate> {
        let mut all = Vec::new();
        for zero in chosen(&self.zero, 0..=3) {
            if zero > 0 && base.dp == 1 {
                continue;
            }
            let usual =
                if base.pp == 1 { ReshardPolicy::AfterUseUnlessNext } else { ReshardPolicy::AfterUse };
            let policies = match zero {
                3 => vec![usual, ReshardPolicy::AfterBackward, ReshardPolicy::AfterStep],
                _ => vec![ReshardPolicy::AfterUseUnlessNext],
            };
            for reshard in policies {
                for reduce_each_micro_batch in [true, false] {
                    // Stage 2 with one reduction a step is stage 1; one micro-batch is reduced once either way.
                    let same = base.micro_batches == 1 || zero == 2 || zero < 2;
                    if !reduce_each_micro_batch && same {
                        continue;
                    }
                    all.push(Candidate { zero, reshard, reduce_each_micro_batch, ..*base });
                }
            }
        }
        if all.is_empty() && base.dp == 1 && !self.zero.is_empty() && !self.zero.contains(&0) {
            // Sharding over one rank shards nothing.
            all.push(*base);
        }
        all
    }

    pub(super) fn recomputations(&self) -> Vec<usize> {
        chosen(&self.recompute, [0, 2, 1])
    }
}
