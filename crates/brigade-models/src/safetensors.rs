//! Whole weights in a safetensors file.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use brigade_core::{BoxError, Chain, NamedTensor};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, View, tensor::TensorView};

/// How a model's parameters are called in files.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// From a parameter's name in Brigade (`block.path`) to its name in the file.
    pub to_file: fn(&str) -> String,
    /// A prefix that files may or may not put before every name.
    pub optional_prefix: &'static str,
}

impl Default for Names {
    /// Brigade's own names.
    fn default() -> Self {
        Self { to_file: str::to_owned, optional_prefix: "" }
    }
}

/// What can go wrong with a file of weights.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a safetensors file.
    #[error("{path} is not a whole safetensors file: {source}")]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
    /// A parameter of the model is not in the file.
    #[error("{path} has no tensor `{name}`; is it another model? It has {found} tensors, first {first}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor looked for.
        name: String,
        /// How many tensors the file has.
        found: usize,
        /// The first of them.
        first: String,
    },
    /// A tensor has another shape or type than the parameter.
    #[error("{path}: tensor `{name}` is {found}, the model needs {needed}")]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type and shape.
        found: String,
        /// What the model needs.
        needed: String,
    },
    /// The model could not give or take its values.
    #[error(transparent)]
    Model(#[from] brigade_core::Error),
}

/// Writes tensors in fp32. The same tensors give the same bytes. The file appears under its name
/// only once it is whole.
///
/// # Errors
/// If the file cannot be written.
pub fn save_safetensors(path: &Path, tensors: &[NamedTensor], names: &Names) -> Result<(), WeightsError> {
    let mut writer = WeightsWriter::create(path)?;
    tensors.iter().try_for_each(|tensor| writer.push(tensor, names))?;
    writer.finish()
}

/// Writes tensors in fp32, given by name in the file and shape, and read one after the other as they are written: no more
/// than one is in memory. The file appears under its name only once it is whole, with the bytes that
/// [`save_safetensors`] gives for the same values.
///
/// # Errors
/// If a tensor cannot be read or has other than its shape's number of values, or the file cannot be written.
pub fn save_lazily(
    path: &Path,
    tensors: Vec<(String, Vec<usize>)>,
    read: impl Fn(usize) -> Result<Vec<f32>, BoxError>,
) -> Result<(), WeightsError> {
    let failed = RefCell::new(None);
    let views = tensors.iter().enumerate().map(|(index, (name, shape))| {
        (name.as_str(), LazyView { index, shape, read: &read, failed: &failed })
    });
    let written = write_aside(path, views);
    match failed.into_inner() {
        Some(source) => Err(WeightsError::Model(brigade_core::Error::Load(source))),
        None => written?.appear(),
    }
}

/// A tensor that is read when it is written. An error is kept, and zeros are written in its place.
struct LazyView<'a, R> {
    index: usize,
    shape: &'a [usize],
    read: &'a R,
    failed: &'a RefCell<Option<BoxError>>,
}

impl<R: Fn(usize) -> Result<Vec<f32>, BoxError>> View for LazyView<'_, R> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let nothing = || Cow::Owned(vec![0; self.data_len()]);
        if self.failed.borrow().is_some() {
            return nothing();
        }
        match (self.read)(self.index) {
            Ok(values) if 4 * values.len() == self.data_len() => {
                Cow::Owned(values.into_iter().flat_map(f32::to_le_bytes).collect())
            }
            Ok(values) => {
                let wrong = format!("{} values for the shape {:?}", values.len(), self.shape);
                *self.failed.borrow_mut() = Some(wrong.into());
                nothing()
            }
            Err(error) => {
                *self.failed.borrow_mut() = Some(error);
                nothing()
            }
        }
    }

    fn data_len(&self) -> usize {
        4 * self.shape.iter().product::<usize>()
    }
}

/// A whole file of weights that does not have its name yet; dropping it removes it.
struct Aside<'a> {
    aside: PathBuf,
    path: &'a Path,
}

impl Aside<'_> {
    fn appear(self) -> Result<(), WeightsError> {
        std::fs::rename(&self.aside, self.path)
            .map_err(|source| WeightsError::Io { path: self.path.to_owned(), source })
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.aside));
    }
}

fn write_aside<'p, S, V>(
    path: &'p Path,
    views: impl Iterator<Item = (S, V)>,
) -> Result<Aside<'p>, WeightsError>
where
    S: AsRef<str> + Ord + std::fmt::Display,
    V: View,
{
    let io = |source| WeightsError::Io { path: path.to_owned(), source };
    let format = |source| match source {
        safetensors::SafeTensorError::IoError(source) => io(source),
        source => WeightsError::Format { path: path.to_owned(), source },
    };
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let aside = Aside { aside: path.with_extension("safetensors.part"), path };
    // The library would leave the file readable to its owner alone.
    let usual = File::create(&aside.aside).and_then(|file| Ok(file.metadata()?.permissions())).map_err(io)?;
    safetensors::serialize_to_file(views, Some(metadata), &aside.aside).map_err(format)?;
    let whole = File::open(&aside.aside).map_err(io)?;
    whole.set_permissions(usual).and_then(|()| whole.sync_all()).map_err(io)?;
    Ok(aside)
}

