//! Which values of each axis are searched.

use super::candidate::Candidate;
use super::workload::{PlanError, Workload};
use crate::columns::counted;
use crate::schedule::PipelineScheduleKind;
use crate::unshard::ReshardPolicy;

/// Whether tensor parallelism is searched. It is not built yet, so that a plan says what it would bring, and does not choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorParallelSearch {
    /// Not at all.
    Off,
    /// Beside what can be run.
    Compared,
    /// Ranked among all.
    Ranked,
}

/// The axes of a search. An empty list stands for all values that make sense.
#[derive(Debug, Clone)]
pub struct Axes {
    /// Tensor-parallel ranks.
    pub tp: Vec<usize>,
    /// Whether they are searched.
    pub tensor: TensorParallelSearch,
    /// Pipeline stages.
    pub pp: Vec<usize>,
    /// ZeRO's stages.
    pub zero: Vec<u8>,
    /// Replicas of what ZeRO shards.
    pub replicate: Vec<usize>,
    /// Schedules.
    pub schedules: Vec<PipelineScheduleKind>,
    /// Chunks of interleaved schedules, from 2 on.
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
            tensor: TensorParallelSearch::Compared,
            pp: Vec::new(),
            zero: Vec::new(),
            replicate: Vec::new(),
            schedules: Vec::new(),
            chunks: Vec::new(),
            micro_batches: Vec::new(),
            recompute: Vec::new(),
            offload: true,
        }
    }
}

impl Axes {
    /// Why no mesh of these ranks has an axis as asked for: none of its sizes divides them.
    pub(super) fn not_a_divisor(&self, ranks: usize) -> Option<PlanError> {
        let axes = [("--pp", &self.pp), ("--tp", &self.tp), ("--replicate", &self.replicate)];
        let (option, sizes) = axes.into_iter().find(|(_, sizes)| {
            !sizes.is_empty() && sizes.iter().all(|size| *size == 0 || !ranks.is_multiple_of(*size))
        })?;
        let possible: Vec<String> = divisors(ranks).iter().map(usize::to_string).collect();
        let allowed = format!("it must divide the {}: {}", counted(ranks, "rank"), possible.join(", "));
        Some(PlanError::new(option, sizes[0], allowed))
    }

    /// Why no tensor-parallel size as asked for is looked at: it must divide a node's devices, and what is split.
    pub(super) fn not_within_a_node(&self, workload: &Workload) -> Option<PlanError> {
        let first = self.tp.first().filter(|_| self.tp_sizes(workload).is_empty())?;
        let any = Self { tp: Vec::new(), ..self.clone() };
        let possible: Vec<String> = any.tp_sizes(workload).iter().map(usize::to_string).collect();
        let devices = counted(workload.cluster.devices_per_node, "device");
        let allowed = format!(
            "it must divide the {devices} of a node, the heads ({}) and the width between the layer's products ({}): {}",
            workload.model.heads,
            workload.model.intermediate,
            possible.join(", ")
        );
        Some(PlanError::new("--tp", *first, allowed))
    }

    /// Why no number of stages as asked for is looked at: it must divide the ranks, and each stage needs a block.
    pub(super) fn more_than_blocks(&self, workload: &Workload) -> Option<PlanError> {
        let first = self.pp.first().filter(|_| self.meshes(workload).is_empty())?;
        let any = Self { pp: Vec::new(), ..self.clone() };
        let mut possible: Vec<usize> = any.meshes(workload).into_iter().map(|(_, pp)| pp).collect();
        possible.sort_unstable();
        possible.dedup();
        let possible: Vec<String> = possible.iter().map(usize::to_string).collect();
        let allowed = format!(
            "it must divide the {}, and each stage needs one of the {} of the model: {}",
            counted(workload.cluster.devices(), "rank"),
            counted(workload.model.blocks(), "block"),
            possible.join(", ")
        );
        Some(PlanError::new("--pp", *first, allowed))
    }

