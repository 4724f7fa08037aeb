//! Layers that several families are made of. Weights lie as in Hugging Face's files.

mod attention;
mod linear;
mod lora;
mod norm;
mod rotary;

pub(crate) use attention::attend;
pub(crate) use linear::{Linear, LinearConfig};
pub(crate) use lora::Lora;
pub(crate) use norm::{RmsNorm, RmsNormConfig};
pub(crate) use rotary::RotaryTable;
