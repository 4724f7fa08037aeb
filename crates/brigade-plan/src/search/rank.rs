//! The best configurations.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::advice::{FitAdvice, TechniqueAlone, advise, alone};
use super::axes::{Axes, TensorParallelSearch};
use super::candidate::Candidate;
use super::evaluate::{Evaluator, PlanEvaluation};
use super::workload::{PlanError, Workload};
use crate::columns::counted;
use crate::memory::MemoryParts;
use crate::schedule::{PipelineScheduleKind, ScheduleError};
use crate::unshard::ReshardPolicy;

/// Configurations that are simulated, of those with the best estimates; and of those with the same mesh and stage of ZeRO.
const SIMULATED: usize = 48;
const SIMULATED_ALIKE: usize = 4;

/// The answer to a [`Workload`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The fastest configurations that fit, the best first.
    pub best: Vec<PlanEvaluation>,
    /// The fastest with tensor parallelism, which is not built yet.
    pub tensor_parallel: Vec<PlanEvaluation>,
    /// Configurations whose memory was computed.
    pub considered: usize,
    /// Those that fit and can be run.
    pub fitting: usize,
    /// Those that would fit with tensor parallelism, which is not built yet.
    pub fitting_with_tensor_parallelism: usize,
    /// What one technique alone would need.
    pub alone: Vec<TechniqueAlone>,
    /// What to do where nothing fits.
    pub advice: Option<FitAdvice>,
}

/// Plans a training: the `keep` fastest configurations of these axes.
///
/// ```
/// use brigade_plan::model::ModelShape;
/// use brigade_plan::search::{Axes, Workload, plan};
/// let model = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
/// let workload = Workload::new(model, "2x8xH100-80GB".parse()?, 4096, 256);
/// let plan = plan(&workload, &Axes::default(), 10)?;
/// assert!(plan.best[0].mfu > 0.3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If numbers do not go together, so that there is no configuration at all. That none fits is no error: the plan then has [`FitAdvice`].
pub fn plan(workload: &Workload, axes: &Axes, keep: usize) -> Result<Plan, PlanError> {
    workload.check()?;
    let evaluator = Evaluator::new(workload);
    let found = Found::collect(&evaluator, workload, axes)?;
    let considered = found.considered;
    let is_built = found.leanest.as_ref().is_some_and(|(candidate, _)| candidate.is_built());
    if axes.tensor == TensorParallelSearch::Compared && axes.tp.is_empty() && !is_built {
        // One that can be run would be the leanest: there is none.
        let axes = Axes { tensor: TensorParallelSearch::Off, ..axes.clone() };
        return Err(nothing(workload, &axes, false));
    }
    let is_unfit = found
        .fitting
        .iter()
        .all(|candidate| !candidate.is_built() && axes.tensor == TensorParallelSearch::Compared);
    let (built, unbuilt): (Vec<_>, Vec<_>) = found
        .fitting
        .into_iter()
        .partition(|candidate| axes.tensor == TensorParallelSearch::Ranked || candidate.is_built());
    let (fitting, fitting_with_tensor_parallelism) = (built.len(), unbuilt.len());
    let best = fastest(&evaluator, built, keep)?;
    let tensor_parallel = fastest(&evaluator, unbuilt, keep.min(3))?;
    let advice = match (is_unfit, found.leanest) {
        (true, Some((candidate, memory))) => {
            let missing = evaluator.missing(&memory);
            Some(advise(workload, axes, (candidate, memory, missing), tensor_parallel.first())?)
        }
        _ => None,
    };
    let alone = alone(&evaluator, workload)?;
    Ok(Plan { best, tensor_parallel, considered, fitting, fitting_with_tensor_parallelism, alone, advice })
}

