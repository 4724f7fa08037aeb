//! The training loop of one rank.
//!
//! `trainer` has its steps, which [`Session::train`] and loops of one's own are written with; the files beside it say how a run
//! begins, what it is, and what it has found.

mod balance;
mod describe;
mod devices;
mod inference;
mod profile;
mod same_bits;
mod same_data;
mod same_model;
mod servers;
mod start;
mod step_stats;
#[cfg(test)]
mod tests;
mod trained;
mod trainer;
mod watch;
mod weights;
mod workers;

use brigade_core::{Activation, Model};

use crate::run::Session;
use crate::training_setup::Training;

pub use trained::Trained;
pub use trainer::{AddedModel, Trainer};

impl Session {
    /// Trains a model on all ranks together, from scratch or from a checkpoint to the end of the run. Rank 0 writes metrics and
    /// weights into the run's folder and shows progress.
    ///
    /// This is the loop that [`Trainer`] shows; write your own if it does not fit.
    ///
    /// # Errors
    /// Whatever ends a run early: data that cannot be read, a loss that is not finite, a failed rank, a full disk, an
    /// interruption.
    pub fn train<I, O, T>(
        &self,
        model: Model<I, O, T>,
        training: Training<I, O, T>,
    ) -> anyhow::Result<Trained<I, O, T>>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone + 'static,
    {
        watch::check_validations(&self.settings)?;
        let mut trainer = self.prepare_for(model, training, false)?;
        while let Some(batches) = trainer.next_batches()? {
            trainer.step_as_read(batches)?;
            if trainer.evaluation_is_due() {
                trainer.evaluate()?;
            }
            if trainer.save_is_due() {
                trainer.save()?;
            }
        }
        trainer.finish()
    }
}
