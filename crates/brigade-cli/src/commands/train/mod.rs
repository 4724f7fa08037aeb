//! `brigade train`

mod auto;
mod auto_cluster;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use brigade::command_line::Chosen;
use brigade::data::{PreparedData, Tokenizer, TokenizerSpec};
use brigade::launcher::StandardStreams;
use brigade::models::{LoadWeights, Strict, is_adapter};
use brigade::report::ConsoleMode;
use brigade::{
    ADAPTERS_CONFIG_FILE, ADAPTERS_LABELS_FILE, Dataset, MicroBatchSize, Mixed, Program, Role, SettingError,
    StandardFlags, TextTask, Training, UsageError, parse_whole_number,
};
use brigade_hf::config::{GenerationConfig, SpecialTokens};
use brigade_hf::{ConfigFile, Task};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::config::{Config, ConfiguredModel, TEMPLATE_FILE, TOKENIZER_FILE};
use crate::corpus;
use crate::data::tasks::{TaskModel, TaskName};
use crate::model_files::adapters::adapters_config;
use crate::model_files::model_folder::hub_name;
use crate::model_files::tokenizer::tokenizer_companions;
use crate::model_files::weights::Weights;
use crate::ranks::checks_for_all;

pub const EXAMPLES: &str = "\
Examples:
  brigade train                                  configs/gpt-tiny.toml on one rank per core
  brigade train --data corpus/ --out runs/a      text, source code, .jsonl, .parquet
  brigade train --model llama --data corpus/     a Hugging Face model, with its tokenizer
  brigade train --model llama --data corpus/ --lora-rank 16                adapters only
  brigade train --model bert --task classification --data texts.jsonl      a label for each text
  brigade train --config configs/gpt-13m.toml --nproc-per-node 4 --dp 4 --steps 20
  brigade train --set optimizer.learning_rate=3e-4 --set schedule.name=wsd
  brigade train --mesh auto --micro-batch-size auto                        both chosen for you
  brigade train --profile-steps 10..12           a timeline of three steps, for Perfetto
  brigade train --dry-run                        all settings, the mesh and the memory it needs

Defaults are in configs/gpt-tiny.toml, which explains each setting. With --model, a run is one epoch in rows of up to 1,024 \
tokens, at a learning rate of 2e-5 (adapters 2e-4). --config overrides defaults, --set overrides the file, and flags override --set.";

#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// Text to train on: files, folders, globs or URLs (gs://, s3://, https://) [default: the Rust sources of Brigade's dependencies].
    #[arg(long, value_name = "SOURCE", num_args = 1..)]
    data: Vec<String>,
    /// Model to start from: a folder as Hugging Face's libraries write it, or organization/name[@revision] on the hub [default: a new model].
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// What the model of --model is trained for [default: what its config.json says].
    #[arg(long, value_name = "TASK", value_enum)]
    task: Option<TaskName>,
    /// Rank of adapters (LoRA); only these are then trained; see [lora] in the settings [default: 0, no adapters].
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    lora_rank: Option<usize>,
    /// auto: let the planner choose stages, data-parallel ranks, ZeRO and schedule for the available ranks.
    #[arg(long, value_name = "auto", value_enum, conflicts_with_all = ["dp", "pp", "zero", "replicate", "schedule", "chunks", "recompute"])]
    mesh: Option<auto::MeshChoice>,
    /// What --mesh auto plans for, as in 2x8xH100-80GB or a TOML file [default: this machine's processors].
    #[arg(long, value_name = "CLUSTER", requires = "mesh")]
    cluster: Option<String>,
    #[command(flatten)]
    pub standard: StandardFlags,
}

impl TrainArgs {
    /// The configuration's name, for the run's folder.
    fn name(&self) -> String {
        let file = self.standard.config.as_deref().and_then(|path| path.file_stem());
        file.map_or("gpt-tiny".into(), |stem| stem.to_string_lossy().into_owned())
    }

    /// Whether the mesh or the size of micro-batches is only chosen when the run begins.
    pub fn is_planned(&self) -> bool {
        self.mesh.is_some() || self.standard.micro_batch_size == Some(MicroBatchSize::Auto)
    }

    /// The settings from files and flags, before anything that they name is opened.
    pub fn configured(&self) -> anyhow::Result<Config> {
        self.configured_for(self.model.as_deref())
    }

