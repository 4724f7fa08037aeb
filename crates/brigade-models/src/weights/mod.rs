//! Whole weights in files.

mod convert;
mod differences;
mod error;
mod files;
mod load;
mod mapping;
#[cfg(feature = "text")]
mod merge;
mod piece;
mod write;

pub use convert::convert_weights;
pub use differences::{MissingParameter, NameDifferences, Strict};
pub use error::WeightsError;
pub use files::{StoredTensor, same_values, stored_tensors};
pub use load::{LoadReport, LoadWeights};
pub use mapping::{MappedParameter, Stored, WeightsMapping};
#[cfg(feature = "text")]
pub use merge::merge_adapters;
pub use write::format::{ShardSize, WeightsDtype, WeightsFormat};
pub use write::shards::{WeightsFiles, existing_weights};
pub use write::{WeightsWriter, save_safetensors};
