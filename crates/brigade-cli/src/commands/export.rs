//! `brigade export`

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use brigade::models::classifier::SequenceClassifier;
use brigade::models::encoder::Encoder;
use brigade::models::{Adapters, CausalLm, ShardSize, WeightsDtype, WeightsFormat, convert_weights};
use brigade::report::{HumanBytes, METRICS_FILE, counted};
use brigade::{
    ADAPTERS_CONFIG_FILE, ADAPTERS_FILE, ADAPTERS_LABELS_FILE, AdaptedModel, UsageError, WEIGHTS_FILE,
    WEIGHTS_INDEX_FILE, exit, merge_adapters,
};
use brigade_files::about_target;
use brigade_hf::{Config, ConfigFile, Task};
use clap::Args;

use crate::config::TOKENIZER_FILE;
use crate::model_files::adapters::{Origin, SavedAdapters};
use crate::model_files::tokenizer::tokenizer_companions;
use crate::model_files::weights::Weights;
use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade export runs/tuned --out tuned                   a folder that transformers loads
  brigade export runs/tuned --out tuned --dtype bf16 --max-shard-size 2GB
  brigade export runs/adapted --out merged --merge-lora   with the adapters added to the weights";

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Folder of a finished run.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Folder to write to; it must be new or empty.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Merge adapters into the weights of their model, so that the folder is a model like any other.
    #[arg(long)]
    merge_lora: bool,
    #[command(flatten)]
    form: FormArgs,
}

/// The form of written weights.
#[derive(Debug, Args)]
pub struct FormArgs {
    /// Type of the numbers: fp32, bf16 or fp16 [default: fp32].
    #[arg(long, value_name = "TYPE")]
    dtype: Option<WeightsDtype>,
    /// The most bytes of tensors per file, as in 5GB, 500MB or 2GiB; larger weights become several files with an index [default:
    /// 5GB].
    #[arg(long, value_name = "SIZE")]
    max_shard_size: Option<ShardSize>,
}

impl FormArgs {
    pub fn format(&self) -> WeightsFormat {
        WeightsFormat {
            dtype: self.dtype.unwrap_or_default(),
            max_shard_size: self.max_shard_size.unwrap_or_default(),
        }
    }

    /// Whether any form is requested.
    fn is_given(&self) -> bool {
        self.dtype.is_some() || self.max_shard_size.is_some()
    }
}

pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let origin = Origin::read(&args.run).map_err(UsageError)?;
    check(args, &origin).map_err(UsageError)?;
    print(&in_new_folder(&args.out, |part| write(args, &origin, part))?)?;
    Ok(ExitCode::from(exit::DONE))
}

/// Makes a folder that must be new or empty; it appears once all is in it. Returns what is said about it.
///
/// # Errors
/// [`UsageError`] if there are files in it; if it cannot be written.
pub fn in_new_folder(
    given: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    check_empty(given).map_err(UsageError)?;
    let out = std::path::absolute(given).with_context(|| format!("--out {}", given.display()))?;
    let beside = out.parent().unwrap_or(Path::new("/"));
    let context = || format!("--out {}", given.display());
    std::fs::create_dir_all(beside).with_context(context)?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(out.file_name().unwrap_or_default());
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(&prefix).suffix(".part");
    let part = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let part = part.tempdir_in(beside).map_err(|error| about_target(&error, beside)).with_context(context)?;
    write(part.path())?;
    std::fs::rename(part.path(), &out).with_context(context)?;
    // There is nothing left to remove.
    drop(part.keep());
    let (files, bytes) = size(&out).with_context(context)?;
    Ok(format!("{}: {}, {}\n", given.display(), counted(files, "file"), HumanBytes(bytes)))
}

/// Refuses a folder with files.
fn check_empty(out: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(out) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("--out {}", out.display()))?,
    };
    if entries.count() > 0 {
        bail!("--out {} has files in it; give another folder", out.display());
    }
    Ok(())
}

/// The number of files in a folder and below, and their bytes.
fn size(folder: &Path) -> std::io::Result<(usize, u64)> {
    let mut all = (0, 0);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (files, bytes) = match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => (1, entry.metadata()?.len()),
        };
        all = (all.0 + files, all.1 + bytes);
    }
    Ok(all)
}

