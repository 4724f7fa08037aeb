//! Commands that a user may start.

use crate::chaos::choices::Choices;

/// Names of files whose ends look like extensions.
const NAMES: [&str; 3] = ["w.5", "w.10", "w"];

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserCommand {
    /// Begins a run.
    Train,
    /// Begins a run, or resumes it.
    Resume,
    /// Writes the weights of the newest checkpoint into a file, or into that of a finished run.
    Consolidate { to: Option<&'static str>, overwrite: bool },
    /// Reads every byte of all checkpoints.
    Verify,
    /// Lists checkpoints.
    List,
    /// Reads the weights.
    Generate,
    /// Writes a picture.
    Picture,
}

impl UserCommand {
    pub fn choose(choices: &mut Choices) -> Self {
        match choices.below(12) {
            0 | 1 => Self::Train,
            2..=4 => Self::Resume,
            5..=7 => Self::Consolidate { to: choices.one(&NAMES), overwrite: choices.below(2) == 0 },
            8 => Self::Consolidate { to: None, overwrite: choices.below(2) == 0 },
            9 => Self::Verify,
            10 if choices.below(2) == 0 => Self::List,
            10 => Self::Picture,
            _ => Self::Generate,
        }
    }

    /// The words of the command.
    pub fn line(self, run: &str, settings: &str) -> String {
        match self {
            Self::Train => format!("train {settings} --out {run}"),
            Self::Resume => format!("train {settings} --resume auto --out {run}"),
            Self::Consolidate { to, overwrite } => {
                let to = to.map(|name| format!(" --to {name}")).unwrap_or_default();
                format!("checkpoint consolidate {run}{to}{}", if overwrite { " --overwrite" } else { "" })
            }
            Self::Verify => format!("checkpoint verify {run}"),
            Self::List => format!("checkpoint list {run}"),
            Self::Generate => format!("generate --model {run} --tokens 4"),
            Self::Picture => "plan schedule --pp 2 --micro-batches 4 --svg picture.svg".into(),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Resume => "train --resume auto",
            Self::Consolidate { .. } => "checkpoint consolidate",
            Self::Verify => "checkpoint verify",
            Self::List => "checkpoint list",
            Self::Generate => "generate",
            Self::Picture => "plan schedule --svg",
        }
    }

    pub fn trains(self) -> bool {
        matches!(self, Self::Train | Self::Resume)
    }
}
