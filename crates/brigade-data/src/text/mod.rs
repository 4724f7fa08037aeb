//! From text to sequences of tokens.

mod corpus;
mod dataset;
#[doc(hidden)]
pub mod fuzzing;
mod panics;
mod prepare;
mod progress;
mod tokenizer;

pub use corpus::{
    Columns, Corpus, DEFAULT_CORPUS_BYTES, Record, RecordEncoder, RecordLocation, TEXT_EXTENSIONS, check_url,
    is_url,
};
pub use dataset::{
    Example, Label, LabelKind, LongExamples, RowCounts, RowOptions, Sequence, SequenceLayout, TargetToken,
    TokenFile, TokenSequences, TokenWriter,
};
pub use prepare::{
    DataCounts, DataSource, DataSummary, PrepareOptions, PreparedData, PreparedSource, cached_list, prepare,
};
pub use progress::{NoProgress, Progress};
pub use tokenizer::{
    CachingEncoder, END_OF_TEXT, TRAINING_SAMPLE_BYTES, Tokenizer, TokenizerSpec, WholeText, conversion_hint,
};
