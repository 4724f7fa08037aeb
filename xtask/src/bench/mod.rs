//! `cargo xtask bench`: Brigade beside PyTorch and DeepSpeed, on one machine and in one go.
//!
//! A section measures one thing. Its sides take turns several times, and the median counts. A peer that is missing or
//! fails leaves its cells empty; a failure of Brigade ends everything. Only one side runs at a time.

mod machine;
mod page;
mod runner;
mod sections;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::cargo;
use page::Page;
use runner::{Peer, Runner};
use sections::SectionName;

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Python that has torch, deepspeed, transformers and peft [default: .venv-torch/bin/python, else python3].
    #[arg(long, value_name = "PATH")]
    peer_python: Option<PathBuf>,
    /// Where to write the page [default: docs/book/src/benchmarks.md of the workspace, or no file with --only].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure these sections only.
    #[arg(long, value_name = "SECTION", value_enum, value_delimiter = ',')]
    only: Vec<SectionName>,
    /// Runs of each side.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
}

impl Args {
    /// The sections to measure, and the others.
    fn sections(&self) -> (Vec<SectionName>, Vec<SectionName>) {
        let all = SectionName::value_variants().iter();
        all.partition(|name| self.only.is_empty() || self.only.contains(name))
    }

    /// The page's file, if it has one.
    fn file(&self) -> Option<PathBuf> {
        let page = || cargo::root().join("docs/book/src/benchmarks.md");
        self.out.clone().or_else(|| self.only.is_empty().then(page))
    }
}

/// Builds, measures and writes the page.
pub fn run(args: &Args) -> Result<()> {
    let (names, absent) = args.sections();
    let peer = Peer::find(args.peer_python.as_deref())?;
    let machine = machine::describe(peer.as_ref())?;
    for (package, program) in names.iter().filter_map(|name| name.program()) {
        cargo::run(&mut cargo::command(&["bench", "-p", package, "--bench", program, "--no-run"]))?;
    }
    let brigade = cargo::build(&["build", "--release", "-p", "brigade-cli"])?;
    let runner = Runner::new(brigade, peer, args.runs)?;
    if names.iter().any(|name| name.trains()) {
        runner.fill_token_cache()?;
    }
    let sections = names.iter().map(|name| name.measure(&runner)).collect::<Result<Vec<_>>>()?;

    let chosen = names.iter().filter_map(ValueEnum::to_possible_value);
    let chosen: Vec<_> = chosen.map(|value| value.get_name().to_owned()).collect();
    let only = (!args.only.is_empty())
        .then(|| (format!("--only {}", chosen.join(",")), absent.iter().map(|name| name.title()).collect()));
    let page = Page { machine: &machine, runs: args.runs, sections: &sections, only }.markdown();
    let file = args.file();
    if let Some(file) = &file {
        std::fs::write(file, &page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    runner.remove_results()?;
    println!("{page}");
    match file {
        Some(file) => eprintln!("written to {}", file.display()),
        None => eprintln!("not written to a file; --out FILE does that"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        <Line as clap::Parser>::try_parse_from(line.split_whitespace()).unwrap().args
    }

    #[test]
    fn only_some_sections_do_not_replace_the_page() {
        let all = args("bench");
        assert_eq!((all.sections().0.len(), all.sections().1.len()), (11, 0));
        assert!(all.file().unwrap().ends_with("docs/book/src/benchmarks.md"));
        let some = args("bench --only pipeline,sharding");
        assert_eq!(some.sections().0, [SectionName::Sharding, SectionName::Pipeline]);
        assert_eq!((some.sections().1.len(), some.file()), (9, None));
        assert_eq!(args("bench --only memory --out page.md").file(), Some("page.md".into()));
    }
}