/// Writes all files into a folder.
fn write(args: &ExportArgs, origin: &Origin, out: &Path) -> anyhow::Result<()> {
    let (run, base, format) = (&args.run, &origin.base, args.form.format());
    let weights = out.join(WEIGHTS_FILE);
    if args.merge_lora {
        copy_beside(base, out)?;
    }
    copy_beside(run, out)?;
    match &origin.adapters {
        Some(_) if !args.merge_lora => {
            copy(run, out, ["config.json", ADAPTERS_CONFIG_FILE, ADAPTERS_FILE, ADAPTERS_LABELS_FILE])
        }
        Some(adapters) => {
            let file = origin.config_file()?;
            merge(origin, adapters, &file, (&weights, format))?;
            write_config(file, out, format)
        }
        None if !args.form.is_given() && run.join(WEIGHTS_FILE).is_file() => {
            copy(run, out, ["config.json", WEIGHTS_FILE])
        }
        None => {
            write_config(ConfigFile::read(run)?, out, format)?;
            Ok(convert_weights(&[run], &weights, format)?)
        }
    }
}

/// Writes the weights of a model with its adapters added.
fn merge(
    origin: &Origin,
    adapters: &SavedAdapters,
    file: &ConfigFile,
    (to, format): (&Path, WeightsFormat),
) -> anyhow::Result<()> {
    let task = file.task.unwrap_or(Task::CausalLanguageModel);
    let write = |model: AdaptedModel<'_>, adapters: &Adapters, mapping| {
        let from = Weights::find(origin, task, adapters, true)?;
        let files: Vec<&Path> = from.files.iter().map(PathBuf::as_path).collect();
        merge_adapters(model, &files, &from.mapping(mapping), to, format)
    };
    match (&file.config, task) {
        (_, Task::SequenceClassification) => {
            let model = SequenceClassifier::from_config(&file.config, None)?.with_adapters(&adapters.lora)?;
            write(AdaptedModel::Classifier(&model), model.adapters(), model.mapping())
        }
        (Config::Decoder(_), _) => {
            let model = CausalLm::from_config(&file.config, None)?.with_adapters(&adapters.lora)?;
            write(AdaptedModel::CausalLm(&model), model.adapters(), model.mapping())
        }
        (Config::Encoder(_), _) => {
            let model = Encoder::from_config(&file.config, task, None)?.with_adapters(&adapters.lora)?;
            write(AdaptedModel::MaskedLm(&model), model.adapters(), model.mapping())
        }
    }
}

/// Writes the configuration of a model with the type that its weights have now.
fn write_config(file: ConfigFile, out: &Path, format: WeightsFormat) -> anyhow::Result<()> {
    let path = out.join("config.json");
    std::fs::write(&path, with_type(file, format)?).with_context(|| path.display().to_string())
}

/// The content of a `config.json` for weights of this type.
pub fn with_type(mut file: ConfigFile, format: WeightsFormat) -> anyhow::Result<Vec<u8>> {
    file.dtype = Some(format.dtype.torch_name().to_owned());
    serde_json::to_vec_pretty(&file.to_fields()?).context("cannot write JSON")
}

/// Refuses a run that is not finished, missing adapters, and a folder that is not empty.
fn check(args: &ExportArgs, origin: &Origin) -> anyhow::Result<()> {
    let run = args.run.display();
    let is_there = |name: &str| args.run.join(name).is_file();
    let needed = match &origin.adapters {
        Some(_) if args.form.is_given() && !args.merge_lora => {
            bail!(
                "--dtype and --max-shard-size are for the weights of a model, and {run} has adapters; give --merge-lora as well"
            )
        }
        Some(_) => [ADAPTERS_CONFIG_FILE, ADAPTERS_FILE],
        None if args.merge_lora => {
            bail!("--merge-lora: {run} has no {ADAPTERS_CONFIG_FILE}, so there are no adapters to merge")
        }
        None if is_there(WEIGHTS_INDEX_FILE) => ["config.json", WEIGHTS_INDEX_FILE],
        None => ["config.json", WEIGHTS_FILE],
    };
    if let Some(missing) = needed.into_iter().find(|name| !is_there(name)) {
        let is_run = missing != "config.json" && is_there(METRICS_FILE);
        let hint = match is_run {
            true => {
                "a run writes it when it ends, and brigade checkpoint consolidate makes it from a checkpoint"
            }
            false => "is it the folder of a finished run?",
        };
        bail!("{run}: it has no {missing}; {hint}");
    }
    check_empty(&args.out)
}

/// Copies what lies beside the weights and `config.json`.
pub fn copy_beside(from: &Path, to: &Path) -> anyhow::Result<()> {
    copy(from, to, ["generation_config.json", TOKENIZER_FILE])?;
    copy(from, to, tokenizer_companions(from)?.iter().map(String::as_str))
}

/// Copies those of these files that exist.
pub fn copy<'n>(from: &Path, to: &Path, names: impl IntoIterator<Item = &'n str>) -> anyhow::Result<()> {
    for name in names.into_iter().filter(|name| from.join(name).exists()) {
        let to = to.join(name);
        let folder = to.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder
            .and_then(|()| std::fs::copy(from.join(name), &to))
            .with_context(|| to.display().to_string())?;
    }
    Ok(())
}
