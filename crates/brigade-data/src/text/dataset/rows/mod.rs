//! Which parts of which documents are in which row, in a file beside the tokens, so that it is computed once.
//!
//! ```text
//! offset  0  magic "BRGTROWS"
//!         8  u32 version
//!        12  u32 zero
//!        16  P pairs of u64: of each part of a row, its first token and the one after its last
//!         …  R + 1 u64: which part each row begins with, and P
//!         …  u64 P, u64 R, four u64 of counts
//!         …  BLAKE3 of the split, the options and all bytes before
//! ```
//!
//! Documents are packed in groups of many, one group after the other, so that memory does not grow with the corpus.

mod pack;
mod pieces;
mod table;

pub use pieces::RowCounts;
pub(crate) use table::RowTable;

use pack::best_fit_decreasing;
use pieces::pieces;

use super::layout::{LongExamples, RowOptions, SequenceLayout};
use super::token_file::TokenFile;

/// Documents that are packed together.
const GROUP: usize = 1 << 18;
