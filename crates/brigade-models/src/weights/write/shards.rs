//! Which tensors parameters make up, and which file each of them is in.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use brigade_sorted::{SortedMap, SortedSet};
use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use crate::weights::error::WeightsError;
use crate::weights::mapping::MappedParameter;
use crate::weights::piece::{Piece, pieces};
use crate::weights::write::format::WeightsFormat;
use crate::weights::write::{io, wrong};

/// The longest header that readers take, in bytes.
const MAX_HEADER: usize = 100_000_000;

/// The files that a model's parameters make up: one, or several with an index (`model.safetensors.index.json`), as `transformers` writes
/// them. They follow from names, shapes and format alone, and not from the order of parameters, so that all ranks agree.
#[derive(Debug)]
pub struct WeightsFiles {
    pub(crate) path: PathBuf,
    pub(crate) format: WeightsFormat,
    pub(crate) files: Vec<ShardFile>,
    /// By name, the parameters.
    pub(crate) places: SortedMap<String, Places>,
    /// Of several files.
    index: Option<Vec<u8>>,
}

/// One of the files.
#[derive(Debug)]
pub(crate) struct ShardFile {
    pub path: PathBuf,
    /// What stands before the values.
    pub header: Vec<u8>,
}

/// Where a parameter is.
#[derive(Debug)]
pub(crate) struct Places {
    pub shape: Vec<usize>,
    /// Each with its file, and the byte at which its tensor begins there.
    pub pieces: Vec<(Piece, usize, usize)>,
}

/// A tensor, and which pieces it is made of.
struct Tensor<'p> {
    shape: &'p [usize],
    pieces: Vec<(&'p str, &'p Piece)>,
}

impl Tensor<'_> {
    fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product, size| product.saturating_mul(*size as u64))
    }
}

impl WeightsFiles {
    /// Cuts the tensors of these parameters, in the order of their names, into files of at most `format.max_shard_size` bytes. `path` is the name of one
    /// file; several have theirs after it (`model-00001-of-00003.safetensors`).
    ///
    /// # Errors
    /// If a parameter cannot be stored as it is to be, or if the parameters do not give each value of each tensor exactly once.
    pub fn new(
        path: &Path,
        parameters: impl IntoIterator<Item = MappedParameter>,
        format: WeightsFormat,
    ) -> Result<Self, WeightsError> {
        let resolved = resolved(path, parameters)?;
        let tensors = tensors(path, &resolved)?;
        let bytes = |tensor: &Tensor<'_>| tensor.elements().saturating_mul(format.dtype.bytes() as u64);
        let shards = cut(&tensors, bytes, format.max_shard_size.0);
        let mut files = Vec::new();
        let mut begin: SortedMap<&str, (usize, usize)> = SortedMap::new();
        let mut in_files = Map::new();
        for (number, names) in shards.iter().enumerate() {
            let file = path_of(path, number, shards.len());
            let mut end = 0;
            let infos = names.iter().map(|name| {
                let start = end;
                end += bytes(&tensors[name]) as usize;
                let shape = tensors[name].shape.to_vec();
                (
                    (*name).to_owned(),
                    TensorInfo { dtype: format.dtype.in_safetensors(), shape, data_offsets: (start, end) },
                )
            });
            let infos: Vec<_> = infos.collect();
            let header =
                header(&infos).map_err(|source| WeightsError::Format { path: file.clone(), source })?;
            let starts = infos.iter().map(|(_, info)| header.len() + info.data_offsets.0);
            begin.extend(names.iter().zip(starts).map(|(name, start)| (*name, (number, start))));
            let file_name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            in_files.extend(names.iter().map(|name| ((*name).to_owned(), json!(file_name))));
            files.push(ShardFile { path: file, header });
        }
        let index = (files.len() > 1).then(|| {
            let parameters: u64 = tensors.values().map(Tensor::elements).sum();
            let size: u64 = tensors.values().map(bytes).sum();
            json!({
                "metadata": { "total_parameters": parameters, "total_size": size },
                "weight_map": Value::Object(in_files),
            })
        });
        let index = index.map(|index| format!("{index:#}\n").into_bytes());
        let begin: SortedMap<String, _> = begin.into_iter().map(|(name, at)| (name.to_owned(), at)).collect();
        let places = resolved.into_iter().map(|(name, (shape, pieces))| {
            let placed = pieces.into_iter().map(|piece| {
                let (file, begin) = begin[&piece.tensor];
                (piece, file, begin)
            });
            (name, Places { shape, pieces: placed.collect() })
        });
        Ok(Self { path: path.to_owned(), format, files, places: places.collect(), index })
    }

