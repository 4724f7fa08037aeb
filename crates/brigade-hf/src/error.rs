//! What can go wrong with a folder of a model.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::differences::TensorDifferences;

/// What can go wrong with a folder of a model.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not JSON, or not an object.
    #[error("{path} is not a JSON object: {problem}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A field has a value that it cannot have.
    #[error("{file}: `{field}` is {given}; it can be {allowed}")]
    Field {
        /// The file, or the section of a configuration.
        file: String,
        /// The field's name.
        field: String,
        /// Its value.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// Fields that this family does not know, and that may change what the model computes.
    #[error("{file}: {}", describe(.family, .fields))]
    UnknownFields {
        /// The file, or the section of a configuration.
        file: String,
        /// The `model_type`, or the field that they are part of.
        family: String,
        /// Them.
        fields: Vec<UnknownField>,
    },
    /// A model of a family that is not known.
    #[error("{file}: the model is of {given}; supported are {known}")]
    UnknownFamily {
        /// The file, or the section of a configuration.
        file: String,
        /// Its `model_type`, or else its `architectures`.
        given: String,
        /// All families.
        known: String,
    },
    /// A folder without weights that can be read.
    #[error("{folder} has no weights, neither model.safetensors nor model.safetensors.index.json{}", unreadable(.others, .command))]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// Weights in other formats.
        others: Vec<String>,
        /// What converts them.
        command: Option<String>,
    },
    /// A folder of adapters without their file.
    #[error("{folder} has no adapter_model.safetensors{}", pickled(.command))]
    NoAdapters {
        /// The folder.
        folder: PathBuf,
        /// What converts their pickle, if there is one.
        command: Option<String>,
    },
    /// Weights that are not of the model.
    #[error("{path}: {differences}")]
    Tensors {
        /// The file, or the index of several.
        path: PathBuf,
        /// What differs.
        differences: TensorDifferences,
    },
    /// A chat template that is invalid, refuses a chat, or lacks the required information.
    #[error("the chat template of {file}: {problem}")]
    Template {
        /// Its file or folder.
        file: String,
        /// What is wrong, in the template's words where it raises an exception.
        problem: String,
    },
    /// A record that is not a chat.
    #[error("{record}: {problem}")]
    Chat {
        /// Where it is.
        record: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing says where the cache of models is.
    #[error("there is no folder for models: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set")]
    NoCache,
    /// A model that is neither in the cache nor to be had from the hub.
    #[error("the model `{model}`: {problem}")]
    Hub {
        /// Its name.
        model: String,
        /// Why.
        problem: String,
    },
    /// A configuration that its family cannot write.
    #[error("a model of type `{family}` cannot have this configuration: {problem}")]
    Unwritable {
        /// The `model_type`.
        family: String,
        /// What is lost.
        problem: String,
    },
}

/// A field that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownField {
    /// Its name.
    pub name: String,
    /// Its value, as JSON.
    pub value: String,
    /// A known field of a similar name.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` = {}", self.name, self.value)?;
        match &self.nearest {
            Some(nearest) => write!(f, " (but `{nearest}`)"),
            None => Ok(()),
        }
    }
}

fn describe(family: &str, fields: &[UnknownField]) -> String {
    let mut text = format!("`{family}` does not know ");
    for (index, field) in fields.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        _ = write!(text, "{comma}{field}");
    }
    let it = if fields.len() == 1 { "it" } else { "each of them" };
    _ = write!(text, ", which may change what the model computes; {it} can be absent, null, false or empty");
    text
}

fn unreadable(others: &[String], command: &Option<String>) -> String {
    match command {
        _ if others.is_empty() => String::new(),
        None => format!("; {} cannot be read", others.join(", ")),
        Some(command) => refused_pickle(&others.join(", "), "model.safetensors beside it", command),
    }
}

fn pickled(command: &Option<String>) -> String {
    let refused = |command: &String| {
        refused_pickle("adapter_model.bin", "adapter_model.safetensors beside it", command)
    };
    command.as_ref().map(refused).unwrap_or_default()
}

/// Why a pickle is refused, and the command that writes what is read instead.
pub(crate) fn refused_pickle(pickle: &str, written: &str, command: &str) -> String {
    format!(
        "; {pickle} is a Python pickle, which may run any code when read, and cannot be read in parts. This command writes \
        {written}: {command}"
    )
}

impl HfError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn field(
        file: &str,
        field: &str,
        given: impl fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        let (file, field, given) = (file.to_owned(), field.to_owned(), given.to_string());
        Self::Field { file, field, given, allowed: allowed.into() }
    }
}
