//! `brigade plan --model … --cluster …`: which configurations fit, and which is fastest.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use brigade::core::compress::Method;
use brigade::plan::cluster::{Cluster, Dtype};
use brigade::plan::memory::Accounting;
use brigade::plan::model::is_only_for_plans;
use brigade::plan::report::{
    self, FailureForecast, NamedModel, command, config, explain, failures, render, render_what_if, what_if,
};
use brigade::plan::search::{Plan, PlanError, PlanEvaluation, Workload, plan};
use brigade::plan::time::PlannedAlgorithm;
use brigade::{UsageError, exit, parse_whole_number};
use clap::Args;
use serde_json::json;

use super::axes::AxisArgs;
use super::configured::{
    ONLY_PLANNED, accounting, changed_settings, dtype, kept_bytes, partly_trained, reduce_bytes, restrict,
    trained, unplanned, untrained_note, with_adapters,
};
use super::model_file::{config_in, length_in, number_in, shape, table_in};
use super::{calibrate, calibrate_from, parse};
use crate::config::Config;
use crate::model_files::model_folder::{configuration_folder, hub_name};
use crate::output::print;

/// What stands in a command for a model that is in no file that training reads.
const FOLDER: &str = "FOLDER";

/// Tokens per sequence unless the flag or the model's file says otherwise, or the model has fewer positions.
const SEQUENCE_LENGTH: usize = 4096;

/// Tokens per step unless a flag or the model's file says otherwise.
const BATCH_TOKENS: usize = 1 << 20;

/// Bytes of AdamW's state per parameter.
const ADAMW_BYTES: u64 = 8;

/// More optimizer state per parameter than any optimizer has.
const MAX_OPTIMIZER_BYTES: u64 = 1024;

#[derive(Debug, Args)]
pub struct ConfigurationArgs {
    /// Model: a folder or a config.json as Hugging Face's libraries write it, organization/name on the hub, or a TOML file with a section [model].
    #[arg(long, value_name = "MODEL", required_unless_present_any = ["calibrate", "calibrate_from"])]
    model: Option<PathBuf>,
    /// Rank of adapters (LoRA), which are then all that is trained [default: as in a TOML, else none].
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    lora_rank: Option<usize>,
    /// Cluster: NODESxDEVICESxKIND, as in 2x8xH100-80GB, or a TOML file [default: this machine, as --calibrate measured
    /// it].
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Tokens per step, over all ranks; K, M and G are powers of 1024 [default: the batch of a TOML that sets it, else 1M].
    #[arg(long, value_name = "N", value_parser = parse::tokens, conflicts_with = "global_batch_size")]
    global_batch_tokens: Option<usize>,
    /// Sequences per step, over all ranks, instead of tokens.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    global_batch_size: Option<usize>,
    /// Tokens per sequence [default: model.sequence_length of a TOML that sets it, else 4096, or the model's limit if lower].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    sequence_length: Option<usize>,
    /// Number type of forward and backward: bf16, fp32, or fp16, which Brigade does not train in [default: as in a TOML that says it, else bf16 where the device has it, else fp32].
    #[arg(long, value_name = "TYPE", value_parser = parse::dtype)]
    dtype: Option<Dtype>,
    /// Number type in which gradients are summed over ranks, uncompressed: fp32 or bf16 [default: as in a TOML, with its compression, else fp32].
    #[arg(long, value_name = "TYPE", value_parser = parse::reduce_dtype)]
    reduce_dtype: Option<Dtype>,
    /// Bytes of optimizer state per parameter; AdamW has 8 [default: those of a TOML's optimizer, else 8].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    optimizer_bytes: Option<u64>,
    /// What is held per parameter: brigade, or the counts of mixed-adam (2 + 2 + 12 bytes), megatron (2 + 4 + 12) or separate-sums (2 + 2 + 4 + 12).
    #[arg(long, value_name = "NAME", default_value = "brigade")]
    accounting: String,
    /// Algorithm of collectives: auto, ring, tree, hierarchical, flat (every rank with every other) or halving.
    #[arg(long, value_name = "NAME", value_parser = parse::algorithm, default_value = "auto")]
    algorithm: PlannedAlgorithm,
    /// Attention saves its scores for the backward.
    #[arg(long)]
    unfused_attention: bool,
    /// Gathers and reductions are not overlapped with computation.
    #[arg(long)]
    no_overlap: bool,
    /// A rank that is slower than others, as in 3=1.3; can be given several times.
    #[arg(long, value_name = "RANK=TIMES", value_parser = parse::slow_rank)]
    slow_rank: Vec<(usize, f64)>,
    /// Hours between failures of a node; 0 for none [default: the cluster's].
    #[arg(long, value_name = "HOURS", allow_negative_numbers = true)]
    node_mtbf_hours: Option<f64>,
    /// Also show what failures cost with a checkpoint every this many steps, beside the best interval.
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    checkpoint_every: Option<u64>,
    /// How many configurations to print.
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true, value_parser = parse::at_least_1)]
    top: usize,
    /// Also show the formulas behind the first one, with its numbers.
    #[arg(long)]
    explain: bool,
    /// Also compare other collectives, fewer bytes, other shards and larger batches for the first one.
    #[arg(long)]
    what_if: bool,
    /// Measure how fast this machine's cores multiply, copy and pass messages, and save it for plans without --cluster.
    #[arg(long, conflicts_with_all = ["cluster", "json"])]
    calibrate: bool,
    /// Learn from the metrics of a run how fast its devices and links are, and save it for plans without --cluster; --cluster says what it ran on, if not this machine.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["calibrate", "json"])]
    calibrate_from: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print only the first configuration, as a TOML for `brigade train --config`: the model's own TOML with what was planned, or its folder in model.path.
    #[arg(long, conflicts_with_all = ["json", "explain", "what_if"])]
    toml: bool,
    /// Last, as its heading would be that of all flags after it.
    #[command(flatten)]
    axes: AxisArgs,
}

