//! Language models: their data, and what they say.

mod dataset;
mod labelled;
mod language_model;
mod rows;

pub use dataset::TokenDataset;
pub use labelled::{ClassDataset, NumberDataset};
pub use language_model::{CachedText, LanguageModel};
