//! Bytes that a rank holds.

use brigade_compress::GatherCodes;

use super::activations::saved_activations;
use super::configuration::{Configuration, FP32};
use super::gradients::{gradients, partial_sums};
use super::sizes::{Amount, UnitSize};
use super::stage_units::{StageUnit, StageUnits};
use crate::schedule::{Action, formula};
use crate::unshard::most_unsharded;

/// What a rank's tensors are for, in bytes. Ψ are the elements that the stage's blocks read, each shared parameter
/// once, and Ψₛ those of them that the stage steps: all but those that are not trained, and shared parameters that another stage
/// owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFootprint {
    /// Parameters: whole buffers, shards, gathered buffers, fp32 masters. Formula: `4Ψ`, under ZeRO-3 `4Ψ/dp`; with
    /// 2 bytes in compute `2Ψ + 4Ψₛ`, sharded `2Ψ + 4Ψₛ/dp`, under ZeRO-3 `4Ψₛ/dp` and `2/dp` for the others. The
    /// masters, `4Ψₛ` or `4Ψₛ/dp`, are also there where shards are gathered as codes and where the optimizer is offloaded, then on the
    /// optimizer's device. Parameters kept in fp32 count as with 4 bytes in compute.
    ///
    /// The peak also has what is gathered at once.
    pub parameters: Amount,
    /// Gradients, in fp32. Formula: `4Ψₛ`, or `4Ψₛ/dp` where each micro-batch's are summed over the ranks.
    ///
    /// The peak also has the partial sums of a pairwise sum over micro-batches, and whole buffers, or codes of them, in flight. Where
    /// gradients are sent as codes, both include what the codes left out ([`Cost::kept`](brigade_compress::Cost::kept)).
    pub gradients: Amount,
    /// The optimizer's state. Formula for 8 bytes an element: `8Ψₛ`, sharded `8Ψₛ/dp`. Outer steps add their own state.
    ///
    /// The peak also has outer gradients that are under way while workers make inner steps, in fp32.
    pub optimizer: Amount,
    /// Boundary activations: the inputs of the blocks and the outputs of chunks whose graphs are kept, of all
    /// micro-batches in flight, what the second halves of backwards still need, and gradients of shared parameters that go to their stage once a step. Its formula is the most in flight times the largest
    /// chunk's, and the most partial sums of such gradients.
    pub boundary_activations: Amount,
    /// Saved activations of the blocks and the loss: what their graphs keep for all micro-batches in flight, and what the running
    /// block needs, as far as [`Configuration::saved_activations`] says.
    pub saved_activations: Amount,
}

impl MemoryFootprint {
    /// The sum of the peaks. They need not coincide, so it is an upper bound.
    pub fn peak(&self) -> u64 {
        let Self { parameters, gradients, optimizer, boundary_activations, saved_activations } = self;
        parameters.peak + gradients.peak + optimizer.peak + boundary_activations.peak + saved_activations.peak
    }
}

pub(super) fn memory(stage_units: &StageUnits<'_>) -> MemoryFootprint {
    let configuration = stage_units.configuration;
    let stepped = sum_stepped(stage_units, |unit| unit.elements);
    let shards = if configuration.is_sharded() { configuration.dp as u64 } else { 1 };
    let outer = configuration.outer.map_or(0, |outer| outer.state_bytes);
    let state = (configuration.optimizer_bytes + outer) as u64;

    let parameters = parameters(stage_units, shards);
    let (live, peak) = gradients(stage_units);
    let gradient_shards = if configuration.sums_each_micro_batch() { shards } else { 1 };
    let gradients = Amount { formula: (FP32 * stepped).div_ceil(gradient_shards), live, peak };
    // The state has no padding: the first rank's shard has the least of it.
    let state_elements = sum_stepped(stage_units, |unit| unit.own.min(unit.elements));
    let optimizer = Amount {
        formula: (state * stepped).div_ceil(shards),
        live: state * state_elements,
        peak: state * state_elements + FP32 * outer_in_flight(stage_units),
    };
    let (boundary_activations, saved_activations) =
        (boundary_activations(stage_units), saved_activations(stage_units));
    MemoryFootprint { parameters, gradients, optimizer, boundary_activations, saved_activations }
}

/// The most elements whose outer gradients are under way during inner steps.
fn outer_in_flight(stage_units: &StageUnits<'_>) -> u64 {
    let fragments = stage_units.configuration.outer.map_or(0, |outer| outer.overlapped_fragments);
    let of = |fragment: usize| {
        sum_stepped(stage_units, |unit| match unit.owner_block % fragments == fragment {
            true => unit.own.min(unit.elements),
            false => 0,
        })
    };
    (0..fragments).map(of).max().unwrap_or(0)
}

/// The elements of the units that the stage steps.
fn sum_stepped(stage_units: &StageUnits<'_>, elements: impl Fn(&StageUnit) -> usize) -> u64 {
    stage_units.units.iter().filter(|unit| unit.is_stepped).map(|unit| elements(unit) as u64).sum()
}