pub fn run(args: &ConfigurationArgs) -> anyhow::Result<ExitCode> {
    if args.calibrate {
        calibrate::run()?;
        if args.model.is_none() {
            return Ok(ExitCode::from(exit::DONE));
        }
    }
    if let Some(run) = &args.calibrate_from {
        calibrate_from::run(run, args.cluster.as_deref()).map_err(UsageError)?;
        if args.model.is_none() {
            return Ok(ExitCode::from(exit::DONE));
        }
    }
    let planned = planned(args).map_err(UsageError)?;
    let (workload, axes) = (&planned.workload, args.axes.axes());
    let settings = planned.config.as_ref().map(|config| &config.settings);
    let axes = match settings {
        Some(settings) => restrict(axes, settings),
        None => axes,
    };
    let mut plan = plan(workload, &axes, args.top).map_err(|error| UsageError(error.into()))?;
    if let Some(settings) = settings {
        plan.best.iter_mut().for_each(|best| best.candidate = trained(best.candidate, settings));
    }
    let text = match (args.json, args.toml) {
        (true, _) => json(args, &planned, &plan)?,
        (_, true) => toml(args, &planned, &plan)?,
        _ => text(args, &planned, &plan)?,
    };
    print(&text)?;
    let fits = !plan.best.is_empty() || plan.advice.is_none() && !plan.tensor_parallel.is_empty();
    Ok(ExitCode::from(if fits { exit::DONE } else { exit::FAILED }))
}

/// What to plan, how the command names its model, and the settings that count, if a file of them describes it, with what stands in the file.
struct Planned {
    workload: Workload,
    model: NamedModel,
    config: Option<Config>,
    file: toml::Table,
}

