//! Open files of weights: one safetensors file, several with an index, or a record of Burn.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::DType;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::error::WeightsError;

/// The name of a file of weights in a folder, and of the index where there are several.
const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Before the header, its length.
const LENGTH_BYTES: usize = size_of::<u64>();

/// Bytes that are read at once: few enough for caches, and a multiple of every number's size.
const CHUNK: usize = 1 << 20;

/// The tensors of one or several files, by name. Values stay in the files until they are read.
pub(super) struct Files {
    /// What was opened, for messages.
    pub path: PathBuf,
    pub tensors: SortedMap<String, FileTensor>,
}

/// A tensor of a file.
pub(super) struct FileTensor {
    pub shape: Vec<usize>,
    /// The type of its values as the file names it.
    pub type_name: String,
    /// That type, where it is one that parameters can be read from.
    pub number: Option<Number>,
    values: Values,
}

/// The types that parameters can be read from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    F32,
    F16,
    Bf16,
}

enum Values {
    /// A range of a file, which is read when it is needed.
    File(Arc<File>, Range<usize>),
    /// A tensor of a Burn record.
    Record(burn_pack::Tensor),
}

impl FileTensor {
    /// Calls `read` with the bytes in a range, little-endian and in row-major order: in chunks, each with its place in the tensor. No others
    /// are read, and no more than a chunk is in memory. `path`: of the file.
    pub fn read_chunks(
        &self,
        path: &Path,
        range: Range<usize>,
        mut read: impl FnMut(usize, &[u8]),
    ) -> Result<(), WeightsError> {
        let Values::File(..) = &self.values else {
            return self.read_at_once(path, range.clone(), |bytes| read(range.start, bytes));
        };
        range.clone().step_by(CHUNK).try_for_each(|start| {
            let chunk = start..range.end.min(start + CHUNK);
            self.read_at_once(path, chunk, |bytes| read(start, bytes))
        })
    }

    /// Calls `read` with the bytes in a range, all of them at once.
    pub fn read_at_once(
        &self,
        path: &Path,
        range: Range<usize>,
        read: impl FnOnce(&[u8]),
    ) -> Result<(), WeightsError> {
        match &self.values {
            Values::File(file, all) => {
                let mut bytes = vec![0; range.len()];
                let at = (all.start + range.start) as u64;
                let io = |source| WeightsError::Io { path: path.to_owned(), source };
                file.read_exact_at(&mut bytes, at).map_err(io)?;
                read(&bytes);
            }
            Values::Record(tensor) => {
                let bytes = tensor.to_bytes().map_err(|error| record_error(path, error))?;
                match bytes.view(range.start, range.end) {
                    Ok(view) => read(&view),
                    Err(_) => read(&bytes[range]),
                }
            }
        }
        Ok(())
    }

    /// How many bytes it has.
    fn length(&self, path: &Path) -> Result<usize, WeightsError> {
        match &self.values {
            Values::File(_, range) => Ok(range.len()),
            Values::Record(tensor) => Ok(tensor.to_bytes().map_err(|error| record_error(path, error))?.len()),
        }
    }
}