    /// Tensor-parallel ranks with numbers of stages.
    pub(super) fn meshes(&self, workload: &Workload) -> Vec<(usize, usize)> {
        let ranks = workload.cluster.devices();
        let of = |tp: usize| self.stages(workload, ranks / tp).into_iter().map(move |pp| (tp, pp));
        self.tp_sizes(workload).into_iter().flat_map(of).collect()
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

/// What is asked for, or else the usual.
fn or_usual(asked: &[usize], usual: impl IntoIterator<Item = usize>) -> Vec<usize> {
    if asked.is_empty() { usual.into_iter().collect() } else { asked.to_vec() }
}

impl Axes {
    /// What is asked for, as flags of `brigade plan`.
    pub(super) fn asked(&self) -> String {
        fn list<T: ToString>(values: &[T]) -> String {
            values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
        }
        let recompute: Vec<String> = self
            .recompute
            .iter()
            .map(|every| match every {
                0 => "none".into(),
                1 => "all".into(),
                every => format!("every-{every}"),
            })
            .collect();
        let all = [
            ("--tp", list(&self.tp)),
            ("--pp", list(&self.pp)),
            ("--zero", list(&self.zero)),
            ("--replicate", list(&self.replicate)),
            ("--schedule", list(&self.schedules)),
            ("--chunks", list(&self.chunks)),
            ("--micro-batch-size", list(&self.micro_batches)),
            ("--recompute", recompute.join(",")),
        ];
        let given = all.iter().filter(|(_, values)| !values.is_empty());
        given.map(|(flag, values)| format!("{flag} {values}")).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn tp_sizes(&self, workload: &Workload) -> Vec<usize> {
        let model = &workload.model;
        let fits = |tp: &usize| {
            model.heads.is_multiple_of(*tp)
                && model.intermediate.is_multiple_of(*tp)
                && (*tp == 1 || self.tensor != TensorParallelSearch::Off)
        };
        // Beyond the links of a node it is too slow to be worth a look.
        let possible = divisors(workload.cluster.devices_per_node).into_iter().filter(fits);
        chosen(&self.tp, possible)
    }

    pub(super) fn stages(&self, workload: &Workload, ranks: usize) -> Vec<usize> {
        let most = workload.model.blocks();
        chosen(&self.pp, divisors(ranks).into_iter().filter(|pp| *pp <= most))
    }

    /// Schedules and chunks of this many stages.
    pub(super) fn shapes(&self, blocks: usize, pp: usize) -> Vec<(PipelineScheduleKind, usize)> {
        if pp == 1 {
            return vec![(PipelineScheduleKind::default(), 1)];
        }
        let mut shapes = Vec::new();
        for kind in chosen(&self.schedules, PipelineScheduleKind::ALL) {
            let chunks = match kind {
                PipelineScheduleKind::Interleaved => or_usual(&self.chunks, [2, 3, 4, 6, 8]),
                PipelineScheduleKind::Zbv => vec![2],
                _ => vec![1],
            };
            shapes.extend(
                chunks
                    .into_iter()
                    .filter(|chunks| pp.saturating_mul(*chunks) <= blocks)
                    .map(|chunks| (kind, chunks)),
            );
        }
        shapes
    }

    pub(super) fn micro_batch_sizes(&self, sequences: usize) -> Vec<usize> {
        let all = divisors(sequences).into_iter();
        // Of many, those that are usual; others only where they are asked for.
        match self.micro_batches.is_empty() {
            true => all.filter(|size| *size <= 256).collect(),
            false => chosen(&self.micro_batches, all),
        }
    }

    /// Numbers of replicas of what ZeRO shards. By default: none, or shards on one, two, four or eight whole nodes.
    fn replicas(&self, base: &Candidate, zero: u8, devices_per_node: usize) -> Vec<usize> {
        let is_whole = |replicas: usize| {
            [1, 2, 4, 8].contains(&(base.dp / replicas * base.tp).div_ceil(devices_per_node))
        };
        let fits = |replicas: usize| (base.dp / replicas * base.tp).is_multiple_of(devices_per_node);
        let possible = divisors(base.dp).into_iter().filter(|replicas| match *replicas {
            1 => true,
            all if zero == 0 || all == base.dp => false,
            some => !self.replicate.is_empty() || (fits(some) && is_whole(some)),
        });
        chosen(&self.replicate, possible)
    }

    /// ZeRO's stages and replicas, with when parameters are freed and gradients reduced.
    pub(super) fn shardings(&self, base: &Candidate, devices_per_node: usize) -> Vec<Candidate> {
        let mut all = Vec::new();
        for zero in chosen(&self.zero, 0..=3) {
            if zero > 0 && base.dp == 1 {
                continue;
            }
            for replicate in self.replicas(base, zero, devices_per_node) {
                policies(&Candidate { zero, replicate, ..*base }, &mut all);
            }
        }
        let asks = |zero: bool| zero && (self.replicate.is_empty() || self.replicate.contains(&1));
        if all.is_empty() && base.dp == 1 && asks(!self.zero.is_empty() && !self.zero.contains(&0)) {
            // Sharding over one rank shards nothing.
            all.push(*base);
        }
        all
    }

    /// Which blocks are recomputed, the fewest first.
    pub(super) fn recomputations(&self) -> Vec<usize> {
        let mut all = or_usual(&self.recompute, [0, 2, 1]);
        all.sort_by_key(|every| if *every == 0 { 0 } else { usize::MAX - every });
        all.dedup();
        all
    }
}

/// When parameters are freed and gradients reduced, under a stage of ZeRO.
fn policies(base: &Candidate, all: &mut Vec<Candidate>) {
    let usual = if base.pp == 1 { ReshardPolicy::AfterUseUnlessNext } else { ReshardPolicy::AfterUse };
    let policies = match base.zero {
        3 => vec![usual, ReshardPolicy::AfterBackward, ReshardPolicy::AfterStep],
        _ => vec![ReshardPolicy::AfterUseUnlessNext],
    };
    for reshard in policies {
        all.push(Candidate { reshard, reduce_each_micro_batch: true, ..*base });
        // Stage 2 with one reduction a step is stage 1; one micro-batch is reduced once either way.
        if base.zero == 3 && base.micro_batches > 1 {
            all.push(Candidate { reshard, reduce_each_micro_batch: false, ..*base });
        }
    }
}
