//! The folder of a run's results.
//!
//! A run first *claims* its folder, which checks and creates it and changes nothing that is there;
//! only when all ranks are ready to train does it *begin* there.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::checkpoint::changes;
use crate::program::resolved;
use crate::settings::CHECKPOINT_FOLDER;

/// The resolved configuration of a run.
pub const CONFIG_FILE: &str = "config.toml";
/// The weights at the end of a run.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// Finds and creates the folder of a run. `dir` empty makes a new one, `runs/<name>-<number>`.
pub(crate) fn claim(dir: &Path, name: &str, overwrite: bool, config: &str) -> anyhow::Result<PathBuf> {
    if dir.as_os_str().is_empty() {
        return new_folder(name);
    }
    std::fs::create_dir_all(dir).with_context(|| format!("--out {}", dir.display()))?;
    if !overwrite {
        refuse_earlier(dir, config)?;
    }
    Ok(dir.to_owned())
}

/// Takes the folder of a run that was begun and may have nothing to go on from: what it has of results may be replaced,
/// but not a finished run or one that could not have been this one.
pub(crate) fn claim_begun(dir: &Path, config: &str) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("--out {}", dir.display()))?;
    let before = std::fs::read_to_string(dir.join(CONFIG_FILE)).ok();
    let before = before.and_then(|text| text.parse::<toml::Table>().ok());
    let before = before.and_then(|table| serde_json::to_value(table).ok());
    let is_other = before.is_some_and(|before| changes(0, &before, config).is_err());
    if is_other || dir.join(WEIGHTS_FILE).exists() {
        let what = if is_other { "a run of another configuration" } else { "a finished run" };
        bail!(
            "--out {} holds {what}, without checkpoints to go on from; give another folder, or --overwrite",
            dir.display()
        );
    }
    Ok(dir.to_owned())
}

/// The folder of a node that keeps logs only: rank 0 is elsewhere.
pub(crate) fn claim_for_logs(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    if dir.as_os_str().is_empty() {
        return new_folder(name);
    }
    std::fs::create_dir_all(dir).with_context(|| format!("--out {}", dir.display()))?;
    Ok(dir.to_owned())
}

/// Starts a run in a folder that was claimed: removes the weights of an earlier run, if that is
/// allowed and there is something to train, and writes the configuration. The file says nothing of the folder itself, so that it can be given
/// back for a run elsewhere.
pub(crate) fn begin(dir: &Path, overwrite: bool, trains: bool, config: &str) -> anyhow::Result<()> {
    let weights = dir.join(WEIGHTS_FILE);
    if !overwrite {
        refuse_earlier(dir, config)?;
    } else if trains
        && let Err(error) = std::fs::remove_file(&weights)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error).with_context(|| format!("cannot remove {}", weights.display()));
    }
    write_whole(&dir.join(CONFIG_FILE), portable(config).as_bytes())
}

/// Writes a file that is there wholly or as it was before.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".part");
    let write = || {
        let mut file = File::create(&aside)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The configuration without the folder of its results.
fn portable(config: &str) -> String {
    let Ok(mut table) = config.parse::<toml::Table>() else { return config.to_owned() };
    if let Some(output) = table.get_mut("output").and_then(toml::Value::as_table_mut) {
        output.remove("dir");
    }
    resolved(&table).unwrap_or_else(|_| config.to_owned())
}

fn refuse_earlier(dir: &Path, config: &str) -> anyhow::Result<()> {
    let results = [WEIGHTS_FILE, brigade_report::METRICS_FILE, CHECKPOINT_FOLDER]
        .into_iter()
        .find(|file| dir.join(file).exists());
    let other = std::fs::read_to_string(dir.join(CONFIG_FILE)).is_ok_and(|text| text != portable(config));
    let what = match results {
        Some(file) => format!("results of an earlier run ({file})"),
        None if other => format!("a {CONFIG_FILE} that is not this run's"),
        None => return Ok(()),
    };
    bail!(
        "--out {} holds {what}; give another folder, --resume to go on with it, or --overwrite to replace it",
        dir.display()
    )
}

/// Makes `runs/<name>-1`, or the first number that is free. The folder is made by the call that
/// finds it missing, so that two runs never share one.
fn new_folder(name: &str) -> anyhow::Result<PathBuf> {
    let runs = Path::new("runs");
    std::fs::create_dir_all(runs).with_context(|| format!("cannot make the folder {}", runs.display()))?;
    for number in 1..100_000 {
        let dir = runs.join(format!("{name}-{number}"));
        match std::fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the folder {}", dir.display()));
            }
        }
    }
    bail!("runs/ holds 100000 folders of {name}; remove some or give --out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_replaced_unless_asked_and_nothing_before_the_run_begins() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a");
        let text = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
        assert_eq!(claim(&dir, "x", false, "a = 1").unwrap(), dir);
        begin(&dir, false, true, "a = 1\n[output]\ndir = \"x\"\n").unwrap();
        assert_eq!(text(CONFIG_FILE), "a = 1\n\n[output]\n");
        std::fs::write(dir.join(WEIGHTS_FILE), "weights").unwrap();
        let error = claim(&dir, "x", false, "a = 2").unwrap_err().to_string();
        assert!(error.contains("--overwrite"), "{error}");
        claim(&dir, "x", true, "a = 2").unwrap();
        assert_eq!(text(WEIGHTS_FILE), "weights");
        begin(&dir, true, true, "a = 2").unwrap();
        assert_eq!(text(CONFIG_FILE), "a = 2\n");
        assert!(!dir.join(WEIGHTS_FILE).exists());
        let error = claim(&dir, "x", false, "a = 3").unwrap_err().to_string();
        assert!(error.contains("holds a config.toml that is not this run's"), "{error}");
        claim(&dir, "x", false, "a = 2").unwrap();
    }
}
