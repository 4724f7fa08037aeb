//! Steps that are skipped or rolled back because a value is not finite, of all models of a run.

use std::cell::{Cell, RefCell};

use brigade_core::StepReport;
use brigade_report::counted;
use brigade_sorted::SortedMap;

use crate::error::AgreedError;

/// How many there were, and those of additional models still to be reported. The count is equal on all ranks.
pub(crate) struct NonFiniteSteps {
    /// `train.nonfinite_limit`.
    limit: u64,
    count: Cell<u64>,
    messages: RefCell<Vec<String>>,
    /// The updates that each additional model has left out since the last record, under the name of a metric.
    skipped: RefCell<SortedMap<String, f64>>,
}

impl NonFiniteSteps {
    /// `count`: those of before the run was resumed.
    pub fn new(limit: u64, count: u64) -> Self {
        let (messages, skipped) = (RefCell::default(), RefCell::default());
        Self { limit, count: Cell::new(count), messages, skipped }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Counts the updates that were left out because something was not finite; `what` names the step. A step without a valid target does not count.
    ///
    /// # Errors
    /// If there were more than the limit.
    pub fn add(&self, what: &str, report: &StepReport) -> Result<(), AgreedError> {
        let (many, most) = (self.count.get() + report.nonfinite_updates(), self.limit);
        let is_new = many > self.count.replace(many);
        if is_new && most > 0 && many > most {
            return Err(AgreedError(format!(
                "{what}: {}, {many} times in this run; train.nonfinite_limit = {most} allows no more",
                reason(report)
            )));
        }
        Ok(())
    }

    /// The same for a step of an additional model, with what is to be noted and recorded.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_of_model(&self, model: &str, report: &StepReport) -> Result<(), AgreedError> {
        let what = format!("{} of `{model}`", steps_of(report));
        self.add(&what, report)?;
        if let Some(text) = skipped_note(&what, report) {
            self.messages.borrow_mut().push(text);
            // A step without a valid target is one, too.
            let skipped = report.nonfinite_updates().max(1) as f64;
            *self.skipped.borrow_mut().entry(format!("{model}_skipped_steps")).or_default() += skipped;
        }
        Ok(())
    }

    /// What to note.
    pub fn drain_messages(&self) -> Vec<String> {
        self.messages.take()
    }

    /// What to record.
    pub fn take_skipped(&self) -> SortedMap<String, f64> {
        self.skipped.take()
    }
}

/// Whether a report is of several workers, each of which made updates of its own.
fn is_of_workers(report: &StepReport) -> bool {
    report.outer.is_some() || report.round.is_some()
}

/// The steps that a report is of.
pub(crate) fn steps_of(report: &StepReport) -> String {
    format!("{} {}", if is_of_workers(report) { "steps up to" } else { "step" }, report.step)
}

/// What to note of the updates that were left out, if there are any; `what` names the steps.
pub(crate) fn skipped_note(what: &str, report: &StepReport) -> Option<String> {
    match report.nonfinite_updates() {
        skipped @ 1.. if is_of_workers(report) => Some(format!(
            "{what}: loss or gradient norm not finite in updates of workers: {} skipped",
            counted(skipped as usize, "update")
        )),
        _ => report.skipped.then(|| format!("{what}: {}, step skipped", reason(report))),
    }
}

/// Why an update was left out.
pub(crate) fn reason(report: &StepReport) -> &'static str {
    match report.nonfinite_updates() > 0 {
        true if report.target_weight.is_nan() => "a target's weight is negative or not finite",
        true => "loss or gradient norm not finite",
        false => "no valid target in the global batch",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use brigade_core::OuterReport;

    use super::*;
    use crate::train::step_stats::tests::report;

    /// An outer step of two workers, of whose updates this many were left out because something was not finite.
    fn outer_step(skipped: u64) -> StepReport {
        StepReport {
            step: 8,
            outer: Some(OuterReport { workers: 2, skipped, sent: 0, time: Duration::ZERO }),
            ..report()
        }
    }

    #[test]
    fn updates_of_some_workers_count_for_an_additional_model() {
        let steps = NonFiniteSteps::new(4, 0);
        steps.add_of_model("critic", &outer_step(0)).unwrap();
        assert!(steps.drain_messages().is_empty() && steps.take_skipped().is_empty());
        steps.add_of_model("critic", &outer_step(3)).unwrap();
        let said = "steps up to 8 of `critic`: loss or gradient norm not finite in updates of workers: 3 updates skipped";
        assert_eq!((steps.count(), steps.drain_messages()), (3, vec![said.to_owned()]));
        assert_eq!(steps.take_skipped(), SortedMap::from([("critic_skipped_steps".to_owned(), 3.0)]));
        let refused = steps.add_of_model("critic", &outer_step(2)).unwrap_err().to_string();
        let said = "steps up to 8 of `critic`: loss or gradient norm not finite, 5 times in this run; train.nonfinite_limit = 4 allows no more";
        assert_eq!(refused, said);
    }
}
