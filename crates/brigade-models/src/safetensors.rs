//! Whole weights in a safetensors file.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use brigade_core::{Chain, NamedTensor};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

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
    let io = |source| WeightsError::Io { path: path.to_owned(), source };
    let format = |source| match source {
        safetensors::SafeTensorError::IoError(source) => io(source),
        source => WeightsError::Format { path: path.to_owned(), source },
    };
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(Dtype::F32, tensor.data.shape().to_vec(), tensor.data.as_bytes())
            .map_err(format)?;
        Ok(((names.to_file)(&tensor.name), view))
    });
    let views = views.collect::<Result<Vec<_>, WeightsError>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let aside = path.with_extension("safetensors.part");
    // The library would make the file readable to its owner alone; one that is there keeps its permissions.
    File::create(&aside).map_err(io)?;
    safetensors::serialize_to_file(views, Some(metadata), &aside).map_err(format)?;
    File::open(&aside).and_then(|file| file.sync_all()).map_err(io)?;
    std::fs::rename(&aside, path).map_err(io)
}

/// Sets all parameters of a chain from a file of fp32, fp16 or bf16 tensors. Tensors that the model
/// does not know are left alone.
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
    let tensors = SafeTensors::deserialize(&map)
        .map_err(|source| WeightsError::Format { path: path.to_owned(), source })?;
    let followers = chain.followers();
    chain.load(|name, shape| {
        if followers.contains(name) {
            return Ok(None);
        }
        let in_file = (names.to_file)(name);
        let view = tensors
            .tensor(&in_file)
            .or_else(|_| tensors.tensor(&format!("{}{in_file}", names.optional_prefix)));
        let view = view.map_err(|_| {
            let mut known: Vec<_> = tensors.names().into_iter().map(str::to_owned).collect();
            known.sort();
            let (found, first) = (known.len(), known.into_iter().next().unwrap_or_default());
            WeightsError::Missing { path: path.to_owned(), name: in_file.clone(), found, first }
        })?;
        let mismatch = || WeightsError::Mismatch {
            path: path.to_owned(),
            name: in_file.clone(),
            found: format!("{:?} {:?}", view.dtype(), view.shape()),
            needed: format!("F32, F16 or BF16 {shape:?}"),
        };
        if view.shape() != shape {
            return Err(mismatch());
        }
        floats(&view).map(Some).ok_or_else(mismatch)
    })
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
