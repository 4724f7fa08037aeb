//! Bytes of activations that a rank's blocks save and need while it computes.

use super::configuration::Configuration;
use super::sizes::{Amount, SavedActivations};
use super::stage_units::StageUnits;
use crate::schedule::{Action, formula};

/// What the blocks need inside: the graphs that are kept for all micro-batches in flight, and what the running block needs. The
/// formula assumes that both are at their peak at the same time.
pub(super) fn saved_activations(stage_units: &StageUnits<'_>) -> Amount {
    let configuration = stage_units.configuration;
    let Configuration { pp, chunks, micro_batches, .. } = *configuration;
    let chunks: Vec<Vec<Part>> = (0..chunks).map(|chunk| parts(stage_units, chunk)).collect();
    let (mut live, mut peak) = (0, 0);
    for action in &stage_units.schedule.actions {
        match action {
            Action::Forward(task) => live += saved(&chunks[task.chunk]),
            Action::Backward(task) | Action::BackwardInput(task) => {
                for part in chunks[task.chunk].iter().rev() {
                    peak = peak.max(live + part.working);
                    live -= part.saved;
                }
            }
            _ => {}
        }
        peak = peak.max(live);
    }
    let (kind, rank) = (configuration.kind(), stage_units.stage.rank);
    let in_flight = formula::peak_in_flight(kind, pp, configuration.chunks, micro_batches, rank) as u64;
    let most_kept = chunks.iter().map(|chunk| saved(chunk)).max().unwrap_or(0);
    let most_working = chunks.iter().flatten().map(|part| part.working).max().unwrap_or(0);
    Amount { formula: in_flight * most_kept + most_working, live, peak }
}

/// A block of a chunk, or the loss.
struct Part {
    /// What its graph keeps until its backward.
    saved: u64,
    /// What its backward needs in addition.
    working: u64,
}

fn parts(stage_units: &StageUnits<'_>, chunk: usize) -> Vec<Part> {
    let configuration = stage_units.configuration;
    let known = |index: usize| configuration.saved_activations.get(index).copied().unwrap_or_default();
    let block = |block: usize| match (known(block), configuration.recomputes(block)) {
        (SavedActivations { peak, output, .. }, true) => Part { saved: 0, working: peak + output },
        (SavedActivations { saved, peak, .. }, false) => Part { saved, working: peak.saturating_sub(saved) },
    };
    let blocks = stage_units.stage.blocks(chunk);
    let has_loss = stage_units.stage.virtual_stage(chunk) == stage_units.stage.last_virtual_stage();
    let loss = has_loss.then(|| {
        let SavedActivations { saved, peak, .. } = known(blocks.end);
        // The output of a recomputed block is saved only for the loss.
        let again = if configuration.recomputes(blocks.end - 1) { known(blocks.end - 1).output } else { 0 };
        Part { saved: saved + again, working: peak.saturating_sub(saved) }
    });
    blocks.map(block).chain(loss).collect()
}

fn saved(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.saved).sum()
}
