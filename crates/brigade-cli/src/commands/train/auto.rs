//! What a command line leaves open: `--mesh auto` and `--micro-batch-size auto`.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context, bail};
use brigade::command_line::{Choice, Chosen, ElasticArgs, earlier_choice, has_option, without};
use brigade::launcher::StandardStreams;
use brigade::plan::cluster::Dtype;
use brigade::plan::model::ModelShape;
use brigade::plan::report::render;
use brigade::plan::search::{Axes, Plan, TensorParallelSearch, Workload, plan};
use brigade::report::{HumanBytes, HumanCount, counted};
use brigade::{MicroBatchSize, Program, Ranks, SettingError, Settings};
use clap::{Args, Command, FromArgMatches};

use super::auto_cluster::cluster;
use super::{TrainArgs, resolved};
use crate::commands::plan::configured::{
    ONLY_PLANNED, accounting, changed_settings, kept_bytes, reduce_bytes, restrict, trained, trained_counts,
    unplanned,
};
use crate::config::Config;

/// `auto`, the only value of `--mesh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MeshChoice {
    /// The planner's first choice.
    Auto,
}

/// The arguments with everything decided, and what was chosen; none if nothing was left open.
///
/// # Errors
/// If nothing fits, or no choice can be made here.
pub fn decide(args: &TrainArgs) -> anyhow::Result<Option<(TrainArgs, Chosen)>> {
    let tries_sizes = args.standard.micro_batch_size == Some(MicroBatchSize::Auto);
    if args.mesh.is_none() && !tries_sizes {
        return Ok(None);
    }
    let config = resolved(args)?;
    let ranks = ranks(args, &config.settings, tries_sizes)?;
    let line: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut chosen = Chosen { args: line, record: Choice::default(), elastic_args: None };
    let mut start = config.settings.train.micro_batch_size;
    if args.mesh.is_some() {
        let mesh = choose_mesh(args, &config, &ranks, tries_sizes)?;
        if !args.standard.quiet && ranks.is_launcher {
            brigade::print_stderr(format_args!("--mesh auto: {}", mesh.reason));
        }
        let mut line = without(&chosen.args, &["--mesh", "--cluster"], &[]);
        if !has_option(&line, "--nproc-per-node") {
            line.extend(["--nproc-per-node".into(), ranks.per_node.to_string().into()]);
        }
        let elastic_args = elastic_args(args, &config, &ranks, &line);
        line.extend(mesh.flags.iter().map(OsString::from));
        start = mesh.micro_batch.unwrap_or(start);
        let record =
            Choice { ranks: ranks.world(), mesh: mesh.flags, mesh_reason: mesh.reason, ..Choice::default() };
        chosen = Chosen { args: line, record, elastic_args: Some(elastic_args) };
    }
    let parsed = parse(&chosen.args)?;
    let mut settings = resolved(&parsed)?.settings;
    settings.train.micro_batch_size = start;
    let chosen = parsed.standard.choose_micro_batch(chosen, &settings, &ranks)?;
    Ok(Some((parse(&chosen.args)?, chosen)))
}

/// The arguments of `brigade train`, beginning with `train` itself.
fn parse(line: &[OsString]) -> anyhow::Result<TrainArgs> {
    let matches = TrainArgs::augment_args(Command::new("train")).try_get_matches_from(line)?;
    Ok(TrainArgs::from_arg_matches(&matches)?)
}

/// The ranks of the run. Their number does not depend on the micro-batch size, which may still be open.
fn ranks(args: &TrainArgs, settings: &Settings, tries_sizes: bool) -> anyhow::Result<Ranks> {
    let mut settings = settings.clone();
    if tries_sizes {
        settings.train.micro_batch_size = 1;
    }
    let program = Program {
        name: "",
        flags: &args.standard,
        settings: &settings,
        config: String::new(),
        targets_per_sample: 1,
        costs: Vec::new(),
        streams: StandardStreams::Logged,
        chosen: None,
    };
    program.ranks()
}

/// How a mesh is chosen for other numbers of nodes, whose ranks get these additional arguments.
fn elastic_args(args: &TrainArgs, config: &Config, ranks: &Ranks, line: &[OsString]) -> ElasticArgs {
    let (args, config, ranks) = (args.clone(), config.clone(), *ranks);
    let flags = move |nodes| {
        let mesh = choose_mesh(&args, &config, &Ranks { nodes, ..ranks }, false);
        mesh.map(|mesh| mesh.flags).map_err(|error| format!("{error:#}"))
    };
    ElasticArgs { args: line.to_vec(), flags: Arc::new(flags) }
}

/// A mesh that was chosen.
struct ChosenMesh {
    flags: Vec<String>,
    reason: String,
    micro_batch: Option<usize>,
}

