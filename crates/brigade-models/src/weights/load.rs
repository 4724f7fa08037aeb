//! Loading a model's parameters from files of weights.

use std::convert::Infallible;
use std::ops::Range;
use std::path::Path;

use brigade_core::{Activation, Chain, Model};
use brigade_sorted::SortedSet;
use half::{bf16, f16};

use super::differences::{MissingParameter, NameDifferences, Strict};
use super::error::WeightsError;
use super::files::{FileTensor, Files, Number};
use super::mapping::{Stored, WeightsMapping};
use super::piece::{Panel, Piece, pieces};

/// What was found in a file of weights, and what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Number of parameters that take their values from the file.
    pub loaded: usize,
    /// Parameters (`block.path`) that are not in the file.
    pub missing: Vec<String>,
    /// Tensors of the file that are not in the model.
    pub unexpected: Vec<String>,
}

/// Models that take their parameters from files of weights.
pub trait LoadWeights {
    /// Makes the parameters take their values from `path`, where the mapping says that they are:
    /// - a safetensors file, or the index (`.index.json`) of several;
    /// - a folder that has `model.safetensors` or `model.safetensors.index.json`, as models from Hugging Face do;
    /// - a record (`.bpk`) that Burn's `Module::save_file` has written.
    ///
    /// Values may be fp32, fp16 or bf16. Names and shapes are compared at once; values are read when a block first needs
    /// them. So no rank of a mesh holds more of the model for it than its own blocks, one at a time: the whole block, or under ZeRO-3 the rank's shard of it. All ranks must see the same
    /// files: training begins with a comparison of names, shapes and some values of each tensor, and ends at once if they differ. A parameter that shares another one's values (a tie) is not looked for.
    ///
    /// Where it is called again (for a backbone, and then for a head), parameters that the last file does not have are those of the one before.
    ///
    /// ```no_run
    /// use brigade_models::{LoadWeights, Strict, WeightsMapping};
    /// # fn load(mut model: impl LoadWeights) -> Result<(), brigade_models::WeightsError> {
    /// // Of a model with a new head: its backbone.
    /// let report = model.load_weights("backbone.safetensors", &WeightsMapping::default(), Strict::No)?;
    /// println!("{} parameters loaded, without {:?}", report.loaded, report.missing);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a file is not whole, a tensor has another shape than its parameter, a parameter cannot be stored as the mapping says, or
    /// names are missing or unexpected against `strict`.
    fn load_weights(
        &mut self,
        path: impl AsRef<Path>,
        mapping: &WeightsMapping,
        strict: Strict,
    ) -> Result<LoadReport, WeightsError> {
        self.load_weights_of(&[path.as_ref()], mapping, strict)
    }

    /// The same from several of them, whose tensors have different names: a model's, and its adapters'.
    ///
    /// # Errors
    /// As [`load_weights`](Self::load_weights).
    fn load_weights_of(
        &mut self,
        paths: &[&Path],
        mapping: &WeightsMapping,
        strict: Strict,
    ) -> Result<LoadReport, WeightsError>;
}

impl<I: Activation, O: Activation, T> LoadWeights for Model<I, O, T> {
    fn load_weights_of(
        &mut self,
        paths: &[&Path],
        mapping: &WeightsMapping,
        strict: Strict,
    ) -> Result<LoadReport, WeightsError> {
        self.chain_mut().load_weights_of(paths, mapping, strict)
    }
}

impl<I: Activation, O: Activation> LoadWeights for Chain<I, O> {
    fn load_weights_of(
        &mut self,
        paths: &[&Path],
        mapping: &WeightsMapping,
        strict: Strict,
    ) -> Result<LoadReport, WeightsError> {
        let weights = Weights { files: Files::open_all(paths)?, mapping: mapping.clone() };
        let (mut loaded, mut missing, mut known) = (SortedSet::new(), Vec::new(), SortedSet::new());
        let mut initial = Vec::new();
        let followers = self.followers();
        for (name, shape) in self.shapes() {
            let shape = weights.held_shape(&name, &shape);
            let found = weights.pieces(&name, &shape)?;
            known.extend(found.iter().flat_map(|(_, tensor)| tensor.clone()));
            if followers.contains(&name) {
                continue;
            }
            match found.iter().find(|(_, tensor)| tensor.is_none()) {
                Some(_) if mapping.is_optional(&name) => initial.push(name),
                Some((piece, _)) => {
                    missing.push(MissingParameter { parameter: name, tensor: piece.tensor.clone() });
                }
                None => {
                    weights.check(&name, &shape, &found)?;
                    loaded.insert(name);
                }
            }
        }
        let unexpected = weights.files.tensors.keys().filter(|name| !known.contains(*name)).cloned();
        let differences = NameDifferences { missing, unexpected: unexpected.collect() };
        if differences.are_refused(strict, loaded.len()) {
            return Err(WeightsError::Names { path: weights.files.path, differences, strict });
        }
        let (path, digest) = (weights.files.path.clone(), weights.files.digest()?);
        let NameDifferences { missing, unexpected } = differences;
        let missing = missing.into_iter().map(|missing| missing.parameter).chain(initial).collect();
        let report = LoadReport { loaded: loaded.len(), missing, unexpected };
        self.load_ranges(move |name, shape, range| {
            if !loaded.contains(name) {
                return Ok(None);
            }
            Ok(Some(weights.values_in(name, shape, range)?))
        });
        self.compare_loaded(path.display().to_string(), digest);
        Ok(report)
    }
}

