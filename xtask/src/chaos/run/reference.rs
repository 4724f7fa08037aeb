//! The run that is never killed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::dir::{RunDir, TEXT, losses};
use super::mesh::SINGLE;
use crate::chaos::process::RunningCommand;

/// Steps of a run.
pub const STEPS: u64 = 120;
/// Steps of a run that commands race for.
pub const RACE_STEPS: u64 = 24;
/// Steps between checkpoints: few, so that a run spends much of its time saving.
pub const EVERY: u64 = 4;
/// Checkpoints that are kept.
pub const KEEP: usize = 2;
pub const WEIGHTS: &str = "model.safetensors";
/// The folder of the run that is never killed.
pub const REFERENCE: &str = "reference";

/// What every run must end with.
pub struct Reference {
    pub weights: Vec<u8>,
    losses: Vec<Value>,
}

/// The settings of every run of this many steps, which keeps this many checkpoints.
pub fn settings(steps: u64, keep: usize) -> String {
    format!(
        "--data {TEXT} --set data.tokenizer=bytes --set model.layers=2 --set model.width=32 --set model.heads=2 \
         --set model.sequence_length=32 --steps {steps} --micro-batch-size 2 --global-batch-size 8 \
         --set train.validate_every=0 --set train.validation_samples=4 --checkpoint-every {EVERY} --keep {keep}"
    )
}

impl Reference {
    /// Trains once, on one rank, and keeps all checkpoints.
    pub fn train(brigade: &Path, folder: &Path, steps: u64) -> Result<Self> {
        Self::of_line(brigade, folder, &format!("{} {}", settings(steps, 0), SINGLE.flags))
    }

    /// The same with these settings and flags.
    pub fn of_line(brigade: &Path, folder: &Path, line: &str) -> Result<Self> {
        let line = format!("train {line} --out {REFERENCE}");
        let end = RunningCommand::start(brigade, folder, &line)?.finish()?;
        ensure!(end.status.success(), "`brigade {line}` ended with {}:\n{}", end.status, end.text);
        Self::of(&RunDir(folder.join(REFERENCE)))
    }

    fn of(run: &RunDir) -> Result<Self> {
        let file = run.file(WEIGHTS);
        let weights = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Self { weights, losses: losses(&run.metrics())? })
    }

    /// # Errors
    /// If a finished run has other weights or losses, or something left of a save.
    pub fn compare(&self, run: &RunDir) -> Result<()> {
        let Self { weights, losses } = Self::of(run)?;
        let differs = weights.iter().zip(&self.weights).position(|(a, b)| a != b);
        ensure!(
            weights == self.weights,
            "{WEIGHTS} is not that of the run that was never killed: {} bytes instead of {}, first difference at {differs:?}",
            weights.len(),
            self.weights.len()
        );
        let differs = losses.iter().zip(&self.losses).position(|(a, b)| a != b).map(|index| index + 1);
        ensure!(
            losses == self.losses,
            "metrics.jsonl has {} steps instead of {}, the first with another loss is {differs:?}",
            losses.len(),
            self.losses.len()
        );
        let names = run.names();
        ensure!(
            names.others().is_empty(),
            "partial saves are left in the directory of checkpoints: {:?}",
            names.others()
        );
        // A run that was killed after its last save and before the removals that follow has nothing more to save.
        ensure!(
            names.steps().len() <= KEEP + 1,
            "more than {KEEP} checkpoints are left: {:?}",
            names.steps()
        );
        Ok(())
    }
}
