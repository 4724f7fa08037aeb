//! Adapters that become part of their model.

use std::path::Path;

use brigade_models::classifier::SequenceClassifier;
use brigade_models::encoder::{Encoder, masked_lm};
use brigade_models::{CausalLm, WeightsFormat, WeightsMapping};

/// A model with adapters.
#[derive(Debug, Clone, Copy)]
pub enum AdaptedModel<'a> {
    /// One that predicts the next token.
    CausalLm(&'a CausalLm),
    /// An encoder that predicts tokens that are masked.
    MaskedLm(&'a Encoder),
    /// One that tells labels of a text, or a number.
    Classifier(&'a SequenceClassifier),
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
            let (chain, mappings) = (model.chain(0, &device)?, [mapping, &model.mapping()]);
            brigade_models::merge_adapters(chain, model.adapters(), weights, mappings, to, format)?;
        }
        AdaptedModel::MaskedLm(model) => {
            let chain = masked_lm(model.config(), model.adapters(), 0, &device);
            let mappings = [mapping, &model.merged_mapping()];
            brigade_models::merge_adapters(chain, model.adapters(), weights, mappings, to, format)?;
        }
        AdaptedModel::Classifier(model) => {
            let (chain, mappings) = (model.chain(0, &device)?, [mapping, &model.merged_mapping()]);
            brigade_models::merge_adapters(chain, model.adapters(), weights, mappings, to, format)?;
        }
    }
    Ok(())
}