    /// The same for a model given in place of that of `--model`.
    fn configured_for(&self, model: Option<&Path>) -> anyhow::Result<Config> {
        let files = self.standard.config_files()?;
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let mut config = Config::read_with(model, self.lora_rank, &files, &self.standard.sets)?;
        self.standard.apply(&mut config.settings)?;
        config.model.without_weights = self.standard.dry_run;
        if let Some(task) = self.task {
            config.task.name = task;
        }
        if !self.data.is_empty() {
            config.data.sources = self.data.clone();
            config.data.source.clear();
        }
        Ok(config)
    }
}

pub fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    match auto::decide(args).map_err(UsageError)? {
        Some((decided, chosen)) => run_decided(&decided, Some(&chosen)),
        None => run_decided(args, None),
    }
}

fn run_decided(args: &TrainArgs, chosen: Option<&Chosen>) -> anyhow::Result<ExitCode> {
    let config = resolved(args).map_err(UsageError)?;
    let mut described = config.describe().map_err(UsageError)?;
    // What memory it needs is known without weights and text.
    let dry_run = args.standard.dry_run;
    let weights = || described.weights(checks_for_all(&args.standard.world)?);
    let weights = if dry_run { Weights::default() } else { weights().map_err(UsageError)? };
    let has_tokenizer = !matches!(&config.data.tokenizer, TokenizerSpec::File(path) if !path.is_file());
    if !dry_run || has_tokenizer || config.model.resize_embeddings {
        config.fit_vocabulary(&mut described).map_err(UsageError)?;
    }
    match described.model.clone() {
        TaskModel::CausalLm(task) => train((args, chosen), &config, described, &weights, &task),
        TaskModel::MaskedLm(task) => train((args, chosen), &config, described, &weights, &task),
        TaskModel::Classification(task) => train((args, chosen), &config, described, &weights, &task),
        TaskModel::MultiLabel(task) => train((args, chosen), &config, described, &weights, &task),
        TaskModel::Regression(task) => train((args, chosen), &config, described, &weights, &task),
    }
}

