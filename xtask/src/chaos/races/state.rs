//! What is in the folder between rounds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::chaos::run::{Reference, RunDir, TEXT, WEIGHTS};

/// The folder at a moment when no command runs.
pub struct State {
    /// Whether a run has begun.
    pub begun: bool,
    pub newest: Option<u64>,
    /// The run's weights.
    pub weights: Option<Vec<u8>>,
    /// Files of weights and pictures, by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl State {
    pub fn of(folder: &Path, run: &RunDir) -> Result<Self> {
        let mut contents = BTreeMap::new();
        for name in files(folder)? {
            contents.insert(name.clone(), fs::read(folder.join(name))?);
        }
        Ok(Self {
            begun: run.file("config.toml").exists(),
            newest: run.names().newest(),
            weights: fs::read(run.file(WEIGHTS)).ok(),
            files: contents,
        })
    }

    pub fn is_finished(&self, reference: &Reference) -> bool {
        self.weights.as_ref() == Some(&reference.weights)
    }
}

/// The files that commands of a round have written next to the run.
pub fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name != TEXT && !name.starts_with("step-") {
            names.push(name);
        }
    }
    Ok(names)
}