impl Files {
    /// Opens what `path` is: a record of Burn (`.bpk`), the index of several safetensors files (`.index.json`), a folder that has
    /// `model.safetensors` or such an index, and else a safetensors file. Only headers are read.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let name = path.to_string_lossy();
        let mut files = Self { path: path.to_owned(), tensors: SortedMap::new() };
        if path.is_dir() {
            let (one, index) = (path.join(FILE), path.join(INDEX));
            return Self::open(if one.exists() || !index.exists() { &one } else { &index });
        }
        if name.ends_with(".bpk") {
            files.add_record(path)?;
        } else if name.ends_with(".index.json") {
            files.add_indexed(path)?;
        } else {
            files.add_safetensors(path, None)?;
        }
        Ok(files)
    }

    /// Opens what each of `paths` is, as one.
    pub fn open_all(paths: &[&Path]) -> Result<Self, WeightsError> {
        let mut all = Self { path: PathBuf::new(), tensors: SortedMap::new() };
        for path in paths {
            all.tensors.extend(Self::open(path)?.tensors);
        }
        let names: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
        all.path = names.join(" and ").into();
        Ok(all)
    }

    /// A digest of what the files have: names, types, shapes, and some values of every tensor. It is the same for the same content,
    /// whatever the files are called, and few bytes of each tensor are read for it.
    pub fn digest(&self) -> Result<u64, WeightsError> {
        let mut hasher = blake3::Hasher::new();
        for (name, tensor) in &self.tensors {
            hasher.update(format!("{name} {} {:?}\n", tensor.type_name, tensor.shape).as_bytes());
            for sample in samples(tensor.length(&self.path)?) {
                tensor.read_at_once(&self.path, sample, |bytes| {
                    hasher.update(bytes);
                })?;
            }
        }
        let mut first = [0; size_of::<u64>()];
        hasher.finalize_xof().fill(&mut first);
        Ok(u64::from_le_bytes(first))
    }

    /// Adds the tensors of one safetensors file: all, or those of these names.
    fn add_safetensors(&mut self, path: &Path, only: Option<&SortedSet<String>>) -> Result<(), WeightsError> {
        let io = |source| WeightsError::Io { path: path.to_owned(), source };
        let file = Arc::new(File::open(path).map_err(io)?);
        // SAFETY: the map is read in this function alone, and files of weights are written aside and renamed, never changed in place. One
        // that is cut short meanwhile ends the process by SIGBUS; nothing outside the map is read.
        let map = unsafe { Mmap::map(&*file) }.map_err(io)?;
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|source| WeightsError::Format { path: path.to_owned(), source })?;
        for (name, info) in metadata.tensors() {
            if only.is_some_and(|only| !only.contains(&name)) {
                continue;
            }
            let begin = LENGTH_BYTES + header;
            let range = begin + info.data_offsets.0..begin + info.data_offsets.1;
            let number = match info.dtype {
                Dtype::F32 => Some(Number::F32),
                Dtype::F16 => Some(Number::F16),
                Dtype::BF16 => Some(Number::Bf16),
                _ => None,
            };
            let (shape, type_name) = (info.shape.clone(), format!("{:?}", info.dtype));
            let values = Values::File(file.clone(), range);
            self.tensors.insert(name, FileTensor { shape, type_name, number, values });
        }
        Ok(())
    }

    /// Adds the tensors that an index lists, each from its file beside the index.
    fn add_indexed(&mut self, path: &Path) -> Result<(), WeightsError> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: SortedMap<String, String>,
        }
        let wrong = |problem: String| WeightsError::Index { path: path.to_owned(), problem };
        let text =
            std::fs::read(path).map_err(|source| WeightsError::Io { path: path.to_owned(), source })?;
        let index: Index = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let mut by_file: SortedMap<String, SortedSet<String>> = SortedMap::new();
        for (tensor, file) in index.weight_map {
            if Path::new(&file).file_name() != Some(file.as_ref()) {
                return Err(wrong(format!(
                    "tensor `{tensor}` is in `{file}`, which is not a file beside the index"
                )));
            }
            by_file.entry(file).or_default().insert(tensor);
        }
        for (file, names) in by_file {
            self.add_safetensors(&path.with_file_name(&file), Some(&names))?;
            if let Some(name) = names.iter().find(|name| !self.tensors.contains_key(*name)) {
                return Err(wrong(format!("tensor `{name}` is not in {file}")));
            }
        }
        Ok(())
    }

    /// Adds the tensors of a record that `Module::save_file` has written.
    fn add_record(&mut self, path: &Path) -> Result<(), WeightsError> {
        let reader = burn_pack::Reader::from_file_exact(path);
        let tensors = reader.and_then(burn_pack::Reader::into_tensors);
        for tensor in tensors.map_err(|error| record_error(path, error))? {
            let number = match tensor.dtype {
                DType::F32 => Some(Number::F32),
                DType::F16 => Some(Number::F16),
                DType::BF16 => Some(Number::Bf16),
                _ => None,
            };
            let (shape, type_name) = (tensor.shape.to_vec(), format!("{:?}", tensor.dtype));
            let name = tensor.name.clone();
            self.tensors
                .insert(name, FileTensor { shape, type_name, number, values: Values::Record(tensor) });
        }
        Ok(())
    }
}