    /// How many files there are.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// What is to be opened: the file, or the index of several.
    pub fn main(&self) -> PathBuf {
        if self.index.is_some() { index_of(&self.path) } else { self.path.clone() }
    }

    /// The files, by number, that a parameter has values in.
    pub fn files_of(&self, parameter: &str) -> SortedSet<usize> {
        let pieces = self.places.get(parameter).into_iter().flat_map(|places| &places.pieces);
        pieces.map(|(_, file, _)| *file).collect()
    }

    /// The parameters that have values in a file, each with its number of values in all files.
    pub fn parameters_of(&self, file: usize) -> impl Iterator<Item = (&str, usize)> {
        let is_there = move |places: &Places| places.pieces.iter().any(|(_, other, _)| *other == file);
        let places = self.places.iter().filter(move |(_, places)| is_there(places));
        places.map(|(name, places)| (name.as_str(), places.shape.iter().product()))
    }

    /// What is done before several files get their names: an earlier index goes, which would name some of the new files beside some of the old ones.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn begin(&self) -> Result<(), WeightsError> {
        if self.index.is_some() { remove(&index_of(&self.path)) } else { Ok(()) }
    }

    /// What is done once all files have their names: the index of several is written, in place of an earlier single file. Until then, what reads
    /// the folder finds no weights, or the earlier ones.
    ///
    /// # Errors
    /// If a file cannot be written or removed.
    pub fn complete(&self) -> Result<(), WeightsError> {
        let Some(text) = &self.index else { return Ok(()) };
        let index = index_of(&self.path);
        brigade_files::write_atomic(&index, text).map_err(|source| io(&index, source))?;
        remove(&self.path)
    }

    /// Removes what is left of earlier weights of the same name that were cut into other files.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn remove_earlier(&self) -> Result<(), WeightsError> {
        if self.index.is_none() {
            remove(&index_of(&self.path))?;
        }
        let folder =
            self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for entry in std::fs::read_dir(folder).map_err(|source| io(folder, source))? {
            let path = entry.map_err(|source| io(folder, source))?.path();
            let is_own = self.files.iter().any(|file| file.path.file_name() == path.file_name());
            if !is_own && is_shard_of(&path, &self.path) {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Names in the order of their texts and numbers, so that `layers.2` is before `layers.10`.
fn compare_names(a: &str, b: &str) -> Ordering {
    let part = |(a, b): (&str, &str)| match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        _ => a.cmp(b),
    };
    let parts = a.split('.').zip(b.split('.')).map(part);
    parts.fold(Ordering::Equal, Ordering::then).then_with(|| a.len().cmp(&b.len())).then_with(|| a.cmp(b))
}

/// The tensors of each file, by name.
fn cut<'n>(
    tensors: &SortedMap<&'n str, Tensor<'_>>,
    bytes: impl Fn(&Tensor<'_>) -> u64,
    most: u64,
) -> Vec<SortedSet<&'n str>> {
    let mut names: Vec<_> = tensors.keys().copied().collect();
    names.sort_by(|a, b| compare_names(a, b));
    let (mut files, mut taken): (Vec<SortedSet<&str>>, u64) = (vec![SortedSet::new()], 0);
    for name in names {
        let size = bytes(&tensors[name]);
        let last = files.len() - 1;
        if !files[last].is_empty() && taken.saturating_add(size) > most {
            files.push(SortedSet::from([name]));
            taken = size;
        } else {
            files[last].insert(name);
            taken = taken.saturating_add(size);
        }
    }
    files
}