/// Writes a file of weights from tensors that come one after the other: in any order, none kept in memory.
///
/// They go into a file beside, `<name>.blocks`, from which the file of weights is written in its own order and
/// which is removed in the end.
pub struct WeightsWriter {
    path: PathBuf,
    beside: PathBuf,
    file: BufWriter<File>,
    tensors: Vec<(String, Vec<usize>, Range<usize>)>,
}

impl WeightsWriter {
    /// Starts a file; one of that name stays until the new one is whole.
    ///
    /// # Errors
    /// If the file beside cannot be created.
    pub fn create(path: &Path) -> Result<Self, WeightsError> {
        let beside = path.with_extension("safetensors.blocks");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&beside);
        let file = file.map_err(|source| WeightsError::Io { path: beside.clone(), source })?;
        Ok(Self { path: path.to_owned(), beside, file: BufWriter::new(file), tensors: Vec::new() })
    }

    /// Adds a tensor under its name in the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn push(&mut self, tensor: &NamedTensor, names: &Names) -> Result<(), WeightsError> {
        let bytes = tensor.data.as_bytes();
        let start = self.tensors.last().map_or(0, |(.., range)| range.end);
        self.file
            .write_all(bytes)
            .map_err(|source| WeightsError::Io { path: self.beside.clone(), source })?;
        let name = (names.to_file)(&tensor.name);
        self.tensors.push((name, tensor.data.shape().to_vec(), start..start + bytes.len()));
        Ok(())
    }

    /// Writes the file of weights.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> Result<(), WeightsError> {
        let written = self.write();
        drop(std::fs::remove_file(&self.beside));
        written
    }

    fn write(&mut self) -> Result<(), WeightsError> {
        let path = &self.path;
        let io = |source| WeightsError::Io { path: path.clone(), source };
        self.file.flush().map_err(io)?;
        let length = self.tensors.last().map_or(0, |(.., range)| range.end);
        // SAFETY: the file beside is this writer's alone and not changed any more.
        let map = match length {
            0 => None,
            _ => Some(unsafe { Mmap::map(self.file.get_ref()) }.map_err(io)?),
        };
        let bytes = map.as_deref().unwrap_or_default();
        let views = self.tensors.iter().map(|(name, shape, range)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), &bytes[range.clone()]);
            let view = view.map_err(|source| WeightsError::Format { path: path.clone(), source })?;
            Ok((name.clone(), view))
        });
        let views = views.collect::<Result<Vec<_>, WeightsError>>()?;
        write_aside(path, views.into_iter())?.appear()
    }
}

/// Makes all parameters of a chain take their values from a file of fp32, fp16 or bf16 tensors. All are looked
/// up at once; values are read when a block first needs them. Tensors that the model does not know are left alone.
///
/// # Errors
/// If the file is not whole, or a parameter is missing or of another shape.
pub fn load_safetensors<I, O>(path: &Path, chain: &mut Chain<I, O>, names: &Names) -> Result<(), WeightsError>
where
    I: brigade_core::Activation,
    O: brigade_core::Activation,
{
    let io = |source| WeightsError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is read only here, and files of weights are written aside and renamed, never changed in place.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    let file = WeightsFile { path: path.to_owned(), map, names: *names };
    let followers = chain.followers();
    let tensors = file.tensors()?;
    for (name, shape) in chain.shapes().iter().filter(|(name, _)| !followers.contains(name)) {
        file.view(&tensors, name, shape)?;
    }
    drop(tensors);
    chain.load(move |name, shape| {
        let tensors = file.tensors()?;
        Ok(floats(&file.view(&tensors, name, shape)?))
    });
    Ok(())
}

/// An open file of weights.
struct WeightsFile {
    path: PathBuf,
    map: Mmap,
    names: Names,
}

impl WeightsFile {
    fn tensors(&self) -> Result<SafeTensors<'_>, WeightsError> {
        SafeTensors::deserialize(&self.map)
            .map_err(|source| WeightsError::Format { path: self.path.clone(), source })
    }

    /// A parameter's tensor, whose type and shape are those of the parameter.
    fn view<'t>(
        &self,
        tensors: &SafeTensors<'t>,
        name: &str,
        shape: &[usize],
    ) -> Result<TensorView<'t>, WeightsError> {
        let in_file = (self.names.to_file)(name);
        let view = tensors
            .tensor(&in_file)
            .or_else(|_| tensors.tensor(&format!("{}{in_file}", self.names.optional_prefix)));
        let view = view.map_err(|_| {
            let mut known: Vec<_> = tensors.names().into_iter().map(str::to_owned).collect();
            known.sort();
            let (found, first) = (known.len(), known.into_iter().next().unwrap_or_default());
            WeightsError::Missing { path: self.path.clone(), name: in_file.clone(), found, first }
        })?;
        if view.shape() != shape || !matches!(view.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(WeightsError::Mismatch {
                path: self.path.clone(),
                name: in_file,
                found: format!("{:?} {:?}", view.dtype(), view.shape()),
                needed: format!("F32, F16 or BF16 {shape:?}"),
            });
        }
        Ok(view)
    }
}

fn floats(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = view.data();
    Some(match view.dtype() {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        _ => return None,
    })
}
