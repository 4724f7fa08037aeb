//! Files of weights in another form.

use std::path::Path;

use super::error::WeightsError;
use super::files::Files;
use super::load::Weights;
use super::mapping::{MappedParameter, Stored, WeightsMapping};
use super::write::format::WeightsFormat;
use super::write::{WeightsWriter, wrong};

/// Writes the tensors of files in another number type, or cut into other files; one tensor is in memory at a time. `paths`: as for
/// [`LoadWeights::load_weights_of`](super::LoadWeights::load_weights_of). `to`: the new file, or what the names of several begin with.
///
/// # Errors
/// If files are not whole or have tensors of a type that is not read, or files cannot be written.
pub fn convert_weights(paths: &[&Path], to: &Path, format: WeightsFormat) -> Result<(), WeightsError> {
    let weights = Weights { files: Files::open_all(paths)?, mapping: WeightsMapping::default() };
    let tensors = &weights.files.tensors;
    if let Some((name, tensor)) = tensors.iter().find(|(_, tensor)| tensor.number.is_none()) {
        let problem = format!("is {}; weights must be F32, F16 or BF16", tensor.type_name);
        return Err(wrong(&weights.files.path, "tensor", name, &problem));
    }
    let tensor = |(name, shape): (&String, &Vec<usize>)| MappedParameter {
        name: name.clone(),
        shape: shape.clone(),
        stored: Stored::tensor(name),
    };
    let parameters: Vec<_> = tensors.iter().map(|(name, tensor)| (name, &tensor.shape)).map(tensor).collect();
    let read = |index: usize| {
        let MappedParameter { name, shape, .. } = &parameters[index];
        Ok(weights.values(name, shape)?)
    };
    WeightsWriter::filled(to, &parameters, format, read)?.finish()
}
