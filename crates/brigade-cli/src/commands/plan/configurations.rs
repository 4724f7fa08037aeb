//! `brigade plan --model … --cluster …`: which configurations fit, and which is fastest.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use brigade::plan::PipelineScheduleKind;
use brigade::plan::cluster::{Cluster, Dtype};
use brigade::plan::memory::Accounting;
use brigade::plan::model::{ModelShape, is_only_for_plans};
use brigade::plan::report::{
    FailureForecast, NamedModel, command, explain, failures, render, render_what_if, what_if,
};
use brigade::plan::search::{Axes, Plan, PlanError, PlanEvaluation, TensorParallelSearch, Workload, plan};
use brigade::plan::time::PlannedAlgorithm;
use brigade::{UsageError, exit, parse_whole_number};
use clap::Args;
use serde_json::json;

use super::configured::changed_settings;
use super::{calibrate, calibrate_from, parse};
use crate::config::Config;
use crate::model_files::model_folder::{configuration_folder, hub_name};
use crate::output::print;

/// What stands in a command for a model that is in no file that training reads.
const FOLDER: &str = "FOLDER";

/// Tokens per sequence unless the flag or the model says fewer.
const SEQUENCE_LENGTH: usize = 4096;

/// More optimizer state per parameter than any optimizer has.
const MAX_OPTIMIZER_BYTES: u64 = 1024;

#[derive(Debug, Args)]
pub struct ConfigurationArgs {
    /// Model: a folder or a config.json as Hugging Face's libraries write it, organization/name on the hub, or a TOML file with a section [model].
    #[arg(long, value_name = "MODEL", required_unless_present_any = ["calibrate", "calibrate_from"])]
    model: Option<PathBuf>,
    /// Cluster: NODESxDEVICESxKIND, as in 2x8xH100-80GB, or a TOML file [default: this machine, as --calibrate measured
    /// it].
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Tokens per step, over all ranks; K, M and G are powers of 1024 [default: 1M].
    #[arg(long, value_name = "N", value_parser = parse::tokens, conflicts_with = "global_batch_size")]
    global_batch_tokens: Option<usize>,
    /// Sequences per step, over all ranks, instead of tokens.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    global_batch_size: Option<usize>,
    /// Tokens per sequence [default: 4096, or the model's limit if lower].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    sequence_length: Option<usize>,
    /// Number type of forward and backward: bf16, f32, or fp16, which Brigade does not train in [default: bf16 where the device has it, else f32].
    #[arg(long, value_name = "TYPE", value_parser = parse::dtype)]
    dtype: Option<Dtype>,
    /// Number type in which gradients are summed over ranks: f32 or bf16.
    #[arg(long, value_name = "TYPE", value_parser = parse::reduce_dtype, default_value = "f32")]
    reduce_dtype: Dtype,
    /// Bytes of optimizer state per parameter; AdamW has 8.
    #[arg(long, value_name = "N", default_value_t = 8, allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    optimizer_bytes: u64,
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
    /// Last, as its heading would be that of all flags after it.
    #[command(flatten)]
    axes: AxisArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Axes: only these values, separated by commas [default: all]")]
struct AxisArgs {
    /// Tensor-parallel ranks, which are not built yet: shows what they would bring.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    tp: Vec<usize>,
    /// Pipeline stages.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    pp: Vec<usize>,
    /// Stages of ZeRO.
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = parse::zero)]
    zero: Vec<u8>,
    /// Replicas of what ZeRO shards [default: 1, and the numbers that keep shards on 1, 2, 4 or 8 whole
    /// nodes].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    replicate: Vec<usize>,
    /// Pipeline schedules.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    schedule: Vec<PipelineScheduleKind>,
    /// Chunks of interleaved schedules, from 2 on [default: 2, 3, 4, 6 and 8].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::chunks)]
    chunks: Vec<usize>,
    /// Sequences per micro-batch.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse::at_least_1)]
    micro_batch_size: Vec<usize>,
    /// Blocks to recompute: none, every-K or all [default: none, every-2 and all].
    #[arg(long, value_name = "WHICH", value_delimiter = ',', value_parser = parse::recompute)]
    recompute: Vec<usize>,
    /// Keep the optimizer's state on the device.
    #[arg(long)]
    no_offload: bool,
}

impl AxisArgs {
    fn axes(&self) -> Axes {
        Axes {
            tp: self.tp.clone(),
            tensor: TensorParallelSearch::Compared,
            pp: self.pp.clone(),
            zero: self.zero.clone(),
            replicate: self.replicate.clone(),
            schedules: self.schedule.clone(),
            chunks: self.chunks.clone(),
            micro_batches: self.micro_batch_size.clone(),
            recompute: self.recompute.clone(),
            offload: !self.no_offload,
        }
    }
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
    let (workload, model) = workload(args).map_err(UsageError)?;
    let plan = plan(&workload, &args.axes.axes(), args.top).map_err(|error| UsageError(error.into()))?;
    let text =
        if args.json { json(args, &workload, &plan, &model)? } else { text(args, &workload, &plan, &model)? };
    print(&text)?;
    let fits = !plan.best.is_empty() || plan.advice.is_none() && !plan.tensor_parallel.is_empty();
    Ok(ExitCode::from(if fits { exit::DONE } else { exit::FAILED }))
}

