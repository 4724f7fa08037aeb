//! From text to batches of tokens: corpora, tokenizers, memory-mapped token files, the sampler, prefetching.
//!
//! ```text
//! Corpus ──prepare──▶ token files ──▶ TokenSequences ──Sampler──▶ which rows a rank reads ──Prefetcher──▶ step
//! ```
//!
//! Invariants, on any machine, with any number of threads and ranks:
//!
//! - **Same content, same tokens.** Documents are read, split and written in the order of the corpus; the number of threads only changes
//!   the time it takes. The cache key is made from contents and settings, never from paths or times; for an object in a store, URL,
//!   size and ETag identify its content.
//! - **A cache entry is complete or absent,** as is each piece of one. They are written under another name, flushed and renamed. Processes
//!   share the pieces, and one joins them into an entry, while others wait for a bounded time. Data that does not match its checksums is
//!   rebuilt.
//! - **The corpus is never held in memory.** Files and objects are streamed, and a process holds only a few batches of text at
//!   once.
//! - **The sampler has no state.** Which sequence a row of a batch holds is a function of (seed, step, row). It does
//!   not depend on the number of ranks, and every sequence comes exactly once per epoch.
//! - **Bytes from disk are not trusted.** Lengths are checked against the file before anything is allocated or read.
//! - **No token is lost silently.** A split's last window is padded; documents are only cut to the length of a row if requested, and
//!   counted. Padding and prompts are marked as invalid targets.
//!
//! The feature `text` (on by default, with `parquet`) has everything up to the token sequences; without it there are the sampler and
//! the prefetcher, which need neither tokenizers nor a file.
//!
#![cfg_attr(feature = "text", doc = "```no_run")]
#![cfg_attr(not(feature = "text"), doc = "```ignore")]
//! use brigade_data::{Corpus, NoProgress, Prefetcher, PrepareOptions, Sampler, prepare};
//!
//! # fn main() -> brigade_data::Result<()> {
//! let corpus = Corpus::from_sources(&["books/".into(), "notes/*.jsonl".into()]);
//! let prepared = prepare(&PrepareOptions::new(corpus, "cache"), &NoProgress)?;
//! // 16 sequences a step, in micro-batches of 4; this is rank 0 of 2, so it has micro-batches 0 and 1.
//! let train = prepared.sources[0].train.clone();
//! let sampler = Sampler::new(train.len(), 7, 16, 4)?;
//! let mut batches = Prefetcher::new(0, 4, 1, move |step| {
//!     let rows = sampler.micro_batch(step, 0, 2, 0)?;
//!     Ok::<_, brigade_data::Error>(rows.into_iter().map(|row| train.get(row)).collect::<Vec<_>>())
//! })?;
//! let (first_batch, waited) = batches.next()?;
//! # Ok(())
//! # }
//! ```

mod error;
mod prefetch;
mod sampling;
#[cfg(feature = "text")]
mod text;

pub use error::{Error, Result};
pub use prefetch::{DEFAULT_PREFETCH_DEADLINE, Prefetcher};
pub use sampling::{Permutation, Sampler, SourceShare, ValidationSampler};
#[cfg(feature = "text")]
pub use text::*;