fn planned(args: &ConfigurationArgs) -> anyhow::Result<Planned> {
    let given = args.model.as_deref().context("--model is needed")?;
    if !given.exists() && hub_name(given).is_none() {
        anyhow::bail!("--model {}: neither a folder, a file nor organization/name", given.display());
    }
    let path = if given.exists() { given.to_owned() } else { configuration_folder(given)? };
    let (mut config, file) = (config_in(&path), table_in(&path));
    if let Some(other) = config.as_ref().and_then(|config| unplanned(&config.settings)) {
        anyhow::bail!(
            "--model {}: {other}, but {ONLY_PLANNED}; plan with strategy.name = sync and train.sync_every = 1",
            given.display()
        );
    }
    let mut model = shape(&path, config.as_ref())?;
    let cluster = match &args.cluster {
        Some(given) => Cluster::read(given)?,
        None => calibrate::own_cluster()?,
    };
    let most = if model.most_positions == 0 { SEQUENCE_LENGTH } else { model.most_positions };
    let of_file = length_in(&file, config.as_ref());
    let sequence_length = args.sequence_length.or(of_file).unwrap_or(SEQUENCE_LENGTH.min(most));
    if config.as_ref().is_some_and(|Config { model, .. }| model.is_new() && model.config.is_empty()) {
        // A new GPT has as many positions as training is told.
        model = model.with_positions(sequence_length);
        config.iter_mut().for_each(|config| config.model.shape.sequence_length = sequence_length);
    }
    let model = match (args.lora_rank, &config) {
        (Some(rank), _) => with_adapters(model, &path, config.as_ref(), rank)?,
        (None, Some(config)) => partly_trained(model, config),
        (None, None) => model,
    };
    // At least as many tokens as were asked for.
    let sequences = |tokens: usize| tokens.div_ceil(sequence_length.max(1));
    let of_file = || config.as_ref().and_then(|_| number_in(&file, "train", "global_batch_size"));
    let asked = args.global_batch_size.or_else(|| args.global_batch_tokens.map(sequences)).or_else(of_file);
    let batch = asked.unwrap_or_else(|| sequences(BATCH_TOKENS));
    let mut workload = Workload::new(model, cluster, sequence_length, batch);
    if let Some(config) = &config {
        workload.dtype = dtype(config.settings.compute.dtype, &workload.cluster);
    }
    workload.dtype = args.dtype.unwrap_or(workload.dtype);
    let optimizer_bytes = match (args.optimizer_bytes, &config) {
        (Some(given), _) if given > MAX_OPTIMIZER_BYTES => {
            let allowed = format!("it must be at most {MAX_OPTIMIZER_BYTES}");
            let (option, given) = ("--optimizer-bytes", given.to_string());
            return Err(PlanError::Setting { option, given, allowed }.into());
        }
        (Some(given), _) => given,
        (None, Some(config)) => accounting(&config.settings, workload.dtype)?.moments,
        (None, None) => ADAMW_BYTES,
    };
    let named = Accounting::named(&args.accounting, workload.dtype, optimizer_bytes);
    workload.accounting = named.ok_or_else(|| PlanError::Setting {
        option: "--accounting",
        given: args.accounting.clone(),
        allowed: format!("it must be {}", Accounting::NAMES.join(", ")),
    })?;
    let changed = config.as_ref().map(|config| changed_settings(&config.settings)).unwrap_or_default();
    if let (Some(_), Some(config)) = (args.reduce_dtype, &mut config) {
        config.settings.comm.compress = Method::None;
    }
    workload.reduce_bytes = match (args.reduce_dtype, &config) {
        (Some(given), _) => given.bytes() as f64,
        (None, Some(config)) => {
            config.settings.comm.check_compression()?;
            reduce_bytes(&config.settings, workload.model.hidden)
        }
        (None, None) => Dtype::F32.bytes() as f64,
    };
    if let Some(config) = &config {
        workload.kept_bytes = kept_bytes(&config.settings, workload.model.hidden);
    }
    workload.fused_attention = !args.unfused_attention;
    workload.overlap = !args.no_overlap;
    workload.algorithm = args.algorithm;
    workload.slow_ranks = args.slow_rank.clone();
    if let Some(hours) = args.node_mtbf_hours {
        let allowed = "it must be a number of hours, at least 0";
        anyhow::ensure!(
            hours.is_finite() && hours >= 0.0,
            "--node-mtbf-hours = {hours} is not possible: {allowed}"
        );
        workload.cluster.node_mtbf_hours = hours;
    }
    if args.checkpoint_every == Some(0) {
        anyhow::bail!("--checkpoint-every = 0 is not possible: it must be at least 1 step");
    }
    let model = match is_only_for_plans(&path) {
        true => FOLDER.into(),
        false => NamedModel {
            name: given.display().to_string(),
            settings: changed,
            lora_rank: args.lora_rank,
            is_compressed: config
                .as_ref()
                .is_some_and(|config| config.settings.comm.compress != Method::None),
        },
    };
    Ok(Planned { workload, model, config, file })
}

