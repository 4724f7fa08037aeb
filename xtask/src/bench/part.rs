//! The sections of the page, by the names under which they can be chosen.

use anyhow::Result;

use super::table::Section;
use super::{Bench, all_reduce, memory, pipeline, saving, sharding, start, together, tokens};

/// A section. Its order here is that of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Tokens per second of data parallelism and of one process.
    Tokens,
    /// Two ranks of one run, against two runs.
    Together,
    /// ZeRO on two ranks.
    Sharding,
    /// Two pipeline stages, their bubble, and the interpreter.
    Pipeline,
    /// What a rank holds under ZeRO.
    Memory,
    /// What checkpoints cost.
    Saving,
    /// All-reduce between processes.
    AllReduce,
    /// The time until the first step.
    Start,
}

impl Part {
    pub fn title(self) -> &'static str {
        match self {
            Self::Tokens => tokens::TITLE,
            Self::Together => together::TITLE,
            Self::Sharding => sharding::TITLE,
            Self::Pipeline => pipeline::TITLE,
            Self::Memory => memory::TITLE,
            Self::Saving => saving::TITLE,
            Self::AllReduce => all_reduce::TITLE,
            Self::Start => start::TITLE,
        }
    }

    pub fn measure(self, bench: &Bench) -> Result<Section> {
        match self {
            Self::Tokens => tokens::measure(bench),
            Self::Together => together::measure(bench),
            Self::Sharding => sharding::measure(bench),
            Self::Pipeline => pipeline::measure(bench),
            Self::Memory => memory::measure(bench),
            Self::Saving => saving::measure(bench),
            Self::AllReduce => all_reduce::measure(bench),
            Self::Start => start::measure(bench),
        }
    }

    /// The package and the name of the program that it runs by `cargo bench`.
    pub fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::AllReduce => Some(("brigade-comm", "allreduce")),
            Self::Pipeline => Some(("brigade", "pipeline")),
            Self::Saving => Some(("brigade-checkpoint", "write")),
            _ => None,
        }
    }

    /// Whether it runs `brigade train`.
    pub fn trains(self) -> bool {
        self != Self::AllReduce
    }
}
