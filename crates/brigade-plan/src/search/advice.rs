//! What is missing where something does not fit, and the cheapest change that makes it fit.

use serde::Serialize;

use super::axes::{Axes, TensorParallelSearch};
use super::candidate::Candidate;
use super::evaluate::{Evaluator, PlanEvaluation};
use super::rank::Found;
use super::shortage::Shortage;
use super::workload::{PlanError, Workload};
use crate::columns::counted;
use crate::memory::MemoryParts;
use crate::schedule::PipelineScheduleKind;
use crate::unshard::ReshardPolicy;

/// What to do where no configuration fits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitAdvice {
    /// The configuration that holds least.
    pub leanest: Candidate,
    /// What a rank of it holds.
    pub memory: MemoryParts,
    /// What it lacks.
    pub missing: Shortage,
    /// Changes that would each make something fit.
    pub changes: Vec<String>,
}

/// What one technique alone would need, with a micro-batch of one sequence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TechniqueAlone {
    /// The technique.
    pub name: &'static str,
    /// The configuration.
    pub candidate: Candidate,
    /// What a rank of its fullest stage holds.
    pub memory: MemoryParts,
    /// What it lacks; nothing where it fits.
    pub missing: Shortage,
    /// The cheapest change that makes it fit.
    pub change: Option<String>,
}

/// Looks for a smaller batch, more nodes, shorter sequences or tensor parallelism with which something fits.
pub(super) fn advise(
    workload: &Workload,
    axes: &Axes,
    (leanest, memory, missing): (Candidate, MemoryParts, Shortage),
    tensor: Option<&PlanEvaluation>,
) -> Result<FitAdvice, PlanError> {
    let mut changes = Vec::new();
    let axes = Axes { tensor: TensorParallelSearch::Off, ..axes.clone() };
    let fits = |other: &Workload| Found::first_fitting(other, &axes);
    let smaller = std::iter::successors(Some(workload.global_batch / 2), |batch| Some(batch / 2));
    for batch in smaller.take_while(|batch| *batch >= 1) {
        let other = Workload { global_batch: batch, ..workload.clone() };
        if let Some(candidate) = fits(&other) {
            changes.push(format!("a global batch of {}: {}", counted(batch, "sequence"), candidate.label()));
            break;
        }
    }
    for times in [2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128] {
        let mut other = workload.clone();
        other.cluster.nodes *= times;
        if other.cluster.devices() > 1 << 15 {
            break;
        }
        if let Some(candidate) = fits(&other) {
            changes.push(format!("{} nodes: {}", other.cluster.nodes, candidate.label()));
            break;
        }
        // As many sequences more, where there are fewer than ranks.
        if other.global_batch < other.cluster.devices() {
            other.global_batch *= times;
            if let Some(candidate) = fits(&other) {
                let batch = counted(other.global_batch, "sequence");
                let label = candidate.label();
                changes.push(format!("{} nodes and a global batch of {batch}: {label}", other.cluster.nodes));
                break;
            }
        }
    }
    let shorter = std::iter::successors(Some(workload.sequence_length / 2), |length| Some(length / 2));
    for length in shorter.take_while(|length| *length >= 128) {
        let other = Workload { sequence_length: length, ..workload.clone() };
        if let Some(candidate) = fits(&other) {
            changes.push(format!("sequences of {length} tokens: {}", candidate.label()));
            break;
        }
    }
    for name in crate::cluster::KINDS {
        let Some(kind) =
            crate::cluster::kind(name).filter(|kind| kind.device.memory > workload.cluster.device.memory)
        else {
            continue;
        };
        let mut other = workload.clone();
        other.cluster.device = kind.device;
        if other.cluster.device.peak(other.dtype) > 0.0
            && let Some(candidate) = fits(&other)
        {
            changes.push(format!("devices of kind {name}: {}", candidate.label()));
            break;
        }
    }
    if let Some(tensor) = tensor {
        changes.push(format!("tensor parallelism, which is not built yet: {}", tensor.candidate.label()));
    }
    Ok(FitAdvice { leanest, memory, missing, changes })
}

