//! Adapters that become part of their model.

use std::path::Path;

use brigade_models::encoder::Encoder;
use brigade_models::{CausalLm, WeightsFormat, WeightsMapping};

/// A model with adapters.
#[derive(Debug, Clone, Copy)]
pub enum AdaptedModel<'a> {
    /// One that predicts the next token.
    CausalLm(&'a CausalLm),
    /// An encoder with the head of its task.
    Encoder(&'a Encoder),
}

/// Writes the weights of a model with its adapters added, `weight + scale · b · a`, into safetensors files. Each of `weights` is a file, or the index of several: the model's, and
/// that of the adapters. `mapping`: the model's, or one with the names that these files have.
///
/// # Errors
/// If a file is damaged or of another model, or cannot be written.
pub fn merge_adapters(
    model: AdaptedModel<'_>,
    weights: &[&Path],
    mapping: &WeightsMapping,
    to: &Path,
    format: WeightsFormat,
) -> anyhow::Result<()> {
    let device = brigade_cpu::device();
    match model {
        AdaptedModel::CausalLm(model) => {
            let scale = model.adapters().config().scale();
            let mappings = [mapping, &model.mapping()];
            brigade_models::merge_adapters(model.chain(0, &device)?, scale, weights, mappings, to, format)?;
        }
        AdaptedModel::Encoder(model) => model.merge_adapters(&device, weights, mapping, to, format)?,
    }
    Ok(())
}
