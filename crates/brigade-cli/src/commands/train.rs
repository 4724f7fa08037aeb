//! `brigade train`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use brigade::models::gpt::{self, GptConfig};
use brigade::report::ConsoleMode;
use brigade::{Program, Role, StandardFlags, TokenDataset, Training, UsageError};
use clap::Args;

use crate::config::Config;
use crate::corpus;

/// The tokenizer of a run, in the run's folder.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

pub const EXAMPLES: &str = "\
Examples:
  brigade train                                       configs/gpt-tiny.toml on one rank per core
  brigade train --data corpus/ --out runs/a           your own text: .txt, .md, source code, .jsonl, .parquet
  brigade train --config configs/gpt-13m.toml --nproc-per-node 4 --dp 4 --steps 20
  brigade train --set optimizer.learning_rate=3e-4 --set schedule.name=wsd
  brigade train --dry-run                             show all settings, the mesh and the memory it needs

Defaults are in configs/gpt-tiny.toml, which explains each setting. --config overrides them, --set overrides the
file, and flags override --set.";

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Text to train on: files, folders or globs [default: the Rust sources of Brigade's dependencies].
    #[arg(long, value_name = "SOURCE", num_args = 1..)]
    data: Vec<String>,
    #[command(flatten)]
    pub standard: StandardFlags,
}

impl TrainArgs {
    /// The configuration's name, for the run's folder.
    fn name(&self) -> String {
        let file = self.standard.config.as_deref().and_then(|path| path.file_stem());
        file.map_or("gpt-tiny".into(), |stem| stem.to_string_lossy().into_owned())
    }
}

pub fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let config = resolved(args).map_err(UsageError)?;
    let flags = &args.standard;
    let shape = &config.model.shape;
    let program = Program {
        name: &args.name(),
        flags,
        settings: &config.settings,
        config: brigade::config_to_toml(&config)?,
        targets_per_sample: shape.sequence_length,
        costs: shape.costs()?,
    };
    let prepare = |role| {
        // Only one process shows progress; the others find the tokens in the cache.
        let shows = !flags.quiet && matches!(role, Role::Launcher | Role::JoinedRank { rank: 0 });
        let show = if shows { ConsoleMode::Auto } else { ConsoleMode::Quiet };
        (!flags.dry_run).then(|| corpus::prepared(&config, show)).transpose()
    };
    Ok(program.run(prepare, |session, prepared| {
        let model = shape.model(session.seed(), &session.device())?;
        session.stop_if_dry_run(&model, |sequences| Ok(shape.blank_batch(sequences, &session.device())))?;
        let prepared = prepared.context("the data was not prepared")?;
        // The entry's name is a hash of the text, which may differ from host to host.
        let entry = prepared.summary.cache_entry.file_name().unwrap_or_default();
        session.check_same("text (or tokenizer)", &entry.to_string_lossy())?;
        let mut training = Training::on(TokenDataset::new(prepared.train))
            .mapping(gpt::mapping())
            .flops_per_target(flops_per_target(shape, model.chain().parameters()))
            .file(TOKENIZER_FILE, prepared.tokenizer.json());
        if !prepared.validation.is_empty() {
            training = training.validate(TokenDataset::new(prepared.validation));
        }
        session.train(model, training)?;
        Ok(())
    }))
}

fn resolved(args: &TrainArgs) -> anyhow::Result<Config> {
    let files = args.standard.config_files()?;
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let mut config = Config::read(&files, &args.standard.sets)?;
    args.standard.apply(&mut config.settings);
    if !args.data.is_empty() {
        config.data.sources = args.data.clone();
    }
    config.resolve()?;
    Ok(config)
}

/// FLOPs of forward and backward per token: `6·N + 12·L·h·seq`. N counts the head, which is a product, but not the embeddings of
/// tokens and positions, which are only looked up.
fn flops_per_target(shape: &GptConfig, parameters: usize) -> f64 {
    let GptConfig { vocabulary, sequence_length, width, layers, tied_head, .. } = *shape;
    let tables = sequence_length * width + if tied_head { 0 } else { vocabulary * width };
    (6 * (parameters - tables) + 12 * layers * width * sequence_length) as f64
}
