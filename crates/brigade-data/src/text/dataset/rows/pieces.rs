//! Which tokens of which documents become parts of rows.

use std::ops::Range;

use crate::text::dataset::layout::{LongExamples, RowOptions, TargetToken};
use crate::text::dataset::token_file::TokenFile;

/// What was met while documents were put into rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Documents longer than a row.
    pub long: u64,
    /// Their tokens that are in no row.
    pub cut_tokens: u64,
    /// Documents, or parts of them, in which nothing is learned; they are in no row.
    pub unlearned: u64,
    /// Tokens in rows, without padding.
    pub inputs: u64,
}

/// The parts of `document` that rows hold: token ranges, each with at most as many tokens as a row's inputs and their targets.
pub(super) fn pieces(
    file: &TokenFile,
    document: usize,
    options: &RowOptions,
    counts: &mut RowCounts,
) -> Vec<Range<usize>> {
    let whole = file.document(document);
    let (length, beyond) = (options.sequence_length, options.beyond_inputs());
    let is_long = whole.len() > length + beyond;
    let cut = |start: usize| start..whole.end.min(start + length + beyond);
    counts.long += u64::from(is_long);
    let all = match options.long {
        LongExamples::Split if is_long => {
            (whole.start..whole.end - beyond).step_by(length).map(cut).collect()
        }
        _ => vec![cut(whole.start)],
    };
    let reached = all.last().map_or(whole.start, |last: &Range<usize>| last.end);
    counts.cut_tokens += (whole.end - reached) as u64;
    let (kept, dropped): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|piece| is_learned(file, piece, options.target));
    counts.unlearned += dropped.len() as u64;
    counts.inputs += kept.iter().map(|piece| (piece.len() - beyond) as u64).sum::<u64>();
    kept
}

/// Whether one of its targets counts in the loss; a task that hides tokens, or asks for the label, has its own targets.
fn is_learned(file: &TokenFile, piece: &Range<usize>, target: TargetToken) -> bool {
    if target == TargetToken::Same {
        return true;
    }
    let targets = piece.start + 1..piece.end;
    let masked: usize = file.masked_within(targets.clone()).map(|range| range.len()).sum();
    masked < targets.len()
}
