//! The `brigade` command: trains a GPT, starts the ranks of any program, generates text, and inspects runs.
//!
//! - The command is a user of the library: it handles files, flags and text, and no tensors.
//! - One configuration has everything that decides a run's weights. Its defaults are in `configs/gpt-tiny.toml`; a file
//!   overrides them, `--set` overrides the file, and flags override `--set`.
//! - The resolved configuration is written into the run's folder; training with it again gives the same weights.
//! - Mistakes are found before a rank starts, as far as possible. Exit codes: 0 done, 1 failed, 2 wrong usage, 75 preempted with
//!   a checkpoint saved, 130 interrupted.

mod commands;
mod config;
mod corpus;
mod data;
mod generation;
mod model_files;
mod model_section;
mod output;
mod ranks;
#[cfg(test)]
mod reference;
mod resolve;
mod unused;
mod vocabulary;

use std::process::ExitCode;

use brigade::launcher::interrupt;
use brigade::log::LogFormat;
use brigade::{UsageError, exit, format_error};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::config::Config;
use commands::runs::{report, scaling, status, watch};
use commands::{
    checkpoint, coordinate, doctor, evaluate, export, generate, inspect, launch, plan, runs, submit, train,
};

/// Measures memory exactly, also for small models that stand in for large ones.
#[global_allocator]
static HEAP: brigade::CountedHeap = brigade::CountedHeap;

/// Distributed training for Burn models.
#[derive(Debug, Parser)]
#[command(name = "brigade", version, arg_required_else_help = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train or fine-tune a language model: GPT, Llama, BERT and others.
    #[command(after_help = train::EXAMPLES)]
    Train(Box<train::TrainArgs>),
    /// Start the ranks of any program, as torchrun does, and supervise them.
    #[command(after_help = launch::EXAMPLES)]
    Launch(launch::CommandArgs),
    /// Coordinate separately launched workers of local-sgd or diloco.
    #[command(after_help = coordinate::EXAMPLES)]
    Coordinate(coordinate::CoordinateArgs),
    /// Run a command on the nodes of a cluster: Vertex AI, Kubernetes, Slurm, or hosts over SSH.
    #[command(after_help = submit::EXAMPLES)]
    Submit(Box<submit::SubmitArgs>),
    /// Rank configurations for a model and a cluster by memory and speed.
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::PlanArgs),
    /// List, verify and consolidate the checkpoints of a run.
    #[command(after_help = checkpoint::EXAMPLES)]
    Checkpoint(checkpoint::CheckpointArgs),
    /// Check what this machine has for training, and what is missing.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Find out why a run failed, or which ranks idle.
    Inspect(inspect::InspectArgs),
    /// Make an HTML page about a run: what happened, and where the time went.
    #[command(after_help = report::EXAMPLES)]
    Report(report::ReportArgs),
    /// Follow runs in a browser.
    #[command(after_help = watch::EXAMPLES)]
    Watch(watch::WatchArgs),
    /// Show why more ranks do not make a run proportionally faster, and what to change first.
    #[command(after_help = scaling::EXAMPLES)]
    Scaling(scaling::ScalingArgs),
    /// List runs with their status and latest figures.
    #[command(after_help = runs::EXAMPLES)]
    Runs(runs::RunsArgs),
    /// Show what a run is doing, from any host that sees its folder.
    #[command(after_help = status::EXAMPLES)]
    Status(status::StatusArgs),
    /// Export the model of a finished run to a folder that other programs can load.
    #[command(after_help = export::EXAMPLES)]
    Export(export::ExportArgs),
    /// Generate text with a trained model.
    #[command(after_help = generate::EXAMPLES)]
    Generate(generate::GenerateArgs),
    /// Measure the loss, perplexity and accuracy of a model on text.
    #[command(after_help = evaluate::EXAMPLES)]
    Evaluate(evaluate::EvaluateArgs),
}

/// An error with the setting that takes the place of a flag that other programs have.
fn with_setting(mut error: clap::Error) -> clap::Error {
    let takes_settings = std::env::args().nth(1).is_some_and(|command| command == "train");
    let setting = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if takes_settings && error.kind() == ErrorKind::UnknownArgument => {
            Config::read(&[], &[]).ok().and_then(|config| brigade::setting_of_flag(flag, &config))
        }
        _ => None,
    };
    if let Some(setting) = setting {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Usage);
        let tip = format!("give it as a setting: --set {setting}=VALUE").into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

fn main() -> ExitCode {
    interrupt::block_signals();
    interrupt::learn_of_ends();
    let command = Cli::try_parse().unwrap_or_else(|error| with_setting(error).exit()).command;
    let (quiet, format) = match &command {
        Command::Train(args) => (args.standard.quiet, args.standard.log_format),
        _ => (false, LogFormat::Text),
    };
    brigade::log::init(quiet, format);
    let has_ranks = match &command {
        Command::Train(_) | Command::Launch(_) | Command::Evaluate(_) => true,
        Command::Generate(args) => args.uses_ranks(),
        _ => false,
    };
    if !has_ranks {
        interrupt::unblock_signals();
    }
    let result = match command {
        Command::Train(args) => train::run(&args),
        Command::Launch(args) => launch::run(args),
        Command::Coordinate(args) => coordinate::run(&args),
        Command::Submit(args) => submit::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Runs(args) => runs::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Scaling(args) => scaling::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Evaluate(args) => evaluate::run(&args),
    };
    result.unwrap_or_else(|error| {
        brigade::print_stderr(format_args!("brigade: {}", format_error(&error)));
        ExitCode::from(error.downcast_ref().map_or(exit::FAILED, UsageError::exit_code))
    })
}
