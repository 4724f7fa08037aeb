//! The folder of a run's results.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The resolved configuration of a run.
pub const CONFIG_FILE: &str = "config.toml";
/// The weights at the end of a run.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// Takes a folder for a run and writes its configuration there. `dir` empty makes a new folder
/// `runs/<name>-<number>`.
pub(crate) fn claim(dir: &Path, name: &str, overwrite: bool, config: &str) -> anyhow::Result<PathBuf> {
    let dir = if dir.as_os_str().is_empty() { new_folder(name)? } else { dir.to_owned() };
    std::fs::create_dir_all(&dir).with_context(|| format!("--out {}", dir.display()))?;
    let earlier =
        [WEIGHTS_FILE, brigade_report::METRICS_FILE].into_iter().find(|file| dir.join(file).exists());
    if let (Some(file), false) = (earlier, overwrite) {
        bail!(
            "--out {} holds results of an earlier run ({file}); give another folder, or --overwrite to replace them",
            dir.display()
        );
    }
    if overwrite {
        clear(&dir)?;
    }
    let path = dir.join(CONFIG_FILE);
    std::fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(dir)
}

/// Removes the files of an earlier run that this one would not replace by its own.
fn clear(dir: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = [CONFIG_FILE, WEIGHTS_FILE, brigade_report::METRICS_FILE, "tokenizer.json"]
            .contains(&name.as_ref())
            || name.starts_with("events.out.tfevents.");
        if ours {
            std::fs::remove_file(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
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
    fn results_are_replaced_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a");
        assert_eq!(claim(&dir, "x", false, "one").unwrap(), dir);
        std::fs::write(dir.join(WEIGHTS_FILE), "weights").unwrap();
        let error = claim(&dir, "x", false, "two").unwrap_err().to_string();
        assert!(error.contains("--overwrite"), "{error}");
        assert_eq!(std::fs::read_to_string(dir.join(CONFIG_FILE)).unwrap(), "one");
        claim(&dir, "x", true, "two").unwrap();
        assert_eq!(std::fs::read_to_string(dir.join(CONFIG_FILE)).unwrap(), "two");
        assert!(!dir.join(WEIGHTS_FILE).exists());
    }
}
