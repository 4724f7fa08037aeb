//! The runs that a server watches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::views::Views;
use crate::error::{Error, Result};
use crate::page::{Row, row};
use crate::run::{Follower, Run, is_run, run_folders};

/// A run in progress.
struct Followed {
    follower: Follower,
    /// Counts the times that something changed.
    version: u64,
    /// It as it was read last, and of which version that is.
    run: Option<(u64, Arc<Run>)>,
    /// It in the table of all runs, likewise.
    row: Option<(u64, Row)>,
    views: Arc<Mutex<Views>>,
}

/// A run as it was read last, and its views.
pub type WithViews = (Arc<Run>, Arc<Mutex<Views>>);

impl Followed {
    /// It as it is now, which all who ask share until it changes.
    fn run(&mut self) -> Result<Arc<Run>> {
        match &self.run {
            Some((version, run)) if *version == self.version => Ok(Arc::clone(run)),
            _ => {
                let run = Arc::new(self.follower.run()?);
                self.run = Some((self.version, Arc::clone(&run)));
                Ok(run)
            }
        }
    }

    /// It in the table, made again only where it changed; none before its first step.
    fn row(&mut self) -> Option<Row> {
        if self.row.as_ref().is_none_or(|(version, _)| *version != self.version) {
            self.row = self.run().ok().and_then(|run| Some((self.version, row(&run)?)));
        }
        self.row.as_ref().map(|(_, row)| row.clone())
    }
}

/// A run, or the runs in a folder, as they are now.
pub struct Watched {
    folder: PathBuf,
    runs: Mutex<BTreeMap<String, Followed>>,
}

impl Watched {
    /// The run in a folder, or all runs in it.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(folder: &Path) -> Result<Self> {
        let watched = Self { folder: folder.to_owned(), runs: Mutex::default() };
        if watched.look()?.is_empty() {
            return Err(Error::NoRuns { path: folder.to_owned() });
        }
        Ok(watched)
    }

    /// The folder's name.
    pub fn name(&self) -> String {
        self.folder.display().to_string()
    }

    /// The name of the run, if there is just this one.
    pub fn only(&self) -> Option<String> {
        is_run(&self.folder).then(|| self.look().ok()?.into_keys().next()).flatten()
    }

    /// Looks at all files again: the runs, each with the number of its changes.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn look(&self) -> Result<BTreeMap<String, u64>> {
        let folders = run_folders(&self.folder)?;
        let mut runs = self.runs();
        runs.retain(|_, run| folders.iter().any(|folder| folder == run.follower.dir()));
        for folder in folders {
            let name = crate::run::name_of(&folder);
            let run = runs.entry(name).or_insert_with(|| Followed {
                follower: Follower::new(&folder),
                version: 0,
                run: None,
                row: None,
                views: Arc::default(),
            });
            // A file that is just being replaced is there the next time.
            if run.follower.poll().unwrap_or(false) {
                run.version += 1;
            }
        }
        Ok(runs.iter().map(|(name, run)| (name.clone(), run.version)).collect())
    }

    /// A run as it is now, with its views, which are made without the lock that those who ask for other runs wait for.
    ///
    /// # Errors
    /// If it has no step yet. None if there is no such run.
    pub fn run(&self, name: &str) -> Option<Result<WithViews>> {
        self.look().ok()?;
        let mut runs = self.runs();
        let followed = runs.get_mut(name)?;
        Some(followed.run().map(|run| (run, Arc::clone(&followed.views))))
    }

    /// All runs that have a step, in the table.
    pub fn all(&self) -> Vec<Row> {
        drop(self.look());
        self.runs().values_mut().filter_map(Followed::row).collect()
    }

    fn runs(&self) -> MutexGuard<'_, BTreeMap<String, Followed>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