/// The fastest of these, simulated: the best one of each mesh and stage of ZeRO, and further ones where these are fewer than `keep`.
fn fastest(
    evaluator: &Evaluator<'_>,
    candidates: Vec<Candidate>,
    keep: usize,
) -> Result<Vec<PlanEvaluation>, PlanError> {
    let mut estimated = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        estimated.push((evaluator.estimate(&candidate)?, candidate));
    }
    estimated.sort_by(|a, b| a.0.total_cmp(&b.0));
    let kind = |candidate: &Candidate| (candidate.tp, candidate.pp, candidate.zero);
    let mut alike: HashMap<_, usize> = HashMap::new();
    let (mut chosen, others): (Vec<_>, Vec<_>) = estimated.into_iter().partition(|(_, candidate)| {
        let count = alike.entry(kind(candidate)).or_default();
        *count += 1;
        *count <= SIMULATED_ALIKE
    });
    chosen.truncate(SIMULATED.max(SIMULATED_ALIKE * keep));
    let more = keep.saturating_sub(chosen.len());
    chosen.extend(others.into_iter().take(more));
    let mut all = evaluate_all(evaluator, &chosen)?;
    // Of those that are equally fast to a thousandth, the one that holds less.
    let key = |evaluation: &PlanEvaluation| (evaluation.seconds.ln() * 1000.0).round() as i64;
    all.sort_by_key(|evaluation| (key(evaluation), evaluation.memory.total()));
    let mut seen = HashSet::new();
    let (mut best, further): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|evaluation| seen.insert(kind(&evaluation.candidate)));
    best.truncate(keep);
    let more = keep - best.len();
    best.extend(further.into_iter().take(more));
    best.sort_by_key(|evaluation| (key(evaluation), evaluation.memory.total()));
    Ok(best)
}

/// Simulates configurations, on all cores: each takes up to some 50 ms.
fn evaluate_all(
    evaluator: &Evaluator<'_>,
    candidates: &[(f64, Candidate)],
) -> Result<Vec<PlanEvaluation>, PlanError> {
    let workload = evaluator.workload();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let simulate_all = || {
        // Its caches are a thread's own.
        let (evaluator, mut own) = (Evaluator::new(workload), Vec::new());
        while let Some((index, (_, candidate))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            candidates.get(index).map(|candidate| (index, candidate))
        } {
            own.push((index, evaluator.evaluate(candidate)));
        }
        own
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..cores.min(candidates.len())).map(|_| scope.spawn(simulate_all)).collect();
        let mut all = simulate_all();
        for other in others {
            match other.join() {
                Ok(own) => all.extend(own),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, evaluation)| evaluation).collect()
}

/// What a search has found.
#[derive(Default)]
pub(super) struct Found {
    pub fitting: Vec<Candidate>,
    pub considered: usize,
    /// The one that lacks least, of those that can be run, and of several the one that holds least.
    pub leanest: Option<(Candidate, MemoryParts)>,
    /// Whether the first one that fits is all that is asked for.
    first_alone: bool,
}

impl Found {
    /// Computes the memory of all configurations.
    pub fn collect(evaluator: &Evaluator<'_>, workload: &Workload, axes: &Axes) -> Result<Self, PlanError> {
        Self::search(evaluator, workload, axes, false)
    }

    /// The first configuration that fits.
    pub fn first_fitting(workload: &Workload, axes: &Axes) -> Option<Candidate> {
        let found = Self::search(&Evaluator::new(workload), workload, axes, true).ok()?;
        found.fitting.first().copied()
    }

    fn search(
        evaluator: &Evaluator<'_>,
        workload: &Workload,
        axes: &Axes,
        first_alone: bool,
    ) -> Result<Self, PlanError> {
        let ranks = workload.cluster.devices();
        let mut found = Self { first_alone, ..Self::default() };
        let mut divides = false;
        for (tp, pp) in axes.meshes(workload) {
            let dp = ranks / tp / pp;
            if !workload.global_batch.is_multiple_of(dp) {
                continue;
            }
            divides = true;
            for micro_batch in axes.micro_batch_sizes(workload.global_batch / dp) {
                let micro_batches = workload.global_batch / dp / micro_batch;
                for (schedule, chunks) in axes.shapes(workload.model.blocks(), pp) {
                    let candidate = Candidate {
                        tp,
                        pp,
                        dp,
                        replicate: 1,
                        zero: 0,
                        schedule,
                        chunks,
                        micro_batch,
                        micro_batches,
                        recompute_every: 0,
                        reshard: ReshardPolicy::AfterUseUnlessNext,
                        reduce_each_micro_batch: true,
                        offload: false,
                    };
                    found.add_shardings(evaluator, axes, &candidate)?;
                    if first_alone && !found.fitting.is_empty() {
                        return Ok(found);
                    }
                }
            }
        }
        if found.considered == 0 {
            return Err(nothing(workload, axes, divides));
        }
        Ok(found)
    }

