//! A corpus in pieces, which are tokenized one by one.

use crate::Result;
use crate::text::corpus::{Part, parts};
use crate::text::prepare::cache::HashedFile;

/// A piece is about this much of the files, as they lie on the disk: enough that what is done once a piece takes no time, and little
/// enough that a killed preparation loses little and that processes share the rest evenly.
pub(super) const PIECE_BYTES: u64 = 32 << 20;

/// A file, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    /// Which file of the corpus.
    pub(super) file: usize,
    pub(super) part: Part,
    /// How much of the file it is.
    pub(super) bytes: u64,
}

/// The files in order, large ones in parts where that is possible.
pub(super) fn spans(files: &[HashedFile], piece_bytes: u64) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    for (file, hashed) in files.iter().enumerate() {
        let parts = parts(&hashed.file, hashed.stamp.size, piece_bytes)?;
        spans.extend(parts.into_iter().map(|(part, bytes)| Span { file, part, bytes }));
    }
    Ok(spans)
}

/// The spans in order, small ones together, as the pieces that are tokenized. It depends on the files alone, so all processes have
/// the same.
pub(super) fn pieces(spans: Vec<Span>, piece_bytes: u64) -> Vec<Vec<Span>> {
    let mut pieces: Vec<Vec<Span>> = Vec::new();
    let mut bytes = u64::MAX;
    for span in spans {
        if bytes.saturating_add(span.bytes) > piece_bytes {
            pieces.push(Vec::new());
            bytes = 0;
        }
        bytes += span.bytes;
        if let Some(piece) = pieces.last_mut() {
            piece.push(span);
        }
    }
    pieces
}