/// What each technique alone would need.
pub(super) fn alone(
    evaluator: &Evaluator<'_>,
    workload: &Workload,
) -> Result<Vec<TechniqueAlone>, PlanError> {
    let ranks = workload.cluster.devices();
    let base = Candidate {
        tp: 1,
        pp: 1,
        dp: ranks,
        replicate: 1,
        zero: 0,
        schedule: PipelineScheduleKind::OneFOneB,
        chunks: 1,
        micro_batch: 1,
        micro_batches: (workload.global_batch / ranks).max(1),
        recompute_every: 0,
        reshard: ReshardPolicy::usual(1),
        reduce_each_micro_batch: true,
        offload: false,
    };
    let stages =
        (1..=ranks.min(workload.model.blocks())).rev().find(|pp| ranks.is_multiple_of(*pp)).unwrap_or(1);
    let pipeline = Candidate {
        pp: stages,
        dp: ranks / stages,
        micro_batches: (workload.global_batch / (ranks / stages)).max(1),
        reshard: ReshardPolicy::usual(stages),
        ..base
    };
    let mut all = vec![("data parallelism alone", base)];
    if ranks > 1 {
        all.push(("ZeRO-1 alone", Candidate { zero: 1, ..base }));
        all.push(("ZeRO-2 alone", Candidate { zero: 2, ..base }));
        all.push(("ZeRO-3 alone", Candidate { zero: 3, ..base }));
    }
    if stages > 1 {
        all.push(("a pipeline alone", pipeline));
    }
    let of = |(name, candidate): (&'static str, Candidate)| {
        let (_, memory) = evaluator.memory(&candidate)?;
        let missing = evaluator.missing(&memory);
        let change = if missing.is_none() { None } else { cheapest(evaluator, &candidate)? };
        let change = change.map(|changed| flags(&changed, workload.global_batch));
        Ok(TechniqueAlone { name, candidate, memory, missing, change })
    };
    all.into_iter().map(of).collect()
}

/// The change of fewest settings that makes a configuration fit, and of those the one that is estimated fastest.
fn cheapest(evaluator: &Evaluator<'_>, from: &Candidate) -> Result<Option<Candidate>, PlanError> {
    let mut reached = vec![(Vec::<&'static str>::new(), *from)];
    for _ in 0..4 {
        let mut next = Vec::new();
        let mut best: Option<(f64, Candidate)> = None;
        for (made, candidate) in &reached {
            for (change, changed) in changes(candidate, evaluator.workload().cluster.is_cpu()) {
                if made.contains(&change) || evaluator.memory(&changed).is_err() {
                    continue;
                }
                let all: Vec<&'static str> = made.iter().copied().chain([change]).collect();
                if evaluator.fits(&evaluator.memory(&changed)?.1) {
                    let seconds = evaluator.estimate(&changed)?;
                    if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                        best = Some((seconds, changed));
                    }
                } else {
                    next.push((all, changed));
                }
            }
        }
        if let Some((_, changed)) = best {
            return Ok(Some(changed));
        }
        next.dedup_by_key(|(_, candidate)| *candidate);
        reached = next;
    }
    Ok(None)
}

/// The flags of a configuration, and whether they change the batch.
fn flags(candidate: &Candidate, global_batch: usize) -> String {
    match candidate.other_batch(global_batch) {
        None => candidate.flags(),
        Some(other) => format!("{}: {other}", candidate.flags()),
    }
}

/// Single changes to a configuration that make it hold less. Processors have nowhere to offload to.
fn changes(from: &Candidate, is_cpu: bool) -> Vec<(&'static str, Candidate)> {
    let mut all = Vec::new();
    if from.dp > 1 {
        for (name, zero) in [("--zero 1", 1), ("--zero 2", 2), ("--zero 3", 3)] {
            if zero > from.zero {
                all.push((name, Candidate { zero, ..*from }));
            }
        }
    }
    if from.recompute_every != 1 {
        all.push(("--recompute all", Candidate { recompute_every: 1, ..*from }));
    }
    for (name, times) in [("--pp 2", 2), ("--pp 4", 4)] {
        if from.dp.is_multiple_of(times) {
            let pp = times * from.pp;
            all.push((
                name,
                Candidate {
                    pp,
                    dp: from.dp / times,
                    micro_batches: times * from.micro_batches,
                    reshard: ReshardPolicy::usual(pp),
                    ..*from
                },
            ));
        }
    }
    if !from.offload && !is_cpu {
        all.push(("--set zero.offload_optimizer=true", Candidate { offload: true, ..*from }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelShape;

    /// Flags say nothing of when parameters are freed, so that what fits must fit with what training does by default.
    #[test]
    fn changes_free_parameters_as_training_does_without_a_setting() {
        let model = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
        let mut found = 0;
        for cluster in ["1x8xA10", "2x4xL4", "4x8xT4", "1x4xA100-40GB"] {
            let workload = Workload::new(model.clone(), cluster.parse().unwrap(), 2048, 64);
            let evaluator = Evaluator::new(&workload);
            for alone in alone(&evaluator, &workload).unwrap() {
                let from = alone.candidate;
                let once: Vec<Candidate> = changes(&from, false).into_iter().map(|(_, to)| to).collect();
                let twice = once.iter().flat_map(|once| changes(once, false)).map(|(_, to)| to);
                for changed in once.iter().copied().chain(twice).chain([from]) {
                    assert_eq!(changed.reshard, ReshardPolicy::usual(changed.pp), "{}", changed.label());
                }
                let Some(change) = alone.change else { continue };
                let changed = cheapest(&evaluator, &from).unwrap().unwrap();
                let trained = Candidate { reshard: ReshardPolicy::usual(changed.pp), ..changed };
                assert!(evaluator.fits(&evaluator.memory(&trained).unwrap().1), "{change}");
                found += 1;
            }
        }
        assert!(found > 0);
    }
}