/// Trains a model for its task.
fn train<T: TextTask>(
    (args, chosen): (&TrainArgs, Option<&Chosen>),
    config: &Config,
    described: ConfiguredModel,
    weights: &Weights,
    task: &T,
) -> anyhow::Result<ExitCode> {
    let flags = &args.standard;
    config.settings.check_groups(|device| task.model(0, device)).map_err(UsageError)?;
    let (adapters, vocabulary) = (described.model.adapters().clone(), described.model.vocabulary());
    let ConfiguredModel { file, origin, .. } = described;
    let program = Program {
        name: &args.name(),
        flags,
        settings: &config.settings,
        config: brigade::config_to_toml(config)?,
        targets_per_sample: task.sequence_length(),
        costs: task.costs()?,
        streams: StandardStreams::Logged,
        chosen,
    };
    let prepare = |role| {
        // Only one process shows progress; the others find the tokens in the cache.
        let shows = !flags.quiet && matches!(role, Role::Launcher | Role::JoinedRank { rank: 0 });
        let show = if shows { ConsoleMode::Auto } else { ConsoleMode::Quiet };
        if flags.dry_run {
            if let Some(note) = config.task.note_on_labels().filter(|_| !flags.quiet) {
                brigade::print_stderr(format_args!("note: {note}"));
            }
            return Ok(None);
        }
        corpus::prepared(config, vocabulary, show).map(Some)
    };
    Ok(program.run(prepare, |session, prepared| {
        let mut model = task.model(session.seed(), &session.device())?;
        let blank = task.clone();
        let blank = Training::without_data().measured_on(move |rows, device| blank.blank_batch(rows, device));
        session.stop_if_dry_run(&mut model, &blank)?;
        if !weights.is_empty() {
            let mapping = config.for_resized(weights.mapping(task.mapping()));
            let files: Vec<&Path> = weights.files.iter().map(PathBuf::as_path).collect();
            let report = model.load_weights_of(&files, &mapping, Strict::Parameters)?;
            let missing: Vec<_> = report.missing.into_iter().filter(|name| !is_adapter(name)).collect();
            if session.rank() == 0 && !missing.is_empty() && !flags.quiet {
                brigade::print_stderr(format_args!(
                    "note: {} has no weights for {}, which start from new ones",
                    config.model.path.display(),
                    missing.join(", ")
                ));
            }
        }
        let prepared = prepared.context("the data could not be prepared")?;
        // A hash of the text, which may differ from host to host.
        session.check_same("text (or tokenizer)", &prepared.summary.key)?;
        let ends = ends_of_turns(&prepared)?;
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        for source in prepared.sources {
            train.push((task.data(source.train)?, source.weight));
            validation.push((task.data(source.validation)?, source.weight));
        }
        let (train, validation) = (Mixed::new(train), Mixed::new(validation));
        let mut training =
            Training::on(train).mapping(task.mapping()).file(TOKENIZER_FILE, prepared.tokenizer.json());
        let counts = config.settings.parameter_counts(|device| task.model(0, device))?;
        if let Some(flops) = task.flops_per_target(&counts) {
            training = training.flops_per_target(flops);
        }
        for (name, metric) in task.derived_metrics() {
            training = training.derived_metric(name, metric);
        }
        let (from, file) = (config.files_from(), file.clone());
        let mut file = match config.model.takes_special_tokens() {
            true => with_special_tokens(file, &prepared.tokenizer)?,
            false => file,
        };
        let has_new_ends = file.add_ends(&ends);
        let is_new_decoder = config.model.is_new() && matches!(file.config, brigade_hf::Config::Decoder(_));
        let tokenizer = is_new_decoder.then_some(&prepared.tokenizer);
        let about = adapters.is_empty().then_some(&file);
        let generation = file.generation.as_ref().filter(|_| about.is_some() || has_new_ends);
        for (name, content) in folder_files(&from, (about, generation), tokenizer, config.data.template())? {
            // Beside adapters there is no config.json, which may be what names the tokenizer's class.
            let named = (about.is_none() && name == TOKENIZER_CONFIG_FILE)
                .then(|| with_tokenizer_class(&content, &from))
                .flatten();
            training = training.file(name, named.unwrap_or(content));
        }
        if let Some(origin) = origin.as_ref().filter(|_| !adapters.is_empty()) {
            let task = file.task.unwrap_or(Task::CausalLanguageModel);
            training = training
                .adapters_only(&adapters)
                .file(ADAPTERS_CONFIG_FILE, adapters_config(&adapters, origin, task)?);
            if task == Task::SequenceClassification {
                let labels = serde_json::to_vec_pretty(&file.label_fields()).context("cannot write JSON")?;
                training = training.file(ADAPTERS_LABELS_FILE, labels);
            }
        }
        if !validation.is_empty() {
            training = training.validate(validation);
        }
        session.train(model, training)?;
        Ok(())
    }))
}

fn resolved(args: &TrainArgs) -> anyhow::Result<Config> {
    let mut config = args.configured()?;
    if hub_name(&config.model.path).is_some() {
        // Adapters on the hub say in their folder what they are.
        let folder = config.model.find()(&config.model.path)?;
        config = args.configured_for(Some(&folder))?;
    }
    config.resolve()?;
    config.model.check_out(&config.settings.output.folder()?)?;
    Ok(config)
}

/// What a tokenizer's special tokens are.
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// A new model's file with the special tokens of its tokenizer.
fn with_special_tokens(mut file: ConfigFile, tokenizer: &Tokenizer) -> anyhow::Result<ConfigFile> {
    match &mut file.config {
        brigade_hf::Config::Decoder(config) => {
            let (bos, end) = (beginning(tokenizer)?, tokenizer.end_of_text());
            config.tokens = SpecialTokens { bos: Some(bos), eos: vec![end], pad: None };
            file.generation = Some(GenerationConfig::of_tokens(config.tokens.clone()));
        }
        brigade_hf::Config::Encoder(config) => {
            let Some(padding) = tokenizer.padding_token() else { return Ok(file) };
            if config.position_offset > 0 && config.tokens.pad != Some(padding) {
                let allowed = format!(
                    "the tokenizer's padding token is {padding}, and this family counts positions from it; set model.config.pad_token_id = {padding}"
                );
                let given = config.tokens.pad.map_or_else(|| "none".to_owned(), |id| id.to_string());
                return Err(
                    SettingError::Value { option: "model.config.pad_token_id", given, allowed }.into()
                );
            }
            config.tokens.pad = Some(padding);
        }
    }
    Ok(file)
}

