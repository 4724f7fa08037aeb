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
use sections::{MAIN, PageName, SectionName};

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Python that has torch, deepspeed, transformers and peft [default: .venv-torch/bin/python, else python3].
    #[arg(long, value_name = "PATH")]
    peer_python: Option<PathBuf>,
    /// The release binary to measure, instead of building one.
    #[arg(long, value_name = "FILE")]
    brigade: Option<PathBuf>,
    /// Where to write the page [default: the workspace's, docs/book/src/benchmarks.md, or with --only network or --only diagnosis
    /// the page of that section; no file with another --only].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure only these sections.
    #[arg(long, value_name = "SECTION", value_enum, value_delimiter = ',')]
    only: Vec<SectionName>,
    /// Runs of each side.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Seeds of the losses in the section network.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
}

impl Args {
    /// The page of the sections to measure.
    fn page(&self) -> PageName {
        self.only.first().map_or(MAIN, |name| name.page())
    }

    /// The sections to measure, and the others of the page.
    fn sections(&self) -> (Vec<SectionName>, Vec<SectionName>) {
        let chosen = |name: &SectionName| match self.only.is_empty() {
            true => name.page() == MAIN,
            false => self.only.contains(name),
        };
        let all = SectionName::value_variants().iter();
        let (chosen, others): (Vec<_>, Vec<_>) = all.partition(|name| chosen(name));
        (chosen, others.into_iter().filter(|name| name.page() == self.page()).collect())
    }

    /// The page's file, if it is measured as a whole or one is given.
    fn file(&self) -> Option<PathBuf> {
        let (chosen, absent) = self.sections();
        let is_whole = absent.is_empty() && chosen.iter().all(|name| name.page() == self.page());
        let page = || cargo::root().join("docs/book/src").join(self.page().file);
        self.out.clone().or_else(|| is_whole.then(page))
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
    let brigade = match &args.brigade {
        Some(file) => std::fs::canonicalize(file).with_context(|| format!("--brigade {}", file.display()))?,
        None => cargo::build(&["build", "--release", "-p", "brigade-cli"])?,
    };
    let runner = Runner::new(brigade, peer, args.runs)?;
    if names.iter().any(|name| name.trains()) {
        runner.fill_token_cache()?;
    }
    let sections = names.iter().map(|name| name.measure(&runner, args.seeds)).collect::<Result<Vec<_>>>()?;
    let sections: Vec<_> = sections.into_iter().flatten().collect();

    let chosen = names.iter().filter_map(ValueEnum::to_possible_value);
    let chosen: Vec<_> = chosen.map(|value| value.get_name().to_owned()).collect();
    let only = (!args.only.is_empty())
        .then(|| (format!("--only {}", chosen.join(",")), absent.iter().map(|name| name.title()).collect()));
    let PageName { title, counted, .. } = args.page();
    let page = Page { title, counted, machine: &machine, runs: args.runs, sections: &sections, only };
    let page = page.markdown();
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
        assert_eq!((all.sections().0.len(), all.sections().1.len()), (13, 0));
        assert!(all.file().unwrap().ends_with("docs/book/src/benchmarks.md"));
        let some = args("bench --only pipeline,sharding");
        assert_eq!(some.sections().0, [SectionName::Sharding, SectionName::Pipeline]);
        assert_eq!((some.sections().1.len(), some.file()), (11, None));
        let network = args("bench --only network");
        assert_eq!(network.sections(), (vec![SectionName::Network], vec![]));
        assert!(network.file().unwrap().ends_with("docs/book/src/benchmarks-network.md"));
        assert!(
            args("bench --only diagnosis").file().unwrap().ends_with("docs/book/src/benchmarks-diagnosis.md")
        );
        assert_eq!(args("bench --only network,memory").file(), None);
        assert_eq!(args("bench --only memory --out page.md").file(), Some("page.md".into()));
    }
}
