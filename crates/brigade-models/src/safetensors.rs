//! Whole weights in a safetensors file.

mod write;

use std::fs::File;
use std::path::{Path, PathBuf};

use brigade_core::Chain;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

pub use write::{WeightsWriter, save_lazily, save_safetensors};

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
    /// A tensor to write does not fit the file that was begun.
    #[error("{path}: tensor `{name}` {problem}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model could not give or take its values.
    #[error(transparent)]
    Model(#[from] brigade_core::Error),
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
    // SAFETY: the map is read only here, and files of weights are written aside and renamed, never changed in place; whoever else
    // writes one must keep to that, too, until it is loaded. One that is cut short meanwhile ends the process by SIGBUS: memory
    // that there is not is never read.
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
