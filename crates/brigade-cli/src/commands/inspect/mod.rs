//! `brigade inspect`

mod flight;
mod timeline;

use std::process::ExitCode;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct InspectArgs {
    #[command(subcommand)]
    command: InspectCommand,
}

#[derive(Debug, Subcommand)]
enum InspectCommand {
    /// Compare the ranks' flight records: which rank missed which operation.
    #[command(after_help = flight::EXAMPLES)]
    Flight(flight::FlightArgs),
    /// Show which ranks are idle in a timeline of steps, and why.
    #[command(after_help = timeline::EXAMPLES)]
    Timeline(timeline::TimelineArgs),
}

pub fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        InspectCommand::Flight(args) => flight::run(args),
        InspectCommand::Timeline(args) => timeline::run(args),
    }
}
