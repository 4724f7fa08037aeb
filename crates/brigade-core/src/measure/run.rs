//! One block, or the loss, run forward and backward under a meter.

use brigade_kernels::cast;
use brigade_plan::SavedActivations;
use brigade_sorted::SortedMap;
use burn::tensor::{DType, FloatDType, Tensor};

use super::heap::HeapMeter;
use crate::error::Result;
use crate::model::Dtype;
use crate::model::activation::{Part, Parts};
use crate::model::block::NamedBlock;
use crate::model::objective::{Objective, Target};
use crate::step::forward_backward::tape::{Place, Tape, Upstream, graph_input, inner, leaves};

/// Any place in training.
pub(super) const PLACE: Place = Place { seed: 0, step: 1, micro_batch: 0, training: true };

/// What keeps less is run twice, and counts the second time: what libraries allocate when they are first used, and then keep, is
/// about a MiB.
const SMALL: u64 = 64 << 20;

/// A block that was run.
#[derive(Clone)]
pub(super) struct Trial {
    pub activations: SavedActivations,
    /// Without a graph.
    pub output: Parts,
}

/// How a block runs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunMode {
    /// Whether the gradient of its input is wanted.
    pub wants_gradient: bool,
    /// Whether it runs forward again in its backward.
    pub again: bool,
    /// Whether the second half of its backward waits.
    pub wait: bool,
    /// Whether its operations leave something for that.
    pub defers: bool,
}

/// Runs a copy of a block as a step runs it.
pub(super) fn run_block(
    named: &NamedBlock,
    input: &Parts,
    compute: Dtype,
    mode: RunMode,
    meter: Option<&dyn HeapMeter>,
) -> Result<Trial> {
    let run = || run_copy(&copy(named, compute, input), input, mode, meter);
    let first = run()?;
    if meter.is_some() && first.activations.saved < SMALL { run() } else { Ok(first) }
}

/// A copy of a block whose parameters have values, where its input is.
pub(super) fn copy(named: &NamedBlock, compute: Dtype, input: &Parts) -> NamedBlock {
    NamedBlock { name: named.name.clone(), block: named.block.copy_with_values(compute, input.device()) }
}

pub(super) fn run_copy(
    copy: &NamedBlock,
    input: &Parts,
    mode: RunMode,
    meter: Option<&dyn HeapMeter>,
) -> Result<Trial> {
    let input = || graph_input(input, mode.wants_gradient);
    let mut tape = Tape::default();
    let Some(meter) = meter else {
        let output = tape.forward(copy, input(), mode.again, PLACE)?;
        return Ok(Trial { activations: SavedActivations::default(), output });
    };
    let before = meter.in_use();
    meter.begin();
    let output = tape.forward(copy, input(), mode.again, PLACE)?;
    let kept = meter.in_use().saturating_sub(before);
    let mut upstream = ones(&output);
    let found = tape.backward(copy, 1.0, mode.defers, &mut upstream)?;
    drop(widened(&found.now));
    let deferred = if mode.wait && found.later.is_some() { found.bytes() } else { 0 };
    if let Some(later) = found.later {
        later.run(&copy.name)?;
    }
    // An output may view parameters, which the forward did not allocate.
    let allocated = output.bytes().min(kept);
    let activations = activations(kept, meter.most_added(), allocated);
    Ok(Trial { activations: SavedActivations { deferred, ..activations }, output })
}

/// What a step adds up of gradients that are not fp32 yet: they are packed, and then cast.
fn widened(found: &SortedMap<String, Tensor<1>>) -> Option<Tensor<1>> {
    let narrow: Vec<_> = found.values().filter(|flat| flat.dtype() != DType::F32).cloned().collect();
    (!narrow.is_empty()).then(|| cast(Tensor::cat(narrow, 0), FloatDType::F32))
}

/// Runs the loss and the metrics as a step runs them, in a graph of their own.
pub(super) fn run_loss(
    (last, objective): (&str, &Objective),
    output: &Parts,
    target: &Target,
    meter: &dyn HeapMeter,
) -> Result<SavedActivations> {
    let run = || run_loss_once((last, objective), output, target.clone(), meter);
    let first = run()?;
    if first.saved < SMALL { run() } else { Ok(first) }
}

pub(super) fn run_loss_once(
    (last, objective): (&str, &Objective),
    output: &Parts,
    target: Target,
    meter: &dyn HeapMeter,
) -> Result<SavedActivations> {
    let before = meter.in_use();
    meter.begin();
    let input = objective.input(&leaves(output));
    let apart = objective.has_metrics_of_their_own().then(|| (inner(&input), target.clone()));
    let (loss, sums) = objective.loss(last, input, target)?;
    let mut sums: Vec<_> = sums.into_iter().map(Tensor::inner).collect();
    if let Some((output, target)) = apart {
        sums.extend(objective.metrics(last, &output, &target)?);
    }
    let kept = meter.in_use().saturating_sub(before);
    if loss.is_tracked() {
        // As a step divides it by the number of targets.
        drop(loss.div_scalar(2.0).backward());
    }
    Ok(activations(kept, meter.most_added(), 0))
}

/// `kept` after the forward and at `most`, both with the output, which is not the block's own.
fn activations(kept: u64, most: u64, output: u64) -> SavedActivations {
    let saved = kept.saturating_sub(output);
    SavedActivations { saved, peak: most.saturating_sub(output).max(saved), output, deferred: 0 }
}

/// A gradient for each of an output's float tensors.
fn ones(output: &Parts) -> Upstream {
    let gradient = |part: &Part| match part {
        Part::Float(flat, _) => Some(flat.ones_like()),
        Part::Int(..) => None,
    };
    inner(output).0.iter().map(gradient).collect()
}
