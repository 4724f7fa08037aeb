//! `brigade evaluate`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use brigade::data::LongExamples;
use brigade::launcher::StandardStreams;
use brigade::models::{LoadWeights, Strict};
use brigade::report::{ConsoleMode, HumanCount};
use brigade::{
    Dataset, Mixed, Role, StrategySettings, TextTask, UsageError, ValidationReport, parse_whole_number,
};
use clap::Args;
use serde_json::json;

use crate::config::Config;
use crate::corpus;
use crate::data::columns::columns;
use crate::data::tasks::{TaskModel, TaskName};
use crate::model_files::model_folder::model_folder;
use crate::model_files::weights::Weights;
use crate::output::print;
use crate::ranks::{RankFlags, RankProgram};

pub const EXAMPLES: &str = "\
Examples:
  brigade evaluate --model runs/tuned --data held-out.jsonl
  brigade evaluate --model Llama-3.2-1B --data corpus/ --sequence-length 2048 --json
  brigade evaluate --model runs/tuned --data a.jsonl --nproc-per-node 4 --pp 2 --dp 2

Every token of the data but the first is predicted once; a model for labels, a number or masked tokens does its own task. \
The numbers are the same on every mesh, for the same --micro-batch-size.";

#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// Folder of a finished run, or a model: a folder as Hugging Face's libraries write it, or organization/name[@revision] on the hub.
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Text to evaluate on: files, folders, globs or URLs (gs://, s3://, https://).
    #[arg(long, value_name = "SOURCE", num_args = 1.., required = true)]
    data: Vec<String>,
    /// Tokens in a row [default: the model's positions, at most 1024].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    sequence_length: Option<usize>,
    /// Rows that a rank puts through the model at once [default: 4].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    micro_batch_size: Option<usize>,
    /// Print one JSON object, with all digits.
    #[arg(long)]
    json: bool,
    /// Override any setting of `brigade train` by its full name, as in compute.dtype=bf16; can be given several times. Flags override --set.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Print nothing but the result, and errors.
    #[arg(long, short)]
    quiet: bool,
    /// Data-parallel ranks [default: all that pipeline stages leave].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    dp: Option<usize>,
    /// 3 shards parameters over data-parallel ranks, so that none holds all of its layers; 0 does not [default: 3 with several of them].
    #[arg(long, value_name = "STAGE", allow_negative_numbers = true, value_parser = parse_whole_number::<u8>)]
    zero: Option<u8>,
    #[command(flatten)]
    ranks: RankFlags,
}

pub fn run(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let config = resolved(args).map_err(UsageError)?;
    let mut described = config.describe().map_err(UsageError)?;
    let weights = args.ranks.checks_for_all().and_then(|checks| described.weights(checks));
    let weights = weights.map_err(UsageError)?;
    config.fit_vocabulary(&mut described).map_err(UsageError)?;
    let vocabulary = described.model.vocabulary();
    match &described.model {
        TaskModel::CausalLm(task) => evaluate(args, &config, &weights, (task, vocabulary)),
        TaskModel::MaskedLm(task) => evaluate(args, &config, &weights, (task, vocabulary)),
        TaskModel::Classification(task) => evaluate(args, &config, &weights, (task, vocabulary)),
        TaskModel::MultiLabel(task) => evaluate(args, &config, &weights, (task, vocabulary)),
        TaskModel::Regression(task) => evaluate(args, &config, &weights, (task, vocabulary)),
    }
}

