//! Models as lists of blocks, with the names and files that other projects use.
//!
//! A model here knows nothing about ranks, meshes or devices other than the one it is built for. Its
//! parameters get their initial values from (seed, path) when they are first needed, so that every
//! rank of any mesh starts from the same weights and a rank can build only the blocks it holds.
//!
//! The feature `text` has the models themselves; without it there are only weight files, for models of other
//! crates.

#[cfg(feature = "text")]
mod causal_lm;
#[cfg(feature = "text")]
pub mod classifier;
#[cfg(feature = "text")]
pub mod decoder;
#[cfg(feature = "text")]
pub mod encoder;
#[cfg(feature = "text")]
pub mod gpt;
#[cfg(feature = "text")]
mod initial;
#[cfg(feature = "text")]
mod layers;
#[cfg(feature = "text")]
mod logits;
#[cfg(feature = "text")]
mod lora;
#[cfg(feature = "text")]
mod metrics;
#[cfg(feature = "text")]
mod smaller;
#[cfg(feature = "text")]
mod tokens;
mod weights;

#[cfg(feature = "text")]
pub use causal_lm::{CausalLm, CausalLmError};
#[cfg(feature = "text")]
pub use layers::LoraConfig;
#[cfg(feature = "text")]
pub use logits::{Logits, LossOptions};
#[cfg(feature = "text")]
pub use lora::{Adapters, LoraError, in_adapters, is_adapter, is_adapter_or_head};
#[cfg(feature = "text")]
pub use tokens::{Documents, Hidden, Tokens};
#[cfg(feature = "text")]
pub use weights::merge_adapters;
pub use weights::{
    LoadReport, LoadWeights, MappedParameter, MissingParameter, NameDifferences, ShardSize, Stored,
    StoredTensor, Strict, WeightsDtype, WeightsError, WeightsFiles, WeightsFormat, WeightsMapping,
    WeightsWriter, convert_weights, existing_weights, same_values, save_safetensors, stored_tensors,
};