fn parameters(stage_units: &StageUnits<'_>, shards: u64) -> Amount {
    let configuration = stage_units.configuration;
    let gathers = configuration.gathers();
    let has_masters = |unit: &StageUnit| {
        unit.compute_bytes != FP32 || configuration.offload || unit.gathered_as != GatherCodes::None
    };
    // Bytes of an element of the own part, where it is held apart from the whole buffer, and of that one.
    let own = |unit: &StageUnit| match unit.is_stepped {
        true if gathers || has_masters(unit) => FP32,
        false if gathers => unit.compute_bytes,
        false if unit.is_owned && unit.gathered_as != GatherCodes::None => unit.compute_bytes,
        _ => 0,
    };
    let whole = |unit: &StageUnit| if gathers { 0 } else { unit.compute_bytes };
    let sum = |bytes: &dyn Fn(&StageUnit) -> u64| stage_units.units.iter().map(bytes).sum::<u64>();
    let formula = sum(&|unit| whole(unit) * unit.elements as u64)
        + sum(&|unit| own(unit) * unit.elements as u64).div_ceil(shards);
    let live = sum(&|unit| own(unit) * unit.own as u64 + whole(unit) * unit.length as u64);
    let gathered = |unit: &StageUnit| unit.compute_bytes as usize * unit.length;
    let gathered: Vec<usize> = stage_units.units.iter().map(gathered).collect();
    let gathered = most_unsharded(&stage_units.schedule.unshard_plan, &gathered) as u64;
    Amount { formula, live, peak: live + gathered }
}

/// Bytes of a sum of the gradients that a chunk finds for parameters of blocks before it, where it holds them until the last micro-batch.
fn tied_sum(stage_units: &StageUnits<'_>, chunk: usize) -> u64 {
    let configuration = stage_units.configuration;
    let blocks = stage_units.stage.blocks(chunk);
    let is_held = |unit: &&UnitSize| {
        unit.trainable
            && unit.owner_block < blocks.start
            && unit.users.iter().any(|user| blocks.contains(user))
    };
    let units = configuration.units.iter().filter(is_held);
    let bytes = units.map(|unit| FP32 * configuration.lengths(unit.elements).0 as u64).sum();
    if configuration.tied_each_micro_batch { 0 } else { bytes }
}

fn boundary_activations(stage_units: &StageUnits<'_>) -> Amount {
    let configuration = stage_units.configuration;
    let bytes = |block: usize| configuration.boundary(block).iter().map(|tensor| tensor.bytes).sum::<u64>();
    let saved = |chunk: usize| {
        let blocks = stage_units.stage.blocks(chunk);
        // The graph of a chunk's last block holds its output; the loss takes the model's.
        let is_last = stage_units.stage.virtual_stage(chunk) == stage_units.stage.last_virtual_stage();
        let keeps_output = !is_last && !configuration.recomputes(blocks.end - 1);
        let output = if keeps_output { bytes(blocks.end) } else { 0 };
        blocks.map(bytes).sum::<u64>() + output
    };
    let saved: Vec<u64> = (0..configuration.chunks).map(saved).collect();
    let deferred = |chunk: usize| -> u64 {
        stage_units.stage.blocks(chunk).filter_map(|block| stage_units.deferred(block)).sum()
    };
    let deferred: Vec<u64> = (0..configuration.chunks).map(deferred).collect();
    let tied: Vec<u64> = (0..configuration.chunks).map(|chunk| tied_sum(stage_units, chunk)).collect();
    let (mut live, mut peak) = (0, 0);
    for action in &stage_units.schedule.actions {
        match action {
            Action::Forward(task) => live += saved[task.chunk],
            Action::Backward(task) => live -= saved[task.chunk],
            Action::BackwardInput(task) => live = live + deferred[task.chunk] - saved[task.chunk],
            Action::BackwardWeights(task) => live -= deferred[task.chunk],
            _ => {}
        }
        if let Action::Backward(task) | Action::BackwardInput(task) = action {
            let held = |terms: usize| match terms == configuration.micro_batches {
                true => 0,
                false => tied[task.chunk] * partial_sums(terms),
            };
            live = live + held(task.micro_batch + 1) - held(task.micro_batch);
        }
        peak = peak.max(live);
    }
    let Configuration { pp, chunks, micro_batches, .. } = *configuration;
    let rank = stage_units.stage.rank;
    let in_flight = formula::peak_in_flight(configuration.kind(), pp, chunks, micro_batches, rank) as u64;
    let halves = configuration.kind().splits_backward();
    let most = saved
        .iter()
        .zip(deferred)
        .map(|(saved, deferred)| if halves { (*saved).max(deferred) } else { *saved });
    // Sums of all micro-batches but the last.
    let sums = (0..micro_batches).map(partial_sums).max().unwrap_or(0);
    let tied: u64 = tied.iter().sum();
    Amount { formula: in_flight * most.max().unwrap_or(0) + sums * tied, live, peak }
}
