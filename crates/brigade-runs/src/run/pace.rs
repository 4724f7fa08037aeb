//! How long the steps of a run take.

use brigade_report::{RunEvent, StepRecord, median};

use super::Run;

/// The usual time of a step in seconds. A record may cover several: those since the record before it, and the first those since the step
/// `before`, where that is known.
pub fn seconds_per_step(records: &[StepRecord], before: Option<u64>) -> Option<f64> {
    let each = |record: &StepRecord, steps: u64| {
        (steps > 0 && record.step_seconds > 0.0).then(|| record.step_seconds / steps as f64)
    };
    let later =
        records.windows(2).filter_map(|pair| each(&pair[1], pair[1].step.saturating_sub(pair[0].step)));
    median(later).or_else(|| {
        let first = records.first()?;
        let steps = match (&first.round, &first.outer_step) {
            (Some(round), _) => round.steps,
            (None, None) => 1,
            (None, Some(_)) => first.step.checked_sub(before?)?,
        };
        each(first, steps)
    })
}

impl Run {
    /// How long the steps that are left will take, in seconds, at the usual pace; none if none are left, or either is not known.
    pub fn seconds_left(&self) -> Option<f64> {
        let last = self.records.last()?;
        let left = self.total_steps()?.checked_sub(last.step).filter(|left| *left > 0)?;
        let resumed_at = match self.started()? {
            RunEvent::Started { resumed_at, .. } => resumed_at.filter(|at| *at < last.step),
            _ => None,
        };
        Some(left as f64 * seconds_per_step(&self.records, Some(resumed_at.unwrap_or(0)))?)
    }
}

#[cfg(test)]
mod tests {
    use brigade_report::{OuterStepRecord, RoundRecord};

    use super::*;

    fn record(step: u64, step_seconds: f64) -> StepRecord {
        StepRecord { step, step_seconds, ..StepRecord::default() }
    }

    #[test]
    fn the_time_of_a_record_is_that_of_the_steps_since_the_one_before() {
        let synchronous = [record(1, 9.0), record(2, 2.0), record(3, 2.0)];
        assert_eq!(seconds_per_step(&synchronous, None), Some(2.0));
        assert_eq!(seconds_per_step(&[record(7, 2.0)], None), Some(2.0));
        let local = [50, 100, 150]
            .map(|step| StepRecord { outer_step: Some(OuterStepRecord::default()), ..record(step, 100.0) });
        assert_eq!(seconds_per_step(&local, None), Some(2.0));
        assert_eq!(seconds_per_step(&local[1..2], Some(50)), Some(2.0));
        assert_eq!(seconds_per_step(&local[1..2], None), None, "nobody knows how many steps it covers");
        let round = RoundRecord { steps: 25, ..RoundRecord::default() };
        assert_eq!(
            seconds_per_step(&[StepRecord { round: Some(round), ..record(75, 50.0) }], None),
            Some(2.0)
        );
        assert_eq!(seconds_per_step(&[], Some(0)), None);
    }
}