/// What to plan, and how the command names its model.
fn workload(args: &ConfigurationArgs) -> anyhow::Result<(Workload, NamedModel)> {
    let given = args.model.as_deref().context("--model is needed")?;
    if !given.exists() && hub_name(given).is_none() {
        anyhow::bail!("--model {}: neither a folder, a file nor organization/name", given.display());
    }
    let path = if given.exists() { given.to_owned() } else { configuration_folder(given)? };
    let model = ModelShape::read(&path)?;
    let cluster = match &args.cluster {
        Some(given) => Cluster::read(given)?,
        None => {
            let file = calibrate::cluster_file()?;
            let hint = "give --cluster, as in 2x8xH100-80GB, or run --calibrate to measure this machine";
            anyhow::ensure!(file.is_file(), "there is no --cluster and no {}: {hint}", file.display());
            Cluster::read_file(&file)?
        }
    };
    let most = if model.most_positions == 0 { SEQUENCE_LENGTH } else { model.most_positions };
    let sequence_length = args.sequence_length.unwrap_or(SEQUENCE_LENGTH.min(most));
    let tokens = args.global_batch_tokens.unwrap_or(1 << 20);
    // At least as many tokens as were asked for.
    let sequences = args.global_batch_size.unwrap_or(tokens.div_ceil(sequence_length.max(1)));
    let mut workload = Workload::new(model, cluster, sequence_length, sequences);
    workload.dtype = args.dtype.unwrap_or(workload.dtype);
    if args.optimizer_bytes > MAX_OPTIMIZER_BYTES {
        let allowed = format!("it must be at most {MAX_OPTIMIZER_BYTES}");
        let (option, given) = ("--optimizer-bytes", args.optimizer_bytes.to_string());
        return Err(PlanError::Setting { option, given, allowed }.into());
    }
    let accounting = Accounting::named(&args.accounting, workload.dtype, args.optimizer_bytes);
    workload.accounting = accounting.ok_or_else(|| PlanError::Setting {
        option: "--accounting",
        given: args.accounting.clone(),
        allowed: format!("it must be {}", Accounting::NAMES.join(", ")),
    })?;
    workload.reduce_bytes = args.reduce_dtype.bytes() as f64;
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
        false => NamedModel { name: given.display().to_string(), settings: settings_in(&path) },
    };
    Ok((workload, model))
}

/// The settings that a TOML changes; none of a folder or a config.json, nor of what training refuses to read.
fn settings_in(path: &Path) -> Vec<String> {
    let is_toml = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml"));
    let config = is_toml.then(|| Config::read(&[path], &[]).ok()).flatten();
    config.map(|config| changed_settings(&config.settings)).unwrap_or_default()
}

fn text(
    args: &ConfigurationArgs,
    workload: &Workload,
    plan: &Plan,
    model: &NamedModel,
) -> anyhow::Result<String> {
    let mut text = render(workload, plan, model);
    let (sequences, length) = (workload.global_batch, workload.sequence_length);
    if let Some(asked) = args.global_batch_tokens.filter(|asked| *asked != sequences * length) {
        text.push_str(&format!(
            "\n--global-batch-tokens {asked} is not a multiple of the sequence length: planned for {sequences} x {length} = {} tokens\n",
            sequences * length
        ));
    }
    let Some(best) = plan.best.first() else { return Ok(text) };
    if let (FOLDER, Some(given)) = (model.name.as_str(), &args.model) {
        text.push_str(&format!(
            "\nreplace {FOLDER} with a folder whose config.json describes this model; training cannot read {}\n",
            given.display()
        ));
    }
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

/// What failures cost with the requested interval.
fn with_checkpoints(
    args: &ConfigurationArgs,
    workload: &Workload,
    best: &PlanEvaluation,
) -> Option<FailureForecast> {
    let interval = args.checkpoint_every? as f64 * best.seconds;
    failures(workload, best, Some(interval))
}

fn json(
    args: &ConfigurationArgs,
    workload: &Workload,
    plan: &Plan,
    model: &NamedModel,
) -> anyhow::Result<String> {
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
        "plan": plan,
        "commands": commands,
        "failures": best.and_then(|best| failures(workload, best, None)),
        "failures_as_asked": best.and_then(|best| with_checkpoints(args, workload, best)),
        "what_if": changes,
        "explanation": explanation,
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&value).context("cannot write JSON")?))
}
