//! `brigade plan schedule`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use brigade::plan::{Pipeline, PipelineScheduleKind};
use brigade::{UsageError, exit};
use brigade_files::write_atomic;
use clap::Args;

use super::parse;
use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade plan schedule --pp 4 --micro-batches 8
  brigade plan schedule --pp 4 --micro-batches 8 --schedule gpipe --svg timeline.svg
  brigade plan schedule --pp 2 --micro-batches 4 --chunks 2 --schedule zbv --actions
  brigade plan schedule --pp 4 --micro-batches 8 --chunks 2 --schedule interleaved-1f1b";

/// Characters per row of the table.
const WIDTH: usize = 100;

#[derive(Debug, Args)]
pub struct ScheduleArgs {
    /// Pipeline stages.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse::at_least_1)]
    pp: usize,
    /// Micro-batches per step: global batch / (data-parallel ranks x micro-batch size).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse::at_least_1)]
    micro_batches: usize,
    /// gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2 or zbv.
    #[arg(long, value_name = "NAME", default_value_t)]
    schedule: PipelineScheduleKind,
    /// Model chunks per stage, for interleaved schedules; 2 for zbv.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = parse::at_least_1)]
    chunks: usize,
    /// Time of a backward pass in units of a forward pass.
    #[arg(long, value_name = "X", default_value_t = 2.0, allow_negative_numbers = true)]
    backward_ratio: f64,
    /// Also list every action, with sends, receives and reductions.
    #[arg(long)]
    actions: bool,
    /// Draw the timeline to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub fn run(args: &ScheduleArgs) -> anyhow::Result<ExitCode> {
    let (text, svg) = schedule(args).map_err(UsageError)?;
    if let Some((path, svg)) = args.svg.as_deref().zip(svg) {
        write_svg(path, &svg).with_context(|| format!("--svg {}: cannot write it", path.display()))?;
    }
    print(&text)?;
    Ok(ExitCode::from(exit::DONE))
}

/// The text, and the SVG if requested.
fn schedule(args: &ScheduleArgs) -> anyhow::Result<(String, Option<String>)> {
    let pipeline = Pipeline::new(args.schedule, args.pp, args.chunks, args.micro_batches)?;
    let (summary, table) = (pipeline.summary(args.backward_ratio)?, pipeline.table(WIDTH)?);
    let mut text = format!("{summary}\n{table}\n{}\n", pipeline.peaks());
    if args.actions {
        text.push('\n');
        text.push_str(&pipeline.listing());
    }
    let svg = args.svg.as_ref().map(|_| pipeline.svg(args.backward_ratio)).transpose()?;
    Ok((text, svg))
}

/// Writes the SVG. A target that is not a file (a device, a pipe) is written to directly.
fn write_svg(path: &Path, svg: &str) -> std::io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, svg);
    }
    write_atomic(path, svg.as_bytes())
}
