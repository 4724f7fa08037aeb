//! `brigade checkpoint consolidate`

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use brigade::checkpoints::Checkpoint;
use brigade::models::{WeightsError, WeightsFormat, existing_weights};
use brigade::report::counted;
use brigade::{
    ADAPTERS_CONFIG_FILE, ADAPTERS_FILE, ADAPTERS_LABELS_FILE, CONFIG_FILE, UsageError, WEIGHTS_FILE,
    consolidate,
};
use brigade_files::write_atomic;
use brigade_hf::ConfigFile;
use clap::Args;

use super::OneStep;
use crate::commands::export::{FormArgs, copy, copy_beside, in_new_folder, with_type};

#[derive(Debug, Args)]
pub(super) struct ConsolidateArgs {
    #[command(flatten)]
    of: OneStep,
    /// The file to write [default: model.safetensors in the run's folder, or adapter_model.safetensors where adapters are trained]. An additional model's file ends with its name:
    /// model-NAME.safetensors.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Folder to write to, as brigade export does: the weights with the configuration and the tokenizer in the run's folder; it must be new or empty.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["to", "overwrite"])]
    out: Option<PathBuf>,
    /// Replace existing files.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    form: FormArgs,
}

impl ConsolidateArgs {
    /// The run's folder, or what was given in its place.
    fn run(&self) -> &Path {
        Path::new(&self.of.location.location)
    }

    fn has_adapters(&self) -> bool {
        self.run().join(ADAPTERS_CONFIG_FILE).is_file()
    }

    /// What a run calls its weights.
    fn file_name(&self) -> &'static str {
        if self.has_adapters() { ADAPTERS_FILE } else { WEIGHTS_FILE }
    }

    /// How weights are written under the name that a run gives them, or another one.
    fn format(&self, is_own_name: bool) -> WeightsFormat {
        let mut format = self.form.format();
        if is_own_name && self.has_adapters() {
            // `peft` reads one file.
            format.max_shard_size = WeightsFormat::ONE_FILE.max_shard_size;
        }
        format
    }
}

/// Writes what is asked for, and says what was written.
pub(super) fn consolidated(args: &ConsolidateArgs) -> anyhow::Result<String> {
    match &args.out {
        Some(out) => into_folder(args, out),
        None => into_file(args),
    }
}

fn into_file(args: &ConsolidateArgs) -> anyhow::Result<String> {
    let to = args.to.clone().unwrap_or_else(|| args.run().join(args.file_name()));
    let is_there = |file: &Path| {
        let why = "already exists; give another file with --to, or --overwrite";
        anyhow::Error::from(UsageError(anyhow!("{} {why}", file.display())))
    };
    if let Some(file) = existing_weights(&to).filter(|_| !args.overwrite) {
        return Err(is_there(&file));
    }
    // A run writes this file at its end: newer weights must not be replaced by older ones.
    let beside = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !beside.is_dir() {
        let (to, folder) = (to.display(), beside.display());
        return Err(UsageError(anyhow!("--to {to}: the folder {folder} does not exist")).into());
    }
    let _held = match args.overwrite && beside.join(CONFIG_FILE).exists() {
        true => brigade::lock_folder(beside, "--to").map_err(UsageError)?,
        false => None,
    };
    let format = args.format(args.to.is_none());
    let text = args.of.with(|checkpoint| written(checkpoint, &to, format, args.overwrite));
    let text = text.map_err(|error| {
        let lost = error.chain().find_map(|cause| match cause.downcast_ref()? {
            WeightsError::Io { path, source } if source.kind() == ErrorKind::AlreadyExists => {
                Some(path.clone())
            }
            _ => None,
        });
        match lost {
            Some(file) if !args.overwrite => is_there(&file),
            _ => error,
        }
    })?;
    if to.file_name().is_some_and(|name| name == WEIGHTS_FILE) {
        say_type(beside, format)?;
    }
    Ok(text)
}

/// Has the `config.json` beside the weights that it describes say their type, if there is one.
fn say_type(folder: &Path, format: WeightsFormat) -> anyhow::Result<()> {
    let path = folder.join("config.json");
    if !path.is_file() {
        return Ok(());
    }
    let file = ConfigFile::read(folder)?;
    if file.dtype.as_deref() == Some(format.dtype.torch_name()) {
        return Ok(());
    }
    write_atomic(&path, &with_type(file, format)?).with_context(|| path.display().to_string())
}

/// A folder as of `brigade export`, with the weights of the checkpoint.
fn into_folder(args: &ConsolidateArgs, out: &Path) -> anyhow::Result<String> {
    let run = args.run();
    let has_adapters = args.has_adapters();
    if !has_adapters && !run.join("config.json").is_file() {
        let missing = anyhow!(
            "--out {}: the folder of a model needs a config.json, and {} has none; give the run's folder, or --to for a file of weights alone",
            out.display(),
            run.display()
        );
        return Err(UsageError(missing).into());
    }
    in_new_folder(out, |part| {
        copy_beside(run, part)?;
        if has_adapters {
            copy(run, part, ["config.json", ADAPTERS_CONFIG_FILE, ADAPTERS_LABELS_FILE])?;
        }
        let (format, to) = (args.format(true), part.join(args.file_name()));
        args.of.with(|checkpoint| written(checkpoint, &to, format, true))?;
        match has_adapters {
            true => Ok(()),
            false => {
                let path = part.join("config.json");
                let text = with_type(ConfigFile::read(run)?, format)?;
                std::fs::write(&path, text).with_context(|| path.display().to_string())
            }
        }
    })
}

fn written(
    checkpoint: &Checkpoint,
    to: &Path,
    format: WeightsFormat,
    replaces: bool,
) -> anyhow::Result<String> {
    let step = checkpoint.manifest().step;
    let files = consolidate(checkpoint, to, format, replaces)?.into_iter();
    Ok(files
        .map(|(file, tensors)| format!("{}: {} of step {step}\n", file.display(), counted(tensors, "tensor")))
        .collect())
}