/// How well a model does its task, with embeddings for so many tokens.
fn evaluate<T: TextTask>(
    args: &EvaluateArgs,
    config: &Config,
    weights: &Weights,
    (task, vocabulary): (&T, usize),
) -> anyhow::Result<ExitCode> {
    let program = RankProgram {
        name: "evaluate",
        flags: &args.ranks,
        settings: config.settings.clone(),
        config: brigade::config_to_toml(config)?,
        costs: task.costs()?,
        quiet: args.quiet,
        streams: StandardStreams::Results,
    };
    let prepare = |role| {
        let shows = !args.quiet && matches!(role, Role::Launcher | Role::JoinedRank { rank: 0 });
        corpus::prepared(config, vocabulary, if shows { ConsoleMode::Auto } else { ConsoleMode::Quiet })
    };
    program.run(prepare, |session, prepared| {
        // A hash of the text, which may differ from host to host.
        session.check_same("text (or tokenizer)", &prepared.summary.key)?;
        let sources = prepared.sources.into_iter();
        let sources = sources.map(|source| Ok((task.data(source.train)?, source.weight)));
        let data = Mixed::new(sources.collect::<anyhow::Result<Vec<_>>>()?);
        let mut model = task.model(session.seed(), &session.device())?;
        let mapping = config.for_resized(weights.mapping(task.mapping()));
        let files: Vec<&Path> = weights.files.iter().map(PathBuf::as_path).collect();
        let missing = model.load_weights_of(&files, &mapping, Strict::Parameters)?.missing;
        if !missing.is_empty() {
            let given = args.model.display();
            bail!(
                "--model {given} has no weights for {}, so there is nothing to evaluate",
                missing.join(", ")
            );
        }
        let mut report = session.evaluate(model, &data)?;
        for (name, metric) in task.derived_metrics() {
            report.metrics.insert(name.to_owned(), metric(&report.metrics));
        }
        let predicts_tokens =
            matches!(config.task.name, TaskName::Auto | TaskName::CausalLm | TaskName::MaskedLm);
        let found =
            Found { unit: data.unit(), perplexity: predicts_tokens.then(|| report.loss.exp()), report };
        match session.rank() {
            0 if args.json => print(&found.in_json()),
            0 => print(&found.in_words()),
            _ => Ok(()),
        }
    })
}

fn resolved(args: &EvaluateArgs) -> anyhow::Result<Config> {
    let own = [
        "data.validation_fraction=0",
        "train.validation_samples=0",
        "train.validate_every=0",
        "train.micro_batch_size=4",
        // As many as the model has positions for.
        "model.sequence_length=0",
    ];
    let sets: Vec<String> = own.into_iter().map(str::to_owned).chain(args.sets.clone()).collect();
    let is_set = |name: &str| args.sets.iter().any(|set| set.trim_start().starts_with(name));
    let folder = model_folder(&args.model)?;
    let mut config = Config::read_as_is(&folder, &sets)?;
    config.model.path = folder;
    config.data.sources = args.data.clone();
    config.data.source.clear();
    if args.sequence_length == Some(0) {
        bail!("--sequence-length (model.sequence_length) = 0 is not possible: it must be at least 1 token");
    }
    let shape = &mut config.model.shape;
    shape.sequence_length = args.sequence_length.unwrap_or(shape.sequence_length);
    let settings = &mut config.settings;
    args.ranks.apply(settings);
    let train = &mut settings.train;
    train.micro_batch_size = args.micro_batch_size.unwrap_or(train.micro_batch_size);
    let pp = settings.mesh.pp.max(1);
    let world = args.ranks.world_size(args.dp.map(|dp| dp.saturating_mul(pp)), settings.compute.backend)?;
    let dp = args.dp.unwrap_or(world / pp).max(1);
    settings.mesh.dp = dp;
    // Otherwise each rank would hold the whole model; the numbers are the same.
    let usual = if dp > 1 && !is_set("zero.stage") { 3 } else { settings.zero.stage };
    settings.zero.stage = args.zero.unwrap_or(usual);
    settings.strategy = StrategySettings::default();
    // Nothing is trained: an optimizer without state.
    (settings.optimizer.name, settings.optimizer.momentum) = ("sgd".into(), 0.0);
    settings.train.global_batch_size = settings.train.micro_batch_size.saturating_mul(dp);
    settings.resolve();
    config.resolve()?;
    // Every token is predicted once; the label of a text is that of the whole.
    if !config.task.has_labels() && !is_set("data.long") {
        config.data.long = LongExamples::Split;
    }
    Ok(config)
}

/// What is printed.
struct Found<'a> {
    /// What was predicted.
    unit: &'a str,
    /// Of tokens.
    perplexity: Option<f64>,
    report: ValidationReport,
}

impl Found<'_> {
    /// The numbers, by name.
    fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let perplexity = self.perplexity.map(|perplexity| ("perplexity", perplexity));
        let metrics = self.report.metrics.iter().map(|(name, value)| (name.as_str(), *value));
        [("loss", self.report.loss)].into_iter().chain(perplexity).chain(metrics)
    }

    fn in_words(&self) -> String {
        let in_words = |(name, value)| match name {
            "perplexity" => [name.to_owned(), format!("{value:.4}")],
            _ => [name.to_owned(), format!("{value:.6}")],
        };
        let count = [self.unit.to_owned(), HumanCount(self.report.targets).to_string()];
        columns(self.numbers().map(in_words).chain([count]).map(Into::into))
    }

    fn in_json(&self) -> String {
        let mut object = json!({ self.unit: self.report.targets });
        for (name, value) in self.numbers() {
            object[name] = json!(value);
        }
        format!("{object}\n")
    }
}
