//! What a run does after its hooks.

use brigade_core::Activation;

use super::Trainer;
use crate::error::{AgreedError, format_error};
use crate::train::watch::Best;
use crate::training_setup::AgreedAnswers;
use crate::world::all_gather_text;

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Does what rank 0's hooks answered; all ranks call it with the same answers. `error` is that of a hook, on rank 0.
    pub(super) fn follow(
        &mut self,
        answers: AgreedAnswers,
        error: Option<anyhow::Error>,
    ) -> anyhow::Result<()> {
        if answers.failed {
            let text = error.as_ref().map(format_error).unwrap_or_default();
            let text = all_gather_text(self.session.group(), &text)?.swap_remove(0);
            return Err(AgreedError(format!("step {}: a hook failed: {text}", self.progress.step)).into());
        }
        self.progress.is_stopped |= answers.stop;
        if answers.save_best {
            self.mark_best();
        }
        Ok(())
    }

    /// From now on the weights are the best: those of the last update.
    pub(super) fn mark_best(&mut self) {
        self.progress.best_step = Some(self.update_step());
        self.best_is_unsaved = true;
    }

    pub(super) fn best(&self) -> Best {
        let watched = &self.progress.watched;
        let value = self.best_checkpoint.as_ref().and_then(|best| best.value(watched));
        Best { step: self.progress.best_step, value }
    }

    /// Goes back to the best checkpoint that is there, because a save failed; not if a better one is yet to be saved.
    pub(super) fn forget_unsaved_best(&mut self) {
        if self.best_is_unsaved {
            return;
        }
        let Best { step, value } = self.best_saved;
        self.progress.best_step = step;
        if let Some(best) = &self.best_checkpoint {
            best.set_value(value, &mut self.progress.watched);
        }
    }
}