/// Open files of weights, and where a model's parameters are in them.
pub(super) struct Weights {
    pub files: Files,
    pub mapping: WeightsMapping,
}

/// Rows of a matrix that are read at once for their mean.
const ROWS_AT_ONCE: usize = 1024;

/// A piece of a parameter, and the name of its tensor in the file, if it is there.
type FoundPiece = (Piece, Option<String>);

impl Weights {
    /// What makes up a parameter.
    fn pieces(&self, name: &str, shape: &[usize]) -> Result<Vec<FoundPiece>, WeightsError> {
        let pieces = pieces(&self.files.path, name, shape, &self.mapping.stored(name))?;
        let find = |piece: Piece| {
            let names = self.mapping.names_of(&piece.tensor);
            let found = names.into_iter().find(|name| self.files.tensors.contains_key(name));
            (piece, found)
        };
        Ok(pieces.into_iter().map(find).collect())
    }

    /// The tensors of pieces that are there.
    fn tensors<'a>(
        &'a self,
        found: &'a [FoundPiece],
    ) -> impl Iterator<Item = (&'a Piece, &'a String, &'a FileTensor)> {
        found.iter().filter_map(|(piece, name)| {
            let name = name.as_ref()?;
            Some((piece, name, self.files.tensors.get(name)?))
        })
    }

    /// Checks that the tensors of a parameter have the types and shapes that it needs.
    fn check(&self, name: &str, shape: &[usize], found: &[FoundPiece]) -> Result<(), WeightsError> {
        for (piece, tensor_name, tensor) in self.tensors(found) {
            if tensor.shape == piece.shape && tensor.number.is_some() {
                continue;
            }
            let stored = self.mapping.stored(name);
            let mut needed = format!("F32, F16 or BF16 {:?}", piece.shape);
            if stored.is_changed() {
                needed = format!("{needed} for its parameter `{name}` {shape:?}, stored as {stored}");
            }
            return Err(WeightsError::Mismatch {
                path: self.files.path.clone(),
                name: tensor_name.clone(),
                found: format!("{} {:?}", tensor.type_name, tensor.shape),
                needed,
            });
        }
        Ok(())
    }

    /// The shape of a parameter in the file: its own, or with fewer rows where it may have more than the file.
    fn held_shape(&self, name: &str, shape: &[usize]) -> Vec<usize> {
        let held = || {
            let (Stored::Tensor(tensor), &[rows, columns]) = (self.mapping.stored(name), shape) else {
                return None;
            };
            let found =
                self.mapping.names_of(&tensor).iter().find_map(|name| self.files.tensors.get(name))?;
            let has_fewer =
                found.shape.len() == 2 && found.shape[1] == columns && (1..rows).contains(&found.shape[0]);
            (self.mapping.may_have_more_rows(name) && has_fewer).then(|| found.shape.clone())
        };
        held().unwrap_or_else(|| shape.to_vec())
    }

    /// A range of a parameter's values in row-major order. No others are held at once, where they lie in the file as in the parameter, and none are read but for rows that
    /// the file lacks.
    fn values_in(&self, name: &str, shape: &[usize], range: Range<usize>) -> Result<Vec<f32>, WeightsError> {
        let held = self.held_shape(name, shape);
        let found = self.pieces(name, &held)?;
        if found.iter().any(|(piece, _)| piece.first_of_run().is_none()) {
            let mut values = self.values(name, shape)?;
            values.truncate(range.end);
            return Ok(values.split_off(range.start));
        }
        let mut values = vec![0.0; range.len()];
        for (piece, _, tensor) in self.tensors(&found) {
            let (elements, first) = (piece.elements(), piece.first_of_run().unwrap_or_default());
            let common = range.start.max(first)..range.end.min(first + elements.len());
            if common.is_empty() {
                continue;
            }
            let elements = elements.start + common.start - first..elements.start + common.end - first;
            let to = &mut values[common.start - range.start..common.end - range.start];
            let path = &self.files.path;
            match tensor.number {
                Some(Number::F16) => {
                    read_run(path, tensor, elements, to, |bytes| f16::from_le_bytes(bytes).to_f32())?;
                }
                Some(Number::Bf16) => {
                    read_run(path, tensor, elements, to, |bytes| bf16::from_le_bytes(bytes).to_f32())?;
                }
                Some(Number::F32) => read_run(path, tensor, elements, to, f32::from_le_bytes)?,
                None => {}
            }
        }
        let added = range.start.max(held.iter().product())..range.end;
        if !added.is_empty() {
            let mean = self.mean_row(name, &held)?;
            for at in added {
                values[at - range.start] = mean[at % mean.len()];
            }
        }
        Ok(values)
    }

    /// The mean of the rows that the file has of a matrix, which each row has that it lacks.
    fn mean_row(&self, name: &str, held: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let (rows, columns) = (held[0], held[1]);
        let mut sums = vec![0.0f64; columns];
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let last = rows.min(first + ROWS_AT_ONCE);
            for row in self.values_in(name, held, first * columns..last * columns)?.chunks_exact(columns) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
        Ok(sums.into_iter().map(|sum| (sum / rows as f64) as f32).collect())
    }

    /// A parameter's values in row-major order.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        if self.held_shape(name, shape) != shape {
            return self.values_in(name, shape, 0..shape.iter().product());
        }
        let mut values = vec![0.0; shape.iter().product()];
        let found = self.pieces(name, shape)?;
        for (piece, _, tensor) in self.tensors(&found) {
            let path = &self.files.path;
            match tensor.number {
                Some(Number::F16) => {
                    read(path, tensor, piece, &mut values, |bytes| f16::from_le_bytes(bytes).to_f32())?;
                }
                Some(Number::Bf16) => {
                    read(path, tensor, piece, &mut values, |bytes| bf16::from_le_bytes(bytes).to_f32())?;
                }
                Some(Number::F32) => read(path, tensor, piece, &mut values, f32::from_le_bytes)?,
                None => {}
            }
        }
        Ok(values)
    }
}

