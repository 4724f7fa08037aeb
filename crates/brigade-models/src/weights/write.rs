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

use super::error::WeightsError;
use super::mapping::{StoredParameter, WeightsMapping};
use super::piece::{Panel, Piece, pieces};

/// The longest header that readers take, in bytes.
const MOST_HEADER: usize = 100_000_000;

/// Writes parameters in fp32. The same parameters give the same bytes. The file appears under its name only once it is whole.
///
/// # Errors
/// As [`WeightsWriter::create`], or if the file cannot be written.
pub fn save_safetensors(
    path: &Path,
    parameters: &[NamedTensor],
    mapping: &WeightsMapping,
) -> Result<(), WeightsError> {
    let shapes = parameters.iter().map(|tensor| (tensor.name.clone(), tensor.data.shape().to_vec()));
    let mut writer = WeightsWriter::create(path, mapping.parameters(shapes))?;
    parameters.iter().try_for_each(|tensor| writer.write(tensor))?;
    writer.finish()
}

/// Writes a file of weights in fp32 from parameters that come one after the other: in any order, none kept in memory, each to
/// its place. The file appears under its name only once it is whole; until then it takes the space of the new one beside
/// the old one, and it is removed if the writer is dropped.
pub struct WeightsWriter {
    path: PathBuf,
    file: AtomicFile,
    /// By name, the parameters that are still to come.
    missing: BTreeMap<String, Places>,
}

/// Where a parameter is in the file.
struct Places {
    shape: Vec<usize>,
    /// Each with the byte at which its tensor begins.
    pieces: Vec<(Piece, usize)>,
}

/// A tensor of the file, and which pieces it is made of.
struct FileTensor<'p> {
    shape: &'p [usize],
    pieces: Vec<(&'p str, &'p Piece)>,
}

impl WeightsWriter {
    /// Checks that a file of these parameters can be written; `path` is for messages.
    ///
    /// # Errors
    /// As [`create`](Self::create), but for those of the file itself.
    pub fn check(
        path: &Path,
        parameters: impl IntoIterator<Item = StoredParameter>,
    ) -> Result<(), WeightsError> {
        tensors(path, &resolved(path, parameters)?).map(drop)
    }

