//! Bytes that a rank needs inside its blocks, while it computes.

use super::configuration::Configuration;
use super::holding::Holding;
use super::memory::Amount;
use crate::schedule::{Action, formula};

/// What a block, or the loss, needs for one micro-batch beside its input and its parameters, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inside {
    /// What its autodiff graph keeps from its forward to its backward, without its output.
    pub kept: u64,
    /// The most that it holds at once, in its forward or its backward: what is kept, the gradients of its output, of its
    /// input and of its parameters, and what its operations need on the way.
    pub peak: u64,
    /// Its output. Where the block is run again, that is there once more.
    pub output: u64,
}

/// What the blocks need inside: graphs that are kept, of all micro-batches in flight, and what the one that runs needs.
/// Its formula has the most of each, at the same time.
pub(super) fn inside(holding: &Holding<'_>) -> Amount {
    let configuration = holding.configuration;
    let Configuration { pp, chunks, micro_batches, .. } = *configuration;
    let chunks: Vec<Vec<Part>> = (0..chunks).map(|chunk| parts(holding, chunk)).collect();
    let (mut live, mut peak) = (0, 0);
    for action in &holding.program.actions {
        match action {
            Action::Forward(task) => live += kept(&chunks[task.chunk]),
            Action::Backward(task) => {
                for part in chunks[task.chunk].iter().rev() {
                    peak = peak.max(live + part.working);
                    live -= part.kept;
                }
            }
            _ => {}
        }
        peak = peak.max(live);
    }
    let (kind, rank) = (configuration.kind(), holding.stage.rank);
    let in_flight = formula::peak_in_flight(kind, pp, configuration.chunks, micro_batches, rank) as u64;
    let most_kept = chunks.iter().map(|chunk| kept(chunk)).max().unwrap_or(0);
    let most_working = chunks.iter().flatten().map(|part| part.working).max().unwrap_or(0);
    Amount { formula: in_flight * most_kept + most_working, live, peak }
}

/// A block of a chunk, or the loss.
struct Part {
    /// What its graph keeps until its backward.
    kept: u64,
    /// What its backward needs besides.
    working: u64,
}

fn parts(holding: &Holding<'_>, chunk: usize) -> Vec<Part> {
    let configuration = holding.configuration;
    let known = |index: usize| configuration.insides.get(index).copied().unwrap_or_default();
    let block = |block: usize| match (known(block), configuration.recomputes(block)) {
        (Inside { peak, output, .. }, true) => Part { kept: 0, working: peak + output },
        (Inside { kept, peak, .. }, false) => Part { kept, working: peak.saturating_sub(kept) },
    };
    let blocks = holding.stage.blocks(chunk);
    let has_loss = holding.stage.virtual_stage(chunk) == holding.stage.last_virtual_stage();
    let loss = has_loss.then(|| {
        let Inside { kept, peak, .. } = known(blocks.end);
        // What a block that is run again gave is kept for the loss alone.
        let again = if configuration.recomputes(blocks.end - 1) { known(blocks.end - 1).output } else { 0 };
        Part { kept: kept + again, working: peak.saturating_sub(kept) }
    });
    blocks.map(block).chain(loss).collect()
}

fn kept(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.kept).sum()
}
