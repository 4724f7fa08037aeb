//! Adapters added to the weights that they belong to.

use std::path::Path;

use brigade_core::{Activation, Chain};

use super::differences::{Strict, some_of};
use super::error::WeightsError;
use super::files::Files;
use super::load::{LoadWeights, Weights};
use super::mapping::WeightsMapping;
use super::write::WeightsWriter;
use super::write::format::WeightsFormat;
use crate::lora::{Adapters, is_adapter};

/// Writes the weights of a chain with its adapters added, `weight + scale · b · a`, or its transpose where weights are so, into safetensors files; one parameter is in memory at a time. `paths`: the files
/// with the weights and the adapters, as for [`LoadWeights::load_weights_of`]; `mapping` and `merged`: where the parameters are in these, and in what is written.
///
/// # Errors
/// As [`LoadWeights::load_weights_of`] with [`Strict::Parameters`]; if a parameter is in no file, such as one of a new head; or if the file cannot be written.
pub fn merge_adapters<I: Activation, O: Activation>(
    mut chain: Chain<I, O>,
    adapters: &Adapters,
    paths: &[&Path],
    [mapping, merged]: [&WeightsMapping; 2],
    to: &Path,
    format: WeightsFormat,
) -> Result<(), WeightsError> {
    let missing = chain.load_weights_of(paths, mapping, Strict::Parameters)?.missing;
    let weights = Weights { files: Files::open_all(paths)?, mapping: mapping.clone() };
    if !missing.is_empty() {
        let tensors = some_of(missing.iter().map(|name| mapping.stored(name).to_string()));
        return Err(WeightsError::Unmergeable { path: weights.files.path, tensors });
    }
    let (followers, shapes) = (chain.followers(), chain.shapes());
    let own = shapes.iter().filter(|(name, _)| !is_adapter(name) && !followers.contains(name));
    let parameters: Vec<_> = merged.parameters(own.cloned()).collect();
    let shape_of = |name: &str| shapes.iter().find(|(other, _)| other == name).map(|(_, shape)| shape);
    let merged = |index: usize| -> Result<Vec<f32>, WeightsError> {
        let (name, shape) = (&parameters[index].name, &parameters[index].shape);
        let mut values = weights.values(name, shape)?;
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let [a, b] = ["a", "b"].map(|matrix| format!("{layer}.lora.{matrix}"));
        let (Some(a_shape), Some(b_shape)) = (shape_of(&a), shape_of(&b)) else { return Ok(values) };
        let (a, b) = (weights.values(&a, a_shape)?, weights.values(&b, b_shape)?);
        let (rank, scale) = (a_shape[0], adapters.config().scale() as f32);
        match adapters.inputs_first() {
            false => add_product(&mut values, &b, &a, rank, scale),
            true => add_transposed_product(&mut values, &b, &a, rank, scale),
        }
        Ok(values)
    };
    WeightsWriter::filled(to, &parameters, format, |index| Ok(merged(index)?))?.finish()
}

/// Adds `scale · b · a` to a matrix of as many rows as `b` and as many columns as `a`, which have `rank` columns and rows.
fn add_product(to: &mut [f32], b: &[f32], a: &[f32], rank: usize, scale: f32) {
    let columns = a.len() / rank;
    for (row, factors) in to.chunks_exact_mut(columns).zip(b.chunks_exact(rank)) {
        let mut sums = vec![0.0f32; columns];
        for (factor, a) in factors.iter().zip(a.chunks_exact(columns)) {
            sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * a);
        }
        row.iter_mut().zip(sums).for_each(|(value, sum)| *value += scale * sum);
    }
}

/// Adds the transpose of `scale · b · a` to a matrix of as many rows as `a` has columns, and as many columns as `b` has rows.
fn add_transposed_product(to: &mut [f32], b: &[f32], a: &[f32], rank: usize, scale: f32) {
    let (inputs, outputs) = (a.len() / rank, b.len() / rank);
    for (input, row) in to.chunks_exact_mut(outputs).enumerate() {
        for (value, b) in row.iter_mut().zip(b.chunks_exact(rank)) {
            let products = b.iter().enumerate().map(|(index, factor)| factor * a[index * inputs + input]);
            *value += scale * products.sum::<f32>();
        }
    }
}

#[cfg(test)]
mod tests {
    use brigade_core::NamedTensor;
    use brigade_hf::config::Family;
    use brigade_hf::{Config, Task};
    use burn::tensor::{Device, TensorData};
    use serde_json::json;

    use super::*;
    use crate::encoder::{Encoder, mapping, masked_lm};
    use crate::layers::LoraConfig;
    use crate::weights::save_safetensors;

    #[test]
    fn a_head_that_no_file_has_is_not_merged() {
        let fields = json!({
            "model_type": "bert", "vocab_size": 12, "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 4,
        });
        let config = Config::from_fields("config.json", fields.as_object().unwrap()).unwrap();
        let lora = LoraConfig { rank: 2, ..LoraConfig::default() };
        let model = Encoder::from_config(&config, Task::MaskedLanguageModel, None).unwrap();
        let model = model.with_adapters(&lora).unwrap();
        let chain = || masked_lm(model.config(), model.adapters(), 0, &Device::flex());
        let mut whole = chain();
        whole.initialize(0).unwrap();
        let all = whole.tensors().unwrap();
        let is_own = |tensor: &&NamedTensor| !is_adapter(&tensor.name);
        let base: Vec<_> = all.iter().filter(is_own).cloned().collect();
        let headless: Vec<_> =
            base.iter().filter(|tensor| !tensor.name.starts_with("head.")).cloned().collect();
        let adapters = model.adapters().tensors().into_iter().map(|(name, shape)| {
            let values = vec![0.5f32; shape.iter().product()];
            NamedTensor { name, data: TensorData::new(values, shape) }
        });
        let adapters: Vec<_> = adapters.collect();

        let folder = tempfile::tempdir().unwrap();
        let [base_file, headless_file, adapters_file, to] =
            ["base", "headless", "adapters", "merged"].map(|name| folder.path().join(name));
        let names = mapping(Family::Bert, Task::MaskedLanguageModel);
        save_safetensors(&base_file, &base, &names).unwrap();
        save_safetensors(&headless_file, &headless, &names).unwrap();
        save_safetensors(&adapters_file, &adapters, &WeightsMapping::default()).unwrap();
        let merged = |file: &Path| {
            let mappings = [&model.mapping(), &model.merged_mapping()];
            let format = WeightsFormat::ONE_FILE;
            merge_adapters(chain(), model.adapters(), &[file, adapters_file.as_path()], mappings, &to, format)
        };
        let error = merged(&headless_file).unwrap_err().to_string();
        assert!(error.contains("`cls.predictions.transform.dense.weight`"), "{error}");
        assert!(!to.exists());
        merged(&base_file).unwrap();
        assert!(to.exists());
    }
}