    /// Starts a file of these parameters; what has its name stays until the new one is whole.
    ///
    /// # Errors
    /// If the file cannot be created, if a parameter cannot be stored as it is to be, or if the parameters do not give each value
    /// of each tensor exactly once.
    pub fn create(
        path: &Path,
        parameters: impl IntoIterator<Item = StoredParameter>,
    ) -> Result<Self, WeightsError> {
        let resolved = resolved(path, parameters)?;
        let tensors = tensors(path, &resolved)?;
        let mut end = 0;
        let infos = tensors.into_iter().map(|(name, FileTensor { shape, .. })| {
            let start = end;
            end += size_of::<f32>() * shape.iter().product::<usize>();
            let shape = shape.to_vec();
            (name.to_owned(), TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
        });
        let infos: Vec<_> = infos.collect();
        let header =
            header(&infos).map_err(|source| WeightsError::Format { path: path.to_owned(), source })?;
        let begin = |(name, info): (String, TensorInfo)| (name, header.len() + info.data_offsets.0);
        let begin: BTreeMap<_, _> = infos.into_iter().map(begin).collect();
        let missing = resolved.into_iter().map(|(name, (shape, pieces))| {
            let pieces = pieces.into_iter().map(|piece| {
                let begin = begin[&piece.tensor];
                (piece, begin)
            });
            (name, Places { shape, pieces: pieces.collect() })
        });
        let missing = missing.collect();
        let file = AtomicFile::create(path);
        let file = file.and_then(|file| file.file().write_all_at(&header, 0).map(|()| file));
        Ok(Self { path: path.to_owned(), file: file.map_err(|source| io(path, source))?, missing })
    }

    /// Writes a file of these parameters, which are read one after the other: no more than one is in memory. The file is whole, with
    /// the bytes that [`save_safetensors`] gives for the same values, and still to be [finished](Self::finish).
    ///
    /// # Errors
    /// As [`create`](Self::create), if a parameter cannot be read or has other than its shape's number of values, or if the file
    /// cannot be written.
    pub fn filled(
        path: &Path,
        parameters: &[StoredParameter],
        read: impl Fn(usize) -> Result<Vec<f32>, BoxError>,
    ) -> Result<Self, WeightsError> {
        let mut writer = Self::create(path, parameters.iter().cloned())?;
        for (index, parameter) in parameters.iter().enumerate() {
            writer.write_values(&parameter.name, &read(index).map_err(Error::Load)?)?;
        }
        Ok(writer)
    }

    /// Writes one of the parameters.
    ///
    /// # Errors
    /// If it cannot be written, is none of those that the file was begun with, or of another shape or type.
    pub fn write(&mut self, parameter: &NamedTensor) -> Result<(), WeightsError> {
        let values = parameter.data.as_slice();
        let values = values.map_err(|_| wrong(&self.path, "parameter", &parameter.name, "is not of fp32"))?;
        self.write_values(&parameter.name, values)
    }

    fn write_values(&mut self, name: &str, values: &[f32]) -> Result<(), WeightsError> {
        let Some(Places { shape, pieces }) = self.missing.remove(name) else {
            return Err(wrong(&self.path, "parameter", name, "is none of the file's, or was there before"));
        };
        if values.len() != shape.iter().product::<usize>() {
            let problem = format!("has {} values for the shape {shape:?}", values.len());
            return Err(wrong(&self.path, "parameter", name, &problem));
        }
        let written = pieces.iter().try_for_each(|(piece, begin)| {
            piece.panels(&mut |panel| write_panel(self.file.file(), *begin, panel, values))
        });
        written.map_err(|source| io(&self.path, source))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If that fails, or a tensor was not written.
    pub fn finish(self) -> Result<(), WeightsError> {
        self.end(AtomicFile::commit)
    }

    /// Gives the file its name, unless there is a file of that name.
    ///
    /// # Errors
    /// If there is one, which stays as it is, with [`ErrorKind::AlreadyExists`](std::io::ErrorKind::AlreadyExists); else as
    /// [`finish`](Self::finish).
    pub fn finish_new(self) -> Result<(), WeightsError> {
        self.end(AtomicFile::commit_new)
    }

    fn end(self, commit: fn(AtomicFile) -> std::io::Result<File>) -> Result<(), WeightsError> {
        let Self { path, file, missing } = self;
        if let Some((name, _)) = missing.first_key_value() {
            return Err(wrong(&path, "parameter", name, "was not written"));
        }
        commit(file).map(drop).map_err(|source| io(&path, source))
    }
}

/// The shapes of parameters and the pieces that they are made of, by name.
type Resolved = BTreeMap<String, (Vec<usize>, Vec<Piece>)>;

fn resolved(
    path: &Path,
    parameters: impl IntoIterator<Item = StoredParameter>,
) -> Result<Resolved, WeightsError> {
    let mut resolved = Resolved::new();
    for StoredParameter { name, shape, stored } in parameters {
        let pieces = pieces(path, &name, &shape, &stored)?;
        if resolved.insert(name.clone(), (shape, pieces)).is_some() {
            return Err(wrong(path, "parameter", &name, "is there twice"));
        }
    }
    Ok(resolved)
}

/// The tensors that parameters make up together, by name.
fn tensors<'p>(
    path: &Path,
    parameters: &'p Resolved,
) -> Result<BTreeMap<&'p str, FileTensor<'p>>, WeightsError> {
    let mut tensors: BTreeMap<&str, FileTensor<'_>> = BTreeMap::new();
    for (parameter, (_, pieces)) in parameters {
        for piece in pieces {
            let new = FileTensor { shape: &piece.shape, pieces: Vec::new() };
            let tensor = tensors.entry(&piece.tensor).or_insert(new);
            let wrong = |problem: &str| Err(wrong(path, "tensor", &piece.tensor, problem));
            if tensor.shape != piece.shape {
                let (other, shape) = (tensor.pieces[0].0, tensor.shape);
                let problem = format!("is {:?} for `{parameter}`, but {shape:?} for `{other}`", piece.shape);
                return wrong(&problem);
            }
            if let Some((other, _)) = tensor.pieces.iter().find(|(_, other)| other.overlaps(piece)) {
                return wrong(&format!("gets the same values from `{other}` and from `{parameter}`"));
            }
            tensor.pieces.push((parameter, piece));
        }
    }
    for (name, tensor) in &tensors {
        let count = |sizes: &mut dyn Iterator<Item = usize>| {
            sizes.fold(1u128, |product, size| product.saturating_mul(size as u128))
        };
        let all = count(&mut tensor.shape.iter().copied());
        let given = tensor.pieces.iter().map(|(_, piece)| count(&mut piece.region.iter().map(Range::len)));
        let given: u128 = given.sum();
        if given != all {
            let problem = format!("has {all} values, of which the model's parameters give {given}");
            return Err(wrong(path, "tensor", name, &problem));
        }
    }
    Ok(tensors)
}

/// Writes the values of a panel to a tensor that begins at a byte of the file.
fn write_panel(file: &File, begin: usize, panel: Panel, values: &[f32]) -> std::io::Result<()> {
    let Panel { in_tensor, in_parameter, rows, columns } = panel;
    let write = |row: usize, values: &[f32]| {
        let place = begin + size_of::<f32>() * (in_tensor + row * rows.in_tensor);
        file.write_all_at(bytemuck::cast_slice(values), place as u64)
    };
    if columns.in_parameter == 1 {
        let row = |row: usize| &values[in_parameter + row * rows.in_parameter..][..columns.size];
        return (0..rows.size).try_for_each(|index| write(index, row(index)));
    }
    let mut gathered = vec![0.0; rows.size * columns.size];
    for column in 0..columns.size {
        for row in 0..rows.size {
            gathered[row * columns.size + column] =
                values[in_parameter + row * rows.in_parameter + column * columns.in_parameter];
        }
    }
    if rows.in_tensor == columns.size {
        return write(0, &gathered);
    }
    (0..rows.size).try_for_each(|row| write(row, &gathered[row * columns.size..][..columns.size]))
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

fn wrong(path: &Path, what: &'static str, name: &str, problem: &str) -> WeightsError {
    WeightsError::Unwritable {
        path: path.to_owned(),
        what,
        name: name.to_owned(),
        problem: problem.to_owned(),
    }
}