/// A tensor of files of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its shape.
    pub shape: Vec<usize>,
    /// The type of its values, as the file names it.
    pub type_name: String,
    /// Whether parameters can be read from this type.
    pub is_readable: bool,
}

/// The tensors of files of weights by name: each of `paths` is what [`LoadWeights::load_weights`](super::LoadWeights::load_weights) takes.
/// Only headers are read.
///
/// # Errors
/// If a file is missing or not whole.
pub fn stored_tensors(paths: &[&Path]) -> Result<SortedMap<String, StoredTensor>, WeightsError> {
    let tensors = Files::open_all(paths)?.tensors.into_iter();
    let described = |FileTensor { shape, type_name, number, .. }: FileTensor| {
        let is_readable = number.is_some();
        StoredTensor { shape, type_name, is_readable }
    };
    Ok(tensors.map(|(name, tensor)| (name, described(tensor))).collect())
}

/// Whether two tensors of files of weights have the same type, shape and values. No more than a chunk of each is in memory.
///
/// # Errors
/// If a file is missing or not whole.
pub fn same_values(paths: &[&Path], first: &str, second: &str) -> Result<bool, WeightsError> {
    let Files { path, tensors } = Files::open_all(paths)?;
    let (Some(first), Some(second)) = (tensors.get(first), tensors.get(second)) else { return Ok(false) };
    if (&first.type_name, &first.shape) != (&second.type_name, &second.shape) {
        return Ok(false);
    }
    let length = first.length(&path)?;
    let mut values = Vec::new();
    for start in (0..length).step_by(CHUNK) {
        let chunk = start..length.min(start + CHUNK);
        values.clear();
        first.read_at_once(&path, chunk.clone(), |bytes| values.extend_from_slice(bytes))?;
        let mut are_same = false;
        second.read_at_once(&path, chunk, |bytes| are_same = bytes == values.as_slice())?;
        if !are_same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where samples of this many bytes are: at the beginning, at the end, and in between.
fn samples(length: usize) -> impl Iterator<Item = Range<usize>> {
    const LENGTH: usize = 64;
    let last = length.saturating_sub(LENGTH);
    [0, last / 3, last - last / 3, last].into_iter().map(move |start| start..length.min(start + LENGTH))
}

fn record_error(path: &Path, source: burn_pack::Error) -> WeightsError {
    WeightsError::Record { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use brigade_core::NamedTensor;
    use burn::tensor::TensorData;

    use super::*;
    use crate::{WeightsMapping, save_safetensors};

    const LENGTH: usize = 300;

    /// The digests of a safetensors file and of a record of one tensor.
    fn digests(name: &str, shape: [usize; 2], values: &[f32]) -> [u64; 2] {
        let folder = tempfile::tempdir().unwrap();
        let [file, record] = ["a.safetensors", "a.bpk"].map(|name| folder.path().join(name));
        let data = TensorData::new(values.to_vec(), shape);
        let tensor = NamedTensor { name: name.into(), data };
        save_safetensors(&file, &[tensor], &WeightsMapping::default()).unwrap();
        let bytes = burn_pack::Bytes::from_bytes_vec(bytemuck::cast_slice(values).to_vec());
        let tensor = burn_pack::Tensor::new(name.into(), DType::F32, shape.to_vec(), None, bytes);
        burn_pack::Writer::new(vec![tensor]).write_to_file(&record).unwrap();
        [file, record].map(|path| Files::open(&path).unwrap().digest().unwrap())
    }

    #[test]
    fn a_digest_is_that_of_names_shapes_and_sampled_values() {
        let mut values = [0.5; LENGTH];
        let first = digests("a", [3, 100], &values);
        assert_eq!(first[0], first[1], "whatever the format is");
        assert_eq!(digests("a", [3, 100], &values), first);
        let mut others = vec![digests("b", [3, 100], &values), digests("a", [100, 3], &values)];
        for changed in [0, LENGTH / 3, LENGTH - 1] {
            values[changed] = 0.25;
            others.push(digests("a", [3, 100], &values));
            values[changed] = 0.5;
        }
        for other in others {
            assert_eq!(other[0], other[1]);
            assert_ne!(other, first);
        }
        assert_ne!(digests("a", [0, 0], &[]), first);
    }
}
