//! How far a run has come: the part of its state that is neither parameters nor the optimizer's.

use brigade_sorted::SortedMap;

/// How far a run has come, and what it has found. Equal on all ranks, to the bit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunProgress {
    /// Steps done.
    pub step: u64,
    /// Batches of data consumed: more than `step` once batches were skipped or rolled back.
    pub position: u64,
    /// Steps that were skipped or rolled back because a value was not finite.
    pub nonfinite: u64,
    /// Mean loss of the last update; NaN if none is known.
    pub loss: f64,
    /// Mean loss of the last validation.
    pub validation_loss: Option<f64>,
    /// Whether a hook has ended the run.
    pub is_stopped: bool,
    /// The step whose weights are the best so far.
    pub best_step: Option<u64>,
    /// The quorum of workers that the parameters come from; 0 where they are of no quorum.
    pub quorum: u64,
    /// Counters of what is watched from validation to validation, under names of their own.
    pub watched: SortedMap<String, u64>,
    /// The steps of each additional model.
    pub added: SortedMap<String, u64>,
}

// The names of counters in a checkpoint. A number that is not whole is saved as its bits.
const NONFINITE: &str = "nonfinite";
const LOSS: &str = "loss_bits";
const VALIDATION_LOSS: &str = "validation_loss_bits";
const STOPPED: &str = "stopped";
const BEST_STEP: &str = "best_step";
const QUORUM: &str = "quorum";
const WATCHED: &str = "watched/";
const ADDED: &str = "steps/";

impl Default for RunProgress {
    fn default() -> Self {
        Self::from_counters(0, 0, &SortedMap::new())
    }
}

impl RunProgress {
    /// As it was saved; older checkpoints have fewer counters.
    pub(crate) fn from_counters(step: u64, position: u64, counters: &SortedMap<String, u64>) -> Self {
        let get = |name: &str| counters.get(name).copied();
        let under = |prefix: &str| {
            let found =
                counters.iter().filter_map(|(name, count)| Some((name.strip_prefix(prefix)?, *count)));
            found.map(|(name, count)| (name.to_owned(), count)).collect()
        };
        Self {
            step,
            position,
            nonfinite: get(NONFINITE).unwrap_or_default(),
            loss: get(LOSS).map_or(f64::NAN, f64::from_bits),
            validation_loss: get(VALIDATION_LOSS).map(f64::from_bits),
            is_stopped: get(STOPPED).is_some_and(|stopped| stopped > 0),
            best_step: best_step(counters),
            quorum: get(QUORUM).unwrap_or_default(),
            watched: under(WATCHED),
            added: under(ADDED),
        }
    }

    pub(crate) fn counters(&self) -> SortedMap<String, u64> {
        let fixed = [
            (NONFINITE, Some(self.nonfinite)),
            (LOSS, Some(self.loss.to_bits())),
            (VALIDATION_LOSS, self.validation_loss.map(f64::to_bits)),
            (STOPPED, self.is_stopped.then_some(1)),
            (BEST_STEP, self.best_step),
            (QUORUM, (self.quorum > 0).then_some(self.quorum)),
        ];
        let fixed = fixed.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?)));
        let under = |prefix, counts: &SortedMap<String, u64>| {
            let named = |(name, count): (&String, &u64)| (format!("{prefix}{name}"), *count);
            counts.iter().map(named).collect::<Vec<_>>()
        };
        fixed.chain(under(WATCHED, &self.watched)).chain(under(ADDED, &self.added)).collect()
    }
}

/// The step of a run's best checkpoint, as the counters in its newest one say; none if the run keeps none.
pub fn best_step(counters: &SortedMap<String, u64>) -> Option<u64> {
    counters.get(BEST_STEP).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_as_it_was_saved() {
        let progress = RunProgress {
            step: 7,
            position: 9,
            nonfinite: 2,
            loss: 0.1 + 0.2,
            validation_loss: Some(f64::MIN_POSITIVE),
            is_stopped: true,
            best_step: Some(4),
            quorum: 5,
            watched: SortedMap::from([("patience".into(), 3)]),
            added: SortedMap::from([("critic".into(), 35)]),
        };
        assert_eq!(RunProgress::from_counters(7, 9, &progress.counters()), progress);
        let first = RunProgress::default();
        assert!(first.loss.is_nan());
        assert_eq!(RunProgress::from_counters(0, 0, &first.counters()).counters(), first.counters());
    }
}