/// The path of a file with this number, from 0, of this many.
fn path_of(path: &Path, number: usize, count: usize) -> PathBuf {
    if count == 1 {
        return path.to_owned();
    }
    let (stem, end) = parts(path);
    path.with_file_name(format!("{stem}-{:05}-of-{count:05}{end}", number + 1))
}

/// Whether a path is that of one of several files with the weights of `first`.
fn is_shard_of(path: &Path, first: &Path) -> bool {
    let (stem, end) = parts(first);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let numbers = || name.strip_prefix(&stem)?.strip_prefix('-')?.strip_suffix(&end)?.split_once("-of-");
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers().is_some_and(|(number, count)| is_number(number) && is_number(count))
}

/// A file's name without its extension, and the extension with its dot.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let end = path.extension().map(|_| format!(".{}", text(path.extension())));
    (text(path.file_stem()), end.unwrap_or_default())
}

/// What is there of weights with the name `path`, if anything: the file, or the index of several. Readers prefer the file.
pub fn existing_weights(path: &Path) -> Option<PathBuf> {
    [path.to_owned(), index_of(path)].into_iter().find(|path| path.exists())
}

/// The index of several files that have the weights of `path`.
fn index_of(path: &Path) -> PathBuf {
    path.with_file_name(format!("{}.index.json", path.file_name().unwrap_or_default().to_string_lossy()))
}

fn remove(path: &Path) -> Result<(), WeightsError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(path, error)),
        _ => Ok(()),
    }
}

/// The shapes of parameters and the pieces that they are made of, by name.
type Resolved = SortedMap<String, (Vec<usize>, Vec<Piece>)>;

fn resolved(
    path: &Path,
    parameters: impl IntoIterator<Item = MappedParameter>,
) -> Result<Resolved, WeightsError> {
    let mut resolved = Resolved::new();
    for MappedParameter { name, shape, stored } in parameters {
        let pieces = pieces(path, &name, &shape, &stored)?;
        if resolved.insert(name.clone(), (shape, pieces)).is_some() {
            return Err(wrong(path, "parameter", &name, "appears twice"));
        }
    }
    Ok(resolved)
}

/// The tensors that parameters make up together, by name.
fn tensors<'p>(
    path: &Path,
    parameters: &'p Resolved,
) -> Result<SortedMap<&'p str, Tensor<'p>>, WeightsError> {
    let mut tensors: SortedMap<&str, Tensor<'_>> = SortedMap::new();
    for (parameter, (_, pieces)) in parameters {
        for piece in pieces {
            let new = Tensor { shape: &piece.shape, pieces: Vec::new() };
            let tensor = tensors.entry(&piece.tensor).or_insert(new);
            let wrong = |problem: &str| Err(wrong(path, "tensor", &piece.tensor, problem));
            if tensor.shape != piece.shape {
                let (other, shape) = (tensor.pieces[0].0, tensor.shape);
                let problem = format!("is {:?} for `{parameter}`, but {shape:?} for `{other}`", piece.shape);
                return wrong(&problem);
            }
            if let Some((other, _)) = tensor.pieces.iter().find(|(_, other)| other.overlaps(piece)) {
                return wrong(&format!("would be filled by both `{other}` and `{parameter}`"));
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

/// What stands before the values: its length, names and places as JSON, and spaces up to a multiple of 8 bytes.
fn header(infos: &[(String, TensorInfo)]) -> Result<Vec<u8>, SafeTensorError> {
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut json = serde_json::to_vec(&Metadata::new(Some(about), infos.to_vec())?)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() > MAX_HEADER {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    Ok([&(json.len() as u64).to_le_bytes(), json.as_slice()].concat())
}