/// The special tokens that end what the assistant says in chats, or completions.
fn ends_of_turns(prepared: &PreparedData) -> anyhow::Result<Vec<u32>> {
    let special = prepared.tokenizer.special_tokens();
    let mut ends = Vec::new();
    for source in &prepared.sources {
        ends.extend(source.train.tokens().ends_of_learned()?);
    }
    ends.retain(|end| special.contains(end));
    Ok(ends)
}

/// What stands before a text: where nothing else does, the end of the one before.
fn beginning(tokenizer: &Tokenizer) -> anyhow::Result<u32> {
    Ok(tokenizer.beginning()?.first().copied().unwrap_or(tokenizer.end_of_text()))
}

/// The remaining files of the run's folder, so that other programs can load the model from it. `file`: none for adapters, because `transformers` would take a
/// configuration beside them for that of a whole model. `tokenizer`: that of a new model, which may have no file about it; `template`: that of chats, in place
/// of those of the folder.
fn folder_files(
    from: &Path,
    (file, generation): (Option<&ConfigFile>, Option<&GenerationConfig>),
    tokenizer: Option<&Tokenizer>,
    template: Option<&Path>,
) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let json = |fields| serde_json::to_vec_pretty(&fields).context("cannot write JSON");
    let mut files = Vec::new();
    if let Some(file) = file {
        files.push(("config.json".to_owned(), json(file.to_fields()?)?));
    }
    if let Some(generation) = generation {
        files.push(("generation_config.json".to_owned(), json(generation.to_fields())?));
    }
    let companions = match from == Path::new("") {
        true => Vec::new(),
        false => tokenizer_companions(from)?,
    };
    for name in companions.into_iter().filter(|name| template.is_none() || !name.ends_with(".jinja")) {
        match std::fs::read(from.join(&name)) {
            // A template in it would be another one than that of the file beside it.
            Ok(content) if template.is_some() && name.ends_with(".json") => {
                let content = without_template(&content).unwrap_or(content);
                files.push((name, content));
            }
            Ok(content) => files.push((name, content)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| from.join(&name).display().to_string()),
        }
    }
    if let Some(template) = template {
        let content = std::fs::read(template).with_context(|| template.display().to_string())?;
        files.push((TEMPLATE_FILE.to_owned(), content));
    }
    let has_one = files.iter().any(|(name, _)| name == TOKENIZER_CONFIG_FILE);
    if let (Some(tokenizer), false) = (tokenizer, has_one) {
        files.push((TOKENIZER_CONFIG_FILE.to_owned(), json(tokenizer_fields(tokenizer)?)?));
    }
    Ok(files)
}

/// A `tokenizer_config.json` with the class that the model's `config.json` names; none if it has one, or there is none.
fn with_tokenizer_class(content: &[u8], model: &Path) -> Option<Vec<u8>> {
    let mut fields: Map<String, Value> = serde_json::from_slice(content).ok()?;
    if fields.get("tokenizer_class").is_some_and(Value::is_string) {
        return None;
    }
    let config: Value = serde_json::from_slice(&std::fs::read(model.join("config.json")).ok()?).ok()?;
    let class = match config.get("tokenizer_class").and_then(Value::as_str) {
        Some(class) => class,
        None if config.get("model_type")? == "bert" => "BertTokenizer",
        None => return None,
    };
    fields.insert("tokenizer_class".to_owned(), class.into());
    serde_json::to_vec_pretty(&fields).ok()
}

/// A file of JSON without its chat template; none if it has none.
fn without_template(content: &[u8]) -> Option<Vec<u8>> {
    let mut fields: Map<String, Value> = serde_json::from_slice(content).ok()?;
    fields.remove("chat_template")?;
    serde_json::to_vec_pretty(&fields).ok()
}

/// What `transformers` needs to know about a tokenizer besides its `tokenizer.json`.
fn tokenizer_fields(tokenizer: &Tokenizer) -> anyhow::Result<Map<String, Value>> {
    let end = tokenizer.decode(&[tokenizer.end_of_text()])?;
    let beginning = tokenizer.decode(&[beginning(tokenizer)?])?;
    let fields = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": beginning,
        "eos_token": end,
        "clean_up_tokenization_spaces": false,
    });
    Ok(fields.as_object().cloned().unwrap_or_default())
}
