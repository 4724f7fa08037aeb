//! How much of its time and memory a schedule uses, measured by performing it on paper.

use super::simulate::{Sends, SimulatedTimeline, simulate};
use super::{Action, Pipeline, ScheduleError};

impl Pipeline {
    /// What each rank computes when, if a forward takes 1, a backward `backward_ratio` (the halves of a
    /// split backward half of it each) and a transfer nothing.
    ///
    /// # Errors
    /// Where the ratio is not from 0.001 to 1000, or the public numbers were changed and no longer go with
    /// the actions.
    pub fn timeline(&self, backward_ratio: f64) -> Result<SimulatedTimeline, ScheduleError> {
        if !(0.001..=1000.0).contains(&backward_ratio) {
            return Err(ScheduleError::BackwardRatio { given: backward_ratio });
        }
        simulate(self, Sends::Buffered, |_, action| match action {
            Action::Backward(_) => backward_ratio,
            Action::BackwardInput(_) | Action::BackwardWeights(_) => backward_ratio / 2.0,
            _ => 1.0,
        })
    }

    /// What each rank computes when, if an action of a rank takes as long as `seconds` says and a transfer nothing; in those seconds.
    ///
    /// # Errors
    /// Where the public numbers were changed and no longer go with the actions.
    pub fn timeline_of(
        &self,
        seconds: impl Fn(usize, Action) -> f64,
    ) -> Result<SimulatedTimeline, ScheduleError> {
        simulate(self, Sends::Buffered, seconds)
    }

    /// The share of all ranks' time in which they compute nothing, measured on [`Self::timeline`].
    ///
    /// # Errors
    /// Where the ratio is not from 0.001 to 1000, or the public numbers were changed and no longer go with
    /// the actions.
    pub fn bubble_fraction(&self, backward_ratio: f64) -> Result<f64, ScheduleError> {
        Ok(self.timeline(backward_ratio)?.bubble_fraction())
    }

    /// The micro-batches, each through one chunk, whose activations `rank` keeps for their backward at
    /// once, at most. None are kept where there is no backward.
    pub fn peak_in_flight(&self, rank: usize) -> usize {
        if !self.trains() {
            return 0;
        }
        let (mut kept, mut peak) = (0_usize, 0);
        for action in self.actions(rank) {
            if matches!(action, Action::Forward(_)) {
                kept += 1;
                peak = peak.max(kept);
            } else if action.frees().is_some() {
                kept = kept.saturating_sub(1);
            }
        }
        peak
    }

    /// The tasks between the halves of their backward on `rank` at once, at most: their activations are kept, and the gradients of
    /// their outputs.
    pub fn peak_deferred(&self, rank: usize) -> usize {
        let (mut waiting, mut peak) = (0_usize, 0);
        for action in self.actions(rank) {
            match action {
                Action::BackwardInput(_) => waiting += 1,
                Action::BackwardWeights(_) => waiting = waiting.saturating_sub(1),
                _ => {}
            }
            peak = peak.max(waiting);
        }
        peak
    }

    /// Whether anything runs backward.
    pub fn trains(&self) -> bool {
        self.actions.iter().flatten().any(|action| action.frees().is_some())
    }
}
