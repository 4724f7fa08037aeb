//! Layers that several families are made of. Weights lie as in Hugging Face's files.

mod activation;
mod attention;
mod cache;
mod dropout;
mod linear;
mod lora;
mod norm;
mod rotary;
mod score;

pub(crate) use activation::activation;
pub(crate) use attention::{attend, attend_packed};
pub(crate) use cache::KeyValueCache;
pub(crate) use dropout::{dropped, dropped_onto};
pub(crate) use linear::{Linear, LinearConfig};
pub(crate) use lora::Lora;
pub use lora::LoraConfig;
pub(crate) use norm::{LayerNorm, RmsNorm, RmsNormConfig};
pub(crate) use rotary::RotaryTable;
pub(crate) use score::ScoreHead;
