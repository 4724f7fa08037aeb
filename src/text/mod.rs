//! Language models: their data, and what they say.

mod dataset;
mod labelled;
mod language_model;
mod masked;
mod merge;
mod rows;
mod task;

pub use dataset::TokenDataset;
pub use labelled::{ClassificationDataset, MultiLabelDataset, RegressionDataset};
pub use language_model::{CachedText, LanguageModel};
pub use masked::MaskedDataset;
pub use merge::{AdaptedModel, merge_adapters};
pub use task::{Classification, MACRO_F1, MaskedLm, MultiLabelClassification, Regression, TextTask};
