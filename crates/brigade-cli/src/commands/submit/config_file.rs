//! The file of `--config` in a job whose nodes do not see the files of this machine.

use std::path::Path;

use brigade_submit::Job;

use super::{fit, train_args};
use crate::commands::train::TrainArgs;

/// Bytes of settings that a command may have: systems limit what they take.
const MAX_BYTES: usize = 64 << 10;

/// The job with the settings of the file of `--config` in its command instead, and the flags of `brigade train` that it then has; none if they would not mean
/// the same.
pub fn in_command(job: &Job, train: &TrainArgs, file: &Path) -> Option<(Job, TrainArgs)> {
    let config = fit::configured_here(train)?;
    let settings = settings(file).filter(|all| all.iter().map(String::len).sum::<usize>() <= MAX_BYTES)?;
    let placed = job.with_settings(settings);
    let again = train_args(&placed).ok().flatten()?;
    let is_same = again.configured().is_ok_and(|again| again == config);
    is_same.then_some((placed, again))
}

/// The settings of a file, each as `--set` has it, without those that are empty or `auto`, as they are by default.
fn settings(file: &Path) -> Option<Vec<String>> {
    let table: toml::Table = std::fs::read_to_string(file).ok()?.parse().ok()?;
    let mut all = Vec::new();
    for (section, values) in &table {
        for (key, value) in values.as_table()? {
            if !matches!(value.as_str(), Some("" | "auto")) {
                all.push(format!("{section}.{key}={value}"));
            }
        }
    }
    Some(all)
}
