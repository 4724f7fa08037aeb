//! Training that is killed at random moments until it finishes.
//!
//! After each kill: no process is left, every visible checkpoint is whole, none was lost. At the end of a run: the bytes of
//! its weights and its losses are those of the run that was never killed.

mod count;
mod kill;
mod plan;
mod training;

use std::path::PathBuf;

use crate::chaos::run::{Mesh, Reference, remove};
use training::Run;

pub use count::Counts;
pub use training::name;

/// What all runs have in common.
pub struct Setup {
    pub brigade: PathBuf,
    /// Where the runs are; no other process works there.
    pub folder: PathBuf,
    pub seed: u64,
    pub meshes: Vec<Mesh>,
    pub reference: Reference,
}

impl Setup {
    /// Does one run after another until there were enough kills, or `only` the run with this number. If one fails, gives its
    /// number and the error.
    pub fn kill(
        &self,
        enough: u32,
        only: Option<u32>,
        counts: &mut Counts,
    ) -> Result<(), (u32, anyhow::Error)> {
        let mut number = only.unwrap_or(0);
        while counts.kills() < enough {
            Run::new(self, number, enough).complete(counts).map_err(|error| (number, error))?;
            remove(&self.folder.join(name(number))).map_err(|error| (number, error))?;
            eprintln!("run {number} ended as it should; {} of {enough} kills", counts.kills());
            number += 1;
            if only.is_some() {
                break;
            }
        }
        Ok(())
    }
}