/// Reads a piece of a tensor to its place among a parameter's values: the bytes of the piece, and those between them.
fn read<const N: usize>(
    path: &Path,
    tensor: &FileTensor,
    piece: &Piece,
    values: &mut [f32],
    decode: impl Fn([u8; N]) -> f32,
) -> Result<(), WeightsError> {
    let elements = piece.elements();
    let bytes = elements.start * N..elements.end * N;
    let Some(first) = piece.first_of_run() else {
        return tensor.read_at_once(path, bytes, |bytes| copy(piece, elements.start, bytes, values, decode));
    };
    read_run(path, tensor, elements.clone(), &mut values[first..first + elements.len()], decode)
}

/// Reads elements of a tensor that are next to each other, in chunks.
fn read_run<const N: usize>(
    path: &Path,
    tensor: &FileTensor,
    elements: Range<usize>,
    values: &mut [f32],
    decode: impl Fn([u8; N]) -> f32,
) -> Result<(), WeightsError> {
    let start = elements.start * N;
    tensor.read_chunks(path, start..elements.end * N, |at, chunk| {
        let to = &mut values[(at - start) / N..];
        to.iter_mut().zip(chunk.as_chunks::<N>().0).for_each(|(value, bytes)| *value = decode(*bytes));
    })
}

/// Copies a piece of a tensor, of which `data` are the bytes from the element `start` on.
fn copy<const N: usize>(
    piece: &Piece,
    start: usize,
    data: &[u8],
    values: &mut [f32],
    decode: impl Fn([u8; N]) -> f32,
) {
    let elements = data.as_chunks::<N>().0;
    let Ok(()) = piece.panels::<Infallible>(&mut |panel| {
        let Panel { in_tensor, in_parameter, rows, columns } = panel;
        let in_tensor = in_tensor - start;
        if columns.in_parameter == 1 {
            for row in 0..rows.size {
                let from = &elements[in_tensor + row * rows.in_tensor..][..columns.size];
                let to = &mut values[in_parameter + row * rows.in_parameter..][..columns.size];
                to.iter_mut().zip(from).for_each(|(value, bytes)| *value = decode(*bytes));
            }
            return Ok(());
        }
        for column in 0..columns.size {
            for row in 0..rows.size {
                values[in_parameter + row * rows.in_parameter + column * columns.in_parameter] =
                    decode(elements[in_tensor + row * rows.in_tensor + column]);
            }
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_of_a_matrix_with_more_rows_than_its_file_is_that_of_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let header = r#"{"t":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend([1.0f32, 2.0, 3.0, 6.0].iter().flat_map(|value| value.to_le_bytes()));
        std::fs::write(&path, file).unwrap();
        let mapping = WeightsMapping::default().rule("t", "t").more_rows("t");
        let weights = Weights { files: Files::open(&path).unwrap(), mapping };
        let all = [1.0, 2.0, 3.0, 6.0, 2.0, 4.0, 2.0, 4.0, 2.0, 4.0];
        assert_eq!(weights.values("t", &[5, 2]).unwrap(), all);
        for start in 0..=10 {
            for end in start..=10 {
                assert_eq!(weights.values_in("t", &[5, 2], start..end).unwrap(), all[start..end]);
            }
        }
    }
}
