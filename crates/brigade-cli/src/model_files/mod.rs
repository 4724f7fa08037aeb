//! The files of the model that training begins from.

pub(crate) mod adapters;
pub(crate) mod model_folder;
pub(crate) mod tokenizer;
pub(crate) mod weights;
