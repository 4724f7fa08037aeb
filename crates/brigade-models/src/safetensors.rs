//! Whole weights in a safetensors file.

mod error;
mod mapping;
mod piece;
mod read;
mod write;

pub use error::WeightsError;
pub use mapping::{Stored, StoredParameter, WeightsMapping};
pub use read::load_safetensors;
pub use write::{WeightsWriter, save_lazily, save_safetensors};