/// The first configuration as a file.
fn toml(args: &ConfigurationArgs, planned: &Planned, plan: &Plan) -> anyhow::Result<String> {
    let Planned { workload, model, file, .. } = planned;
    let best =
        plan.best.first().context("--toml: nothing fits; without it, the plan says what is missing")?;
    let settings = config(workload, best, model, file.clone())
        .context("--toml: Brigade does not train in fp16; give --dtype bf16 or fp32")?;
    let notes: String = notes(args, planned, plan).iter().map(|note| format!("# note: {note}\n")).collect();
    Ok(format!("# {}\n{notes}{settings}", best.candidate.label()))
}

fn text(args: &ConfigurationArgs, planned: &Planned, plan: &Plan) -> anyhow::Result<String> {
    let Planned { workload, model, .. } = planned;
    let mut text = render(workload, plan, model);
    own_notes(args, planned, plan).iter().for_each(|note| text.push_str(&format!("\n{note}\n")));
    let Some(best) = plan.best.first() else { return Ok(text) };
    if let Some(report) = with_checkpoints(args, workload, best) {
        text.push_str(&format!("\n{}\n", report.text()));
    }
    if args.explain {
        text.push_str(&format!("\n{}", explain(workload, best)?));
    }
    if args.what_if {
        let changes = what_if(workload, &best.candidate)?;
        text.push_str(&format!("\nWhat if, for the first:\n{}", render_what_if(&changes)));
    }
    Ok(text)
}

/// What is to be known of the plan.
fn notes(args: &ConfigurationArgs, planned: &Planned, plan: &Plan) -> Vec<String> {
    [report::notes(&planned.workload), own_notes(args, planned, plan)].concat()
}

/// Those of the notes that follow from the flags and from the settings of the model's file.
fn own_notes(args: &ConfigurationArgs, planned: &Planned, plan: &Plan) -> Vec<String> {
    let Planned { workload, model, config, .. } = planned;
    let (sequences, length) = (workload.global_batch, workload.sequence_length);
    let batch = args.global_batch_tokens.filter(|asked| *asked != sequences * length).map(|asked| {
        format!(
            "--global-batch-tokens {asked} is not a multiple of the sequence length: planned for {sequences} x {length} = {} tokens",
            sequences * length
        )
    });
    let folder = args.model.as_ref().filter(|_| model.name == FOLDER && !plan.best.is_empty()).map(|given| {
        format!(
            "replace {FOLDER} with a folder whose config.json describes this model; training cannot read {}",
            given.display()
        )
    });
    [note(config.as_ref(), workload), batch, folder].into_iter().flatten().collect()
}

/// That more is counted as trained than is.
fn note(config: Option<&Config>, workload: &Workload) -> Option<String> {
    untrained_note(config?, &workload.model)
}

/// What failures cost with the requested interval.
fn with_checkpoints(
    args: &ConfigurationArgs,
    workload: &Workload,
    best: &PlanEvaluation,
) -> Option<FailureForecast> {
    let interval = args.checkpoint_every? as f64 * best.seconds;
    failures(workload, best, Some(interval))
}

fn json(args: &ConfigurationArgs, planned: &Planned, plan: &Plan) -> anyhow::Result<String> {
    let Planned { workload, model, config, .. } = planned;
    let best = plan.best.first();
    let commands: Vec<Option<String>> = plan.best.iter().map(|best| command(workload, best, model)).collect();
    let changes = match best.filter(|_| args.what_if) {
        Some(best) => Some(what_if(workload, &best.candidate)?),
        None => None,
    };
    let explanation = match best.filter(|_| args.explain) {
        Some(best) => Some(explain(workload, best)?),
        None => None,
    };
    let value = json!({
        "model": workload.model,
        "parameters": workload.model.parameters(),
        "cluster": workload.cluster,
        "sequence_length": workload.sequence_length,
        "global_batch": workload.global_batch,
        "dtype": workload.dtype,
        "note": note(config.as_ref(), workload),
        "notes": notes(args, planned, plan),
        "plan": plan,
        "commands": commands,
        "failures": best.and_then(|best| failures(workload, best, None)),
        "failures_as_asked": best.and_then(|best| with_checkpoints(args, workload, best)),
        "what_if": changes,
        "explanation": explanation,
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&value).context("cannot write JSON")?))
}