    fn add_shardings(
        &mut self,
        evaluator: &Evaluator<'_>,
        axes: &Axes,
        base: &Candidate,
    ) -> Result<(), PlanError> {
        let workload = evaluator.workload();
        let tasks = base.pp.saturating_mul(base.chunks).saturating_mul(base.micro_batches);
        let is_grouped =
            base.schedule != PipelineScheduleKind::Interleaved || base.micro_batches.is_multiple_of(base.pp);
        if tasks > ScheduleError::MAX_TASKS || !is_grouped {
            return Ok(());
        }
        let recomputations = axes.recomputations();
        // Processors are the host: what they offload stays where it is.
        let may_offload = axes.offload && base.tp == 1 && !workload.cluster.is_cpu();
        let offloads = if may_offload { &[false, true][..] } else { &[false] };
        let leanest = *recomputations.last().unwrap_or(&0);
        for sharded in axes.shardings(base, evaluator.devices_per_node()) {
            let fits_at_all = |offload: &bool| {
                let leanest = Candidate { recompute_every: leanest, offload: *offload, ..sharded };
                evaluator.memory(&leanest).is_ok_and(|(_, memory)| evaluator.fits(&memory))
            };
            // Of most, not even the leanest fits.
            if self.first_alone && !offloads.iter().any(fits_at_all) {
                continue;
            }
            let mut add = |candidate: Candidate| -> Result<bool, PlanError> {
                let (_, memory) = evaluator.memory(&candidate)?;
                self.considered += 1;
                // One that is not built says what is missing only where there is no other.
                let lacks = |memory: &MemoryParts| {
                    (evaluator.missing(memory).of_node(evaluator.devices_per_node()), memory.total())
                };
                let is_leaner = |(other, least): &(Candidate, MemoryParts)| {
                    (!candidate.is_built(), lacks(&memory)) < (!other.is_built(), lacks(least))
                };
                if self.leanest.as_ref().is_none_or(is_leaner) {
                    self.leanest = Some((candidate, memory));
                }
                let fits = evaluator.fits(&memory);
                if fits {
                    self.fitting.push(candidate);
                }
                Ok(fits)
            };
            // What takes longer is looked at only where nothing else fits.
            let mut fits = false;
            for offload in offloads.iter().copied() {
                for recompute_every in recomputations.iter().copied() {
                    if !fits {
                        fits = add(Candidate { recompute_every, offload, ..sharded })?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Why there is no configuration.
fn nothing(workload: &Workload, axes: &Axes, divides: bool) -> PlanError {
    let ranks = workload.cluster.devices();
    if divides {
        let text = format!(
            "{} and {} in a step",
            counted(ranks, "rank"),
            counted(workload.global_batch, "sequence")
        );
        return PlanError::Nothing(format!("{} cannot be combined with {text}", axes.asked()));
    }
    if let Some(impossible) = axes.not_a_divisor(ranks).or_else(|| axes.not_within_a_node(workload)) {
        return impossible;
    }
    if let Some(impossible) = axes.more_than_blocks(workload) {
        return impossible;
    }
    // The smallest number of data-parallel ranks that a mesh of these ranks can have.
    // Tensor parallelism counts only where it is asked for.
    let asks = !axes.tp.is_empty() || axes.tensor == TensorParallelSearch::Ranked;
    let meshes = axes.meshes(workload).into_iter().filter(|(tp, _)| asks || *tp == 1);
    let least = meshes.map(|(tp, pp)| ranks / tp / pp).min().unwrap_or(ranks);
    let near = workload.global_batch.div_ceil(least).max(1) * least;
    let meshes = Axes { tp: axes.tp.clone(), pp: axes.pp.clone(), ..Axes::default() }.asked();
    let why = match meshes.is_empty() {
        true => format!("make up to {} pipeline stages, so", workload.model.blocks()),
        false => format!("with {meshes} make"),
    };
    PlanError::new(
        "--global-batch-size",
        workload.global_batch,
        format!(
            "{ranks} ranks {why} at least {least} data-parallel ranks, each with the same number of sequences; \
             the next possible batch is {near} sequences ({} tokens)",
            near * workload.sequence_length
        ),
    )
}
