//! Whole weights in files.

mod differences;
mod error;
mod files;
mod load;
mod mapping;
mod piece;
mod write;

pub use differences::{LackingParameter, NameDifferences, Strict};
pub use error::WeightsError;
pub use load::{LoadReport, LoadWeights};
pub use mapping::{Stored, StoredParameter, WeightsMapping};
pub use write::{WeightsWriter, save_safetensors};
