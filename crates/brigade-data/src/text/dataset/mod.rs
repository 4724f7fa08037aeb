//! Token files, and their sequences.

mod sequences;
mod token_file;

pub use sequences::{Sequence, SequenceLayout, TokenSequences};
pub(crate) use token_file::FORMAT_VERSION;
pub use token_file::{TokenFile, TokenWriter};
