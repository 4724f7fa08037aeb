//! `brigade doctor`

use std::process::ExitCode;

use brigade::comm::{MAX_WORLD_SIZE, allowed_world_size};
use brigade::doctor::{MachineFinding, examine};
use brigade::{UsageError, exit};
use clap::Args;
use comfy_table::Row;

use super::network;
use crate::data::columns::columns;
use crate::output::print;
use crate::ranks::RankFlags;

pub const EXAMPLES: &str = "\
Examples:
  brigade doctor                                check this machine
  brigade doctor --world-size 512               check it for a world of 512 ranks
  brigade doctor --network --nproc-per-node 4   measure the collectives of 4 ranks

The exit code is 1 if something is missing. A program built for CUDA (cargo xtask dist --backend cuda) checks GPUs, driver and NCCL, too.";

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Ranks of the world that this machine will be part of [default: one per core of this machine].
    #[arg(long, value_name = "N", value_parser = world_size)]
    world_size: Option<usize>,
    /// Measure the collectives between ranks with every algorithm, and print how fast they are [ranks: from the flags below or a
    /// cluster's environment, else one per core or GPU].
    #[arg(long, conflicts_with = "world_size")]
    network: bool,
    #[command(flatten)]
    ranks: RankFlags,
}

fn world_size(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_WORLD_SIZE).contains(number));
    number.ok_or_else(allowed_world_size)
}

pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.network {
        return network::run(&args.ranks);
    }
    if let Some(flag) = args.ranks.first_given() {
        return Err(UsageError(anyhow::anyhow!("{flag} needs --network")).into());
    }
    let findings = examine(args.world_size);
    print(&table(&findings))?;
    let ok = findings.iter().all(|finding| finding.ok);
    Ok(ExitCode::from(if ok { exit::DONE } else { exit::FAILED }))
}

/// One line per finding, with its advice below it.
fn table(findings: &[MachineFinding]) -> String {
    let rows = findings.iter().flat_map(|MachineFinding { name, text, ok, advice }| {
        let mark = if *ok { "ok" } else { "MISSING" };
        let finding = Row::from(vec![mark, name, text]);
        let advice = advice.as_ref().map(|advice| Row::from(vec!["", "", &format!("-> {advice}")]));
        std::iter::once(finding).chain(advice)
    });
    columns(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_below_its_finding() {
        let finding = |name: &str, ok, advice: Option<&str>| MachineFinding {
            name: name.into(),
            text: "found".into(),
            ok,
            advice: advice.map(Into::into),
        };
        let shown = table(&[finding("a", true, None), finding("driver", false, Some("install it"))]);
        assert_eq!(shown, "ok       a       found\nMISSING  driver  found\n                 -> install it\n");
    }
}
