//! The sections of the page.

mod all_reduce;
mod diagnosis;
mod fine_tuning;
mod memory;
mod network;
mod pipeline;
mod planned;
mod saving;
mod sharding;
mod start;
mod timeline;
mod together;
mod tokens;
mod zero_bubble;

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
    /// Schedules whose backward is in two halves.
    ZeroBubble,
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
    /// What `--profile-steps` costs.
    Timeline,
    /// Every strategy on slower and slower networks, and its effect on the loss; needs what `cargo xtask network` needs.
    Network,
    /// Runs with injected slowdowns, and what the diagnosis finds; needs what `cargo xtask network` needs.
    Diagnosis,
}

/// A page of the book that sections are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageName {
    pub title: &'static str,
    pub file: &'static str,
    /// Which part of a training run is measured.
    pub counted: &'static str,
}

/// That of all sections without `--only`.
pub const MAIN: PageName = PageName {
    title: "Benchmarks",
    file: "benchmarks.md",
    counted: "The figure of a training run is its median step after the first 2.",
};

const NETWORK: PageName = PageName {
    title: "Benchmarks on slow networks",
    file: "benchmarks-network.md",
    counted: "Of a training run, all steps after the first 2 count; where ranks meet every 50 steps, the 50 after the first meeting, with the second.",
};

const DIAGNOSIS: PageName = PageName {
    title: "Injected slowdowns",
    file: "benchmarks-diagnosis.md",
    counted: "Of a training run, all steps after the first tenth count, with what passes between them.",
};

impl SectionName {
    pub fn title(self) -> &'static str {
        match self {
            Self::Tokens => tokens::TITLE,
            Self::FineTuning => fine_tuning::TITLE,
            Self::Together => together::TITLE,
            Self::Sharding => sharding::TITLE,
            Self::Pipeline => pipeline::TITLE,
            Self::ZeroBubble => zero_bubble::TITLE,
            Self::Memory => memory::TITLE,
            Self::Size => memory::size::TITLE,
            Self::Saving => saving::TITLE,
            Self::AllReduce => all_reduce::TITLE,
            Self::Start => start::TITLE,
            Self::Plan => planned::TITLE,
            Self::Timeline => timeline::TITLE,
            Self::Network => network::TITLE,
            Self::Diagnosis => diagnosis::TITLE,
        }
    }

    /// The page that it belongs to.
    pub fn page(self) -> PageName {
        match self {
            Self::Network => NETWORK,
            Self::Diagnosis => DIAGNOSIS,
            _ => MAIN,
        }
    }

    /// Measures it; `seeds` is for the losses of what makes them differ.
    pub fn measure(self, runner: &Runner, seeds: u32) -> Result<Vec<Section>> {
        let section = match self {
            Self::Tokens => tokens::measure(runner),
            Self::FineTuning => fine_tuning::measure(runner),
            Self::Together => together::measure(runner),
            Self::Sharding => sharding::measure(runner),
            Self::Pipeline => pipeline::measure(runner),
            Self::ZeroBubble => zero_bubble::measure(runner),
            Self::Memory => memory::measure(runner),
            Self::Size => memory::size::measure(runner),
            Self::Saving => saving::measure(runner),
            Self::AllReduce => all_reduce::measure(runner),
            Self::Start => start::measure(runner),
            Self::Plan => planned::measure(runner),
            Self::Timeline => timeline::measure(runner),
            Self::Diagnosis => diagnosis::measure(runner),
            Self::Network => return network::measure(runner, seeds),
        };
        Ok(vec![section?])
    }

    /// The package and the name of the program that it runs by `cargo bench`.
    pub fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::AllReduce => Some(("brigade-comm", "allreduce")),
            Self::Pipeline => Some(("brigade", "pipeline")),
            Self::Diagnosis => Some(("brigade", "slowed")),
            Self::Saving => Some(("brigade-checkpoint", "write")),
            _ => None,
        }
    }

    /// Whether it runs `brigade train`.
    pub fn trains(self) -> bool {
        self != Self::AllReduce
    }
}
