//! Adapters added to the weights that they belong to.

use std::path::Path;

use brigade_core::{Activation, Chain};

use super::differences::Strict;
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
/// As [`LoadWeights::load_weights_of`] with [`Strict::Parameters`], or if the file cannot be written.
pub fn merge_adapters<I: Activation, O: Activation>(
    mut chain: Chain<I, O>,
    adapters: &Adapters,
    paths: &[&Path],
    [mapping, merged]: [&WeightsMapping; 2],
    to: &Path,
    format: WeightsFormat,
) -> Result<(), WeightsError> {
    chain.load_weights_of(paths, mapping, Strict::Parameters)?;
    let weights = Weights { files: Files::open_all(paths)?, mapping: mapping.clone() };
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
