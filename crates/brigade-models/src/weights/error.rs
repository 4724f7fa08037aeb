//! What can go wrong with files of weights.

use std::path::PathBuf;

use super::differences::{NameDifferences, Strict};
use super::mapping::Stored;

/// What can go wrong with a file of weights.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a safetensors file.
    #[error("{path} is not a complete safetensors file: {source}")]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
    /// The file is not a record of Burn.
    #[error("{path} is not a complete Burn record: {source}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: burn_pack::Error,
    },
    /// The file is not an index of safetensors files.
    #[error("{path} is not an index of safetensors files: {problem}")]
    Index {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// The model and the file have not the same names.
    #[error("{path}: {}", .differences.describe(*.strict))]
    Names {
        /// The file.
        path: PathBuf,
        /// The names.
        differences: NameDifferences,
        /// What was asked for.
        strict: Strict,
    },
    /// Adapters cannot be merged into weights that are not all there.
    #[error("{path}: adapters cannot be merged, because neither the model's files nor theirs have {tensors}")]
    Unmergeable {
        /// The file.
        path: PathBuf,
        /// The tensors that are missing.
        tensors: String,
    },
    /// A tensor has another shape or type than the parameter.
    #[error("{path}: tensor `{name}` is {found}, but the model needs {needed}")]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type and shape.
        found: String,
        /// What the model needs.
        needed: String,
    },
    /// A parameter cannot be stored as the mapping says.
    #[error("{path}: the parameter `{name}` {shape:?} cannot be stored as {stored}: {problem}")]
    Mapping {
        /// The file.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Where it was to be in the file.
        stored: Box<Stored>,
        /// Why that is impossible.
        problem: String,
    },
    /// What is to be written does not make up the file.
    #[error("{path}: {what} `{name}` {problem}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// A parameter of the model, or a tensor of the file.
        what: &'static str,
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model could not give or take its values.
    #[error(transparent)]
    Model(#[from] brigade_core::Error),
}
