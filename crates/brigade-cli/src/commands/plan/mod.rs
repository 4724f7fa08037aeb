//! `brigade plan`

mod axes;
mod calibrate;
mod calibrate_from;
mod configurations;
pub mod configured;
mod model_file;
mod parse;
mod schedule;

use std::process::ExitCode;

use clap::{Args, Subcommand};

pub use calibrate::{cluster_file, this_machine};

pub const EXAMPLES: &str = "\
Examples:
  brigade plan --model Llama-3.2-1B --cluster 2x8xH100-80GB --global-batch-tokens 1M
  brigade plan --model config.json --cluster 4x4xA100-80GB --sequence-length 4096 --explain
  brigade plan --model config.json --cluster cluster.toml --slow-rank 3=1.3 --what-if
  brigade plan --model configs/gpt-13m.toml --cluster 1x4xCPU --json
  brigade plan --calibrate               measure this machine, for plans without --cluster
  brigade plan --calibrate-from runs/a   learn from a run here, or on that of --cluster
  brigade plan schedule --pp 4 --micro-batches 8

A cluster is NODESxDEVICESxKIND, or a TOML file with kind, nodes, devices_per_node and whatever differs from the kind.";

#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,
    #[command(flatten)]
    configurations: configurations::ConfigurationArgs,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Show what each rank of a pipeline does and when, the bubble, and the micro-batches in flight.
    #[command(after_help = schedule::EXAMPLES)]
    Schedule(schedule::ScheduleArgs),
}

pub fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(PlanCommand::Schedule(args)) => schedule::run(args),
        None => configurations::run(&args.configurations),
    }
}
