//! `brigade export`

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use brigade::models::CausalLm;
use brigade::{ADAPTERS_CONFIG_FILE, ADAPTERS_FILE, LanguageModel, UsageError, WEIGHTS_FILE, exit};
use brigade_hf::ConfigFile;
use brigade_hf::weights::weights_file;
use clap::Args;

use crate::adapters::Origin;
use crate::commands::train::COPIED;
use crate::config::TOKENIZER_FILE;

pub const EXAMPLES: &str = "\
Examples:
  brigade export runs/tuned --out tuned                   what transformers loads of a run's folder
  brigade export runs/adapted --out merged --merge-lora   with the adapters added to the weights";

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Folder of a finished run.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Folder to write, which must be new or empty.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Add adapters to the weights of their model, so that the folder is a model like any other.
    #[arg(long)]
    merge_lora: bool,
}

pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let origin = Origin::read(&args.run).map_err(UsageError)?;
    check(args, &origin).map_err(UsageError)?;
    let out = &args.out;
    std::fs::create_dir_all(out).with_context(|| format!("--out {}", out.display()))?;
    let about = ["config.json", "generation_config.json", TOKENIZER_FILE];
    if args.merge_lora {
        copy(&origin.base, out, about)?;
    }
    copy(&args.run, out, about.into_iter().chain(COPIED))?;
    match (&origin.adapters, args.merge_lora) {
        (None, _) => copy(&args.run, out, [WEIGHTS_FILE])?,
        (Some(_), false) => copy(&args.run, out, [ADAPTERS_CONFIG_FILE, ADAPTERS_FILE])?,
        (Some(adapters), true) => {
            let file = ConfigFile::read(&origin.base)?;
            let model = CausalLm::from_config(&file.config, None)?.with_adapters(&adapters.lora)?;
            let weights = weights_file(&origin.base, &file.config, file.task)?;
            let paths = [weights.as_path(), &adapters.file];
            LanguageModel::merge_adapters(&model, &paths, &out.join(WEIGHTS_FILE))?;
        }
    }
    Ok(ExitCode::from(exit::DONE))
}

/// Refuses what is no finished run, adapters that are not there, and a folder that has something in it.
fn check(args: &ExportArgs, origin: &Origin) -> anyhow::Result<()> {
    let (run, out) = (args.run.display(), args.out.display());
    let needed = match &origin.adapters {
        Some(_) => [ADAPTERS_CONFIG_FILE, ADAPTERS_FILE],
        None if args.merge_lora => {
            bail!("--merge-lora: {run} has no {ADAPTERS_CONFIG_FILE}, so no adapters to merge")
        }
        None => ["config.json", WEIGHTS_FILE],
    };
    if let Some(missing) = needed.into_iter().find(|name| !args.run.join(name).is_file()) {
        bail!("{run}: it has no {missing}; is it the folder of a finished run?");
    }
    let entries = match std::fs::read_dir(&args.out) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("--out {out}"))?,
    };
    if entries.count() > 0 {
        bail!("--out {out} has files in it; give another folder");
    }
    Ok(())
}

/// Copies those of these files that are there.
fn copy<'n>(from: &Path, to: &Path, names: impl IntoIterator<Item = &'n str>) -> anyhow::Result<()> {
    for name in names.into_iter().filter(|name| from.join(name).exists()) {
        std::fs::copy(from.join(name), to.join(name)).with_context(|| to.join(name).display().to_string())?;
    }
    Ok(())
}
