//! Language models: their data, and what they say.

mod dataset;
mod language_model;

pub use dataset::TokenDataset;
pub use language_model::LanguageModel;
