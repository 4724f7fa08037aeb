//! Token files, and their rows.

mod example;
mod layout;
mod mapped;
mod numbers;
mod rows;
mod sequences;
mod token_file;

pub use example::{Example, Label, LabelKind};
pub use layout::{LongExamples, RowOptions, SequenceLayout, TargetToken};
pub use rows::RowCounts;
pub use sequences::{Sequence, TokenSequences};
pub(crate) use token_file::FORMAT_VERSION;
pub use token_file::{TokenFile, TokenWriter};
