//! Files of weights in a folder: which there are, and whether they are of the model.
//!
//! Nothing here reads values: what opens the files says which tensors they hold.

mod compare;

use std::fs;
use std::path::{Path, PathBuf};

pub use compare::{MatchedTensors, compare_tensors, match_tensors};

use crate::config::{Config, Task};
pub use crate::differences::{TensorDifferences, WrongShape};
use crate::error::HfError;

/// Weights in one file, and the index of those in several.
const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Files of weights as Python pickles.
pub(crate) const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// The file of adapters, as `peft` writes it, and as it wrote it before.
pub(crate) const ADAPTERS: &str = "adapter_model.safetensors";
pub(crate) const PICKLED_ADAPTERS: &str = "adapter_model.bin";

/// Other files of weights, by their ends.
const OTHERS: [&str; 7] = [".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx"];

/// The file of weights in a folder (`model.safetensors`), or the index of several (`model.safetensors.index.json`).
///
/// # Errors
/// If there is none. Where there are weights in another format, the message says how to convert them to this one.
pub fn weights_file(folder: &Path, config: &Config, task: Option<Task>) -> Result<PathBuf, HfError> {
    if let Some(found) = [FILE, INDEX].map(|name| folder.join(name)).into_iter().find(|path| path.is_file()) {
        return Ok(found);
    }
    let entries = fs::read_dir(folder).map_err(|error| HfError::io(folder, error))?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    let mut others: Vec<_> = names
        .filter(|name| OTHERS.iter().any(|end| name.ends_with(end)) || PICKLES.contains(&name.as_str()))
        .collect();
    others.sort();
    let pickle = others.iter().any(|name| PICKLES.contains(&name.as_str()));
    let command = class_of(config, task).filter(|_| pickle).map(|class| conversion(folder, &class));
    Err(HfError::NoWeights { folder: folder.to_owned(), others, command })
}

/// The file of adapters in a folder (`adapter_model.safetensors`).
///
/// # Errors
/// If there is none. Where they are in a pickle, the message says how to convert it.
pub fn adapters_file(folder: &Path) -> Result<PathBuf, HfError> {
    let file = folder.join(ADAPTERS);
    if file.is_file() {
        return Ok(file);
    }
    let command = folder.join(PICKLED_ADAPTERS).is_file().then(|| pickled_adapters_conversion(folder));
    Err(HfError::NoAdapters { folder: folder.to_owned(), command })
}

/// The class of `transformers` that loads a model for a task, or else as a language model.
pub(crate) fn class_of(config: &Config, task: Option<Task>) -> Option<String> {
    let family = config.family();
    task.and_then(|task| family.class(task)).or_else(|| family.class(family.language_model()))
}

/// The command that writes safetensors beside a pickle of adapters.
fn pickled_adapters_conversion(folder: &Path) -> String {
    let folder = quoted(folder);
    format!(
        "python -c 'import torch; from safetensors.torch import save_file; f = \"{folder}/\"; \
        tensors = torch.load(f + \"{PICKLED_ADAPTERS}\", map_location=\"cpu\", weights_only=True); \
        save_file({{name: tensor.contiguous() for name, tensor in tensors.items()}}, f + \"{ADAPTERS}\", {{\"format\": \"pt\"}})'"
    )
}

/// A folder's path within double quotes of Python, within single quotes of a shell.
fn quoted(folder: &Path) -> String {
    folder.display().to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\'', r"'\''")
}

/// The command that writes safetensors beside a pickle.
fn conversion(folder: &Path, class: &str) -> String {
    let folder = quoted(folder);
    format!(
        "python -c 'from transformers import {class} as Model; f = \"{folder}\"; Model.from_pretrained(f).save_pretrained(f)'"
    )
}
