//! The sections of the page.

mod all_reduce;
mod fine_tuning;
mod memory;
mod pipeline;
mod planned;
mod saving;
mod sharding;
mod size;
mod start;
mod together;
mod tokens;

use anyhow::Result;

use crate::bench::page::Section;
use crate::bench::runner::Runner;

/// A section, by the name that `--only` takes. Their order here is that of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SectionName {
    /// Tokens per second of data parallelism and of one process.
    Tokens,
    /// A Llama, beside transformers and peft.
    FineTuning,
    /// Two ranks of one run, against two runs.
    Together,
    /// ZeRO on two ranks.
    Sharding,
    /// Two pipeline stages, their bubble, and the interpreter.
    Pipeline,
    /// What a rank holds under ZeRO.
    Memory,
    /// A Llama of 1.1 billion parameters, beside its plan and its disk.
    Size,
    /// What checkpoints cost.
    Saving,
    /// All-reduce between processes.
    AllReduce,
    /// The time until the first step.
    Start,
    /// What the planner predicts, and what runs take.
    Plan,
}

impl SectionName {
    pub fn title(self) -> &'static str {
        match self {
            Self::Tokens => tokens::TITLE,
            Self::FineTuning => fine_tuning::TITLE,
            Self::Together => together::TITLE,
            Self::Sharding => sharding::TITLE,
            Self::Pipeline => pipeline::TITLE,
            Self::Memory => memory::TITLE,
            Self::Size => size::TITLE,
            Self::Saving => saving::TITLE,
            Self::AllReduce => all_reduce::TITLE,
            Self::Start => start::TITLE,
            Self::Plan => planned::TITLE,
        }
    }

    pub fn measure(self, runner: &Runner) -> Result<Section> {
        match self {
            Self::Tokens => tokens::measure(runner),
            Self::FineTuning => fine_tuning::measure(runner),
            Self::Together => together::measure(runner),
            Self::Sharding => sharding::measure(runner),
            Self::Pipeline => pipeline::measure(runner),
            Self::Memory => memory::measure(runner),
            Self::Size => size::measure(runner),
            Self::Saving => saving::measure(runner),
            Self::AllReduce => all_reduce::measure(runner),
            Self::Start => start::measure(runner),
            Self::Plan => planned::measure(runner),
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
