//! The directory of a run: how far training has come, and what is going on.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Text to train on.
pub const TEXT: &str = "text.txt";

/// Makes the folder of all runs, with the text, and gives its path as `/proc` shows it for processes that work there.
pub fn make_root(folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let line = |n: u64| format!("{n} squared is {}, and the bucket goes on to number {}.\n", n * n, n + 1);
    let file = folder.join(TEXT);
    fs::write(&file, (0..1500).map(line).collect::<String>())
        .with_context(|| format!("cannot write {}", file.display()))?;
    folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))
}

/// What was going on when a process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// No step since the start.
    Start,
    /// Steps, without a save.
    Training,
    /// Ranks write their files of a checkpoint.
    Writing,
    /// All files are there, the manifest is being written or the folder renamed.
    Publishing,
    /// An older checkpoint is being removed.
    Removing,
    /// The last step is done: the last checkpoint, the weights, the end.
    End,
}

/// A run's directory.
#[derive(Clone, Debug)]
pub struct RunDir(pub PathBuf);

/// The names in the directory of checkpoints at one instant.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<String>);

impl Names {
    /// Steps of the visible checkpoints, ascending.
    pub fn steps(&self) -> Vec<u64> {
        let mut steps: Vec<_> =
            self.0.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
        steps.sort_unstable();
        steps
    }

    pub fn newest(&self) -> Option<u64> {
        self.steps().pop()
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|other| other == name)
    }

    /// A save that is not visible yet.
    pub fn partial(&self) -> Option<&str> {
        self.0.iter().map(String::as_str).find(|name| name.contains(".partial-"))
    }

    fn is_removing(&self) -> bool {
        self.0.iter().any(|name| name.ends_with(".removed") || name.ends_with(".old"))
    }

    /// Everything but visible checkpoints.
    pub fn others(&self) -> Vec<&str> {
        let others = self
            .0
            .iter()
            .filter(|name| name.strip_prefix("step-").is_none_or(|step| step.parse::<u64>().is_err()));
        others.map(String::as_str).collect()
    }
}

impl RunDir {
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn names(&self) -> Names {
        let entries = fs::read_dir(self.file("checkpoints")).into_iter().flatten();
        Names(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    /// The bytes of `metrics.jsonl`.
    pub fn metrics(&self) -> Vec<u8> {
        fs::read(self.file("metrics.jsonl")).unwrap_or_default()
    }

    /// Whether a save has a manifest.
    pub fn has_manifest(&self, partial: &str) -> bool {
        self.file("checkpoints").join(partial).join("manifest.json").exists()
    }

    /// What is going on in a run that looked like `before` when it started; `last` is its last step.
    pub fn activity(&self, before: &Before, last: u64) -> Activity {
        let names = self.names();
        match names.partial() {
            Some(partial) if self.has_manifest(partial) => return Activity::Publishing,
            Some(_) => return Activity::Writing,
            None if names.is_removing() => return Activity::Removing,
            None => {}
        }
        let metrics = self.metrics();
        let done = count_steps(&metrics);
        match () {
            () if before.newest == Some(last) || names.newest() == Some(last) => Activity::End,
            // Lines of steps that are repeated are cut off when training begins.
            () if metrics == before.metrics || done <= before.newest.unwrap_or(0) => Activity::Start,
            () if done >= last => Activity::End,
            () => Activity::Training,
        }
    }

    /// The present state.
    pub fn before(&self) -> Before {
        Before { names: self.names(), newest: self.names().newest(), metrics: self.metrics() }
    }
}

/// The state when a run was started.
#[derive(Clone, Debug, Default)]
pub struct Before {
    pub names: Names,
    pub newest: Option<u64>,
    pub metrics: Vec<u8>,
}

/// The number of whole lines.
pub fn count_steps(metrics: &[u8]) -> u64 {
    metrics.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Step and loss of each line.
///
/// # Errors
/// If a line is not the record of a step, or steps are not 1, 2, 3, …
pub fn losses(metrics: &[u8]) -> Result<Vec<serde_json::Value>> {
    let text = std::str::from_utf8(metrics).context("metrics.jsonl is not text")?;
    let mut losses = Vec::new();
    for (line, step) in text.lines().zip(1..) {
        let record: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("metrics.jsonl, line {step}: {line}"))?;
        ensure!(record["step"] == step, "metrics.jsonl, line {step} has step {}", record["step"]);
        losses.push(record["loss"].clone());
    }
    Ok(losses)
}

/// Removes a folder with all that is in it.
pub fn remove(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_going_on_shows_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunDir(dir.path().into());
        let now = || folder.activity(&Before::default(), 3);
        assert_eq!(now(), Activity::Start);
        fs::write(folder.file("metrics.jsonl"), "{}\n").unwrap();
        assert_eq!(now(), Activity::Training);
        let partial = folder.file("checkpoints/.step-00000001.partial-x");
        fs::create_dir_all(&partial).unwrap();
        assert_eq!(now(), Activity::Writing);
        fs::write(partial.join("manifest.json"), "{").unwrap();
        assert_eq!(now(), Activity::Publishing);
        fs::rename(&partial, folder.file("checkpoints/step-00000001")).unwrap();
        assert_eq!((now(), folder.names().newest()), (Activity::Training, Some(1)));
        fs::create_dir(folder.file("checkpoints/.step-00000000.removed")).unwrap();
        assert_eq!((now(), folder.names().others()), (Activity::Removing, vec![".step-00000000.removed"]));
        fs::remove_dir(folder.file("checkpoints/.step-00000000.removed")).unwrap();
        fs::write(folder.file("metrics.jsonl"), "{}\n{}\n{}\n").unwrap();
        assert_eq!(now(), Activity::End);
    }

    #[test]
    fn each_step_once() {
        assert_eq!(
            losses(b"{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2}\n").unwrap(),
            [2.5.into(), serde_json::json!(2)]
        );
        for wrong in ["{\"step\":2}\n", "{\"step\":1}\n{\"step\":1}\n", "{\"step\":1}\n{\"st"] {
            assert!(losses(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
