//! Models as lists of blocks, with the names and files that other projects know them by.
//!
//! A model here knows nothing of ranks, meshes or devices other than the one it is built for. Its
//! parameters get their initial values from (seed, path) when they are first needed, so that every
//! rank of any mesh starts from the same weights and a rank can build only the blocks it holds.

mod causal_lm;
pub mod decoder;
pub mod gpt;
mod initial;
mod layers;
mod logits;
mod tokens;
mod weights;

pub use causal_lm::{CausalLm, CausalLmError};
pub use logits::Logits;
pub use tokens::{Documents, Hidden, Tokens};
pub use weights::{
    LackingParameter, LoadReport, LoadWeights, NameDifferences, Stored, StoredParameter, Strict,
    WeightsError, WeightsMapping, WeightsWriter, save_safetensors,
};