fn choose_mesh(
    args: &TrainArgs,
    config: &Config,
    ranks: &Ranks,
    tries_sizes: bool,
) -> anyhow::Result<ChosenMesh> {
    let earlier = earlier_choice(&args.standard, &config.settings);
    if let Some(earlier) =
        earlier.filter(|earlier| earlier.ranks == ranks.world() && !earlier.mesh.is_empty())
    {
        let reason = format!("{}, as before the run was resumed", earlier.mesh.join(" "));
        return Ok(ChosenMesh { flags: earlier.mesh, reason, micro_batch: None });
    }
    if let Some(other) = unplanned(&config.settings) {
        return Err(SettingError::Value {
            option: "--mesh",
            given: "auto".into(),
            allowed: format!(
                "{other}, but {ONLY_PLANNED}; give --pp, --dp and --workers, or --strategy sync and --sync-every 1"
            ),
        }
        .into());
    }
    let workload = workload(args, config, ranks)?;
    let axes = axes(&config.settings, tries_sizes);
    let found = plan(&workload, &axes, 3).context("--mesh auto")?;
    let Some(best) = found.best.first() else {
        bail!(
            "--mesh auto finds nothing that fits on {}: {}",
            counted(ranks.world(), "rank"),
            render(&workload, &found, &"MODEL".into()).trim_end()
        );
    };
    let changed = changed_settings(&config.settings);
    let candidate = trained(best.candidate, &config.settings);
    let all: Vec<String> = candidate.flags_over(&changed).split(' ').map(str::to_owned).collect();
    let batch = ["--micro-batch-size", "--global-batch-size"];
    let is_of_batch =
        |at: usize| batch.contains(&all[at].as_str()) || at > 0 && batch.contains(&all[at - 1].as_str());
    let mut flags: Vec<String> =
        (0..all.len()).filter(|at| !is_of_batch(*at)).map(|at| all[at].clone()).collect();
    if best.split.len() > 1 || changed.iter().any(|name| name == "pipeline.stages") {
        flags.extend(["--set".to_owned(), best.stages_setting()]);
    }
    let micro_batch = tries_sizes.then_some(best.candidate.micro_batch);
    Ok(ChosenMesh { flags, reason: reason(&workload, &found), micro_batch })
}

/// What is searched.
fn axes(settings: &Settings, tries_sizes: bool) -> Axes {
    let axes = Axes {
        tensor: TensorParallelSearch::Off,
        micro_batches: if tries_sizes { Vec::new() } else { vec![settings.train.micro_batch_size] },
        ..Axes::default()
    };
    restrict(axes, settings)
}

/// Why the first choice is the first.
fn reason(workload: &Workload, plan: &Plan) -> String {
    let Some(best) = plan.best.first() else { return String::new() };
    let next = plan.best.get(1).map(|next| {
        let slower = 100.0 * (1.0 - next.tokens_per_second / best.tokens_per_second);
        format!("; next is {}, {slower:.0}% slower", next.candidate.label())
    });
    format!(
        "{}, one of {} that fit {} ({}): {} tokens/s predicted, {} of {} per rank, limited by {}{}",
        best.candidate.label(),
        plan.fitting,
        counted(workload.cluster.devices(), "rank"),
        workload.cluster.name,
        HumanCount(best.tokens_per_second as u64),
        HumanBytes(best.memory.total()),
        HumanBytes(workload.cluster.usable_memory()),
        best.limit(),
        next.unwrap_or_default()
    )
}

fn workload(args: &TrainArgs, config: &Config, ranks: &Ranks) -> anyhow::Result<Workload> {
    let described = config.describe()?;
    let Settings { compute, train, .. } = &config.settings;
    let file = &described.file;
    let shape = match file.task {
        Some(task) => ModelShape::of_task("the model", &file.config, task),
        None => ModelShape::of_config("the model", &file.config),
    };
    let shape = shape.with_trained(trained_counts(config)?);
    let cluster = cluster(args.cluster.as_deref(), compute.backend, ranks)?;
    let length = described.model.sequence_length();
    let mut workload = Workload::new(shape, cluster, length, train.global_batch_size);
    workload.dtype = match compute.resolved_dtype() {
        brigade::core::Dtype::F32 => Dtype::F32,
        brigade::core::Dtype::Bf16 => Dtype::Bf16,
    };
    workload.accounting = accounting(&config.settings, workload.dtype)?;
    workload.reduce_bytes = reduce_bytes(&config.settings, workload.model.hidden);
    workload.kept_bytes = kept_bytes(&config.settings, workload.model.hidden);
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use brigade::plan::search::Candidate;

    use super::*;

    /// What is planned for these settings on four nodes of two, of which shards may be on one node each.
    fn planned(sets: &[&str], ranks: &str) -> Vec<Candidate> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let settings = Config::read(&[], &sets).unwrap().settings;
        let model = ModelShape::gpt("small", 2, 64, 2, 256, 64);
        let workload = Workload::new(model, ranks.parse().unwrap(), 64, settings.train.global_batch_size);
        let found = plan(&workload, &axes(&settings, true), 100).unwrap();
        found.best.into_iter().map(|best| trained(best.candidate, &settings)).collect()
    }

    #[test]
    fn nothing_is_planned_that_training_refuses() {
        let (powersgd, gathers) = ("comm.compress=powersgd", "comm.compress_gathers=int8");
        let all = |sets: &[&str]| planned(sets, "4x2xL4");
        assert!(all(&[]).iter().any(|found| found.zero == 0) && all(&[]).iter().any(|found| found.zero == 3));
        assert!(all(&[powersgd]).iter().all(|found| found.zero < 2 && found.replicate == 1));
        assert!(all(&[gathers]).iter().all(|found| found.zero > 0));
        assert!(all(&[powersgd, gathers]).iter().all(|found| (found.zero, found.replicate) == (1, 1)));
        // One rank has nothing to shard, and yet training wants a stage.
        assert!(planned(&[gathers], "1x1xL4").iter().all(|found| found.zero == 1));
    }
}
