//! Writing whole weights.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use brigade_core::{BoxError, Error, NamedTensor};
use brigade_files::AtomicFile;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};

use super::{Names, WeightsError};

/// The longest header that readers take, in bytes.
const MOST_HEADER: usize = 100_000_000;

/// Writes tensors in fp32. The same tensors give the same bytes. The file appears under its name only once it is whole.
///
/// # Errors
/// If the file cannot be written.
pub fn save_safetensors(path: &Path, tensors: &[NamedTensor], names: &Names) -> Result<(), WeightsError> {
    let named = tensors.iter().map(|tensor| ((names.to_file)(&tensor.name), tensor.data.shape().to_vec()));
    let mut writer = WeightsWriter::create(path, named)?;
    tensors.iter().try_for_each(|tensor| writer.write(tensor, names))?;
    writer.finish()
}

/// Writes tensors in fp32, given by name in the file and shape, and read one after the other as they are written: no more
/// than one is in memory. The file appears under its name only once it is whole, with the bytes that
/// [`save_safetensors`] gives for the same values, and takes the place of another one only if it `replaces`.
///
/// # Errors
/// If a tensor cannot be read or has other than its shape's number of values, or the file cannot be written.
pub fn save_lazily(
    path: &Path,
    replaces: bool,
    tensors: &[(String, Vec<usize>)],
    read: impl Fn(usize) -> Result<Vec<f32>, BoxError>,
) -> Result<(), WeightsError> {
    let mut writer = WeightsWriter::create(path, tensors.iter().cloned())?;
    for (index, (name, _)) in tensors.iter().enumerate() {
        writer.write_values(name, &read(index).map_err(Error::Load)?)?;
    }
    if replaces { writer.finish() } else { writer.end(AtomicFile::commit_new) }
}

/// Writes a file of weights in fp32 from tensors that come one after the other: in any order, none kept in memory, each to
/// its place. The file appears under its name only once it is whole; until then it takes the space of the new one beside
/// the old one, and it is removed if the writer is dropped.
pub struct WeightsWriter {
    path: PathBuf,
    file: AtomicFile,
    /// By name in the file, those that are still to come.
    missing: BTreeMap<String, Place>,
}

/// Where a tensor lies in the file.
struct Place {
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl WeightsWriter {
    /// Starts a file of tensors of these names in the file and shapes; what has its name stays until the new one is whole.
    ///
    /// # Errors
    /// If the file cannot be created, or two tensors have one name.
    pub fn create(
        path: &Path,
        tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
    ) -> Result<Self, WeightsError> {
        let mut shapes = BTreeMap::new();
        for (name, shape) in tensors {
            if shapes.contains_key(&name) {
                return Err(wrong(path, &name, "is there twice"));
            }
            shapes.insert(name, shape);
        }
        let mut end = 0;
        let infos = shapes.into_iter().map(|(name, shape)| {
            let start = end;
            end += size_of::<f32>() * shape.iter().product::<usize>();
            (name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
        });
        let infos: Vec<_> = infos.collect();
        let header =
            header(&infos).map_err(|source| WeightsError::Format { path: path.to_owned(), source })?;
        let place = |(name, TensorInfo { shape, data_offsets: (start, end), .. })| {
            (name, Place { shape, bytes: header.len() + start..header.len() + end })
        };
        let missing = infos.into_iter().map(place).collect();
        let file = AtomicFile::create(path);
        let file = file.and_then(|file| file.file().write_all_at(&header, 0).map(|()| file));
        Ok(Self { path: path.to_owned(), file: file.map_err(|source| io(path, source))?, missing })
    }

    /// Writes one of the tensors.
    ///
    /// # Errors
    /// If it cannot be written, is none of those that the file was begun with, or of another shape or type.
    pub fn write(&mut self, tensor: &NamedTensor, names: &Names) -> Result<(), WeightsError> {
        let name = (names.to_file)(&tensor.name);
        let values = tensor.data.as_slice().map_err(|_| wrong(&self.path, &name, "is not of fp32"))?;
        self.write_values(&name, values)
    }

    fn write_values(&mut self, name: &str, values: &[f32]) -> Result<(), WeightsError> {
        let place = self.missing.remove(name);
        let place =
            place.ok_or_else(|| wrong(&self.path, name, "is none of the file's, or was there before"))?;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.len() != place.bytes.len() {
            let problem = format!("has {} values for the shape {:?}", values.len(), place.shape);
            return Err(wrong(&self.path, name, &problem));
        }
        let written = self.file.file().write_all_at(bytes, place.bytes.start as u64);
        written.map_err(|source| io(&self.path, source))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If that fails, or a tensor was not written.
    pub fn finish(self) -> Result<(), WeightsError> {
        self.end(AtomicFile::commit)
    }

    fn end(self, commit: fn(AtomicFile) -> std::io::Result<File>) -> Result<(), WeightsError> {
        let Self { path, file, missing } = self;
        if let Some((name, _)) = missing.first_key_value() {
            return Err(wrong(&path, name, "was not written"));
        }
        commit(file).map(drop).map_err(|source| io(&path, source))
    }
}

/// What stands before the values: its length, names and places as JSON, and spaces up to a multiple of 8 bytes.
fn header(infos: &[(String, TensorInfo)]) -> Result<Vec<u8>, SafeTensorError> {
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut json = serde_json::to_vec(&Metadata::new(Some(about), infos.to_vec())?)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() > MOST_HEADER {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    Ok([&(json.len() as u64).to_le_bytes(), json.as_slice()].concat())
}

fn io(path: &Path, source: std::io::Error) -> WeightsError {
    WeightsError::Io { path: path.to_owned(), source }
}

fn wrong(path: &Path, name: &str, problem: &str) -> WeightsError {
    WeightsError::Tensor { path: path.to_owned(), name: name.to_owned(), problem: problem.to_owned() }
}
