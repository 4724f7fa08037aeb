//! Steps that are skipped or rolled back because a value is not finite, of all models of a run.

use std::cell::{Cell, RefCell};

use brigade_core::StepReport;
use brigade_sorted::SortedMap;

use crate::error::AgreedError;

/// How many there were, and those of additional models still to be reported. The count is equal on all ranks.
pub(crate) struct NonFiniteSteps {
    /// `train.nonfinite_limit`.
    limit: u64,
    count: Cell<u64>,
    messages: RefCell<Vec<String>>,
    /// The steps that each additional model has skipped since the last record, under the name of a metric.
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

    /// The same for a step that an additional model has skipped.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_skipped(&self, model: &str, report: &StepReport) -> Result<(), AgreedError> {
        let what = format!("step {} of `{model}`", report.step);
        self.add(&what, report)?;
        self.messages.borrow_mut().push(format!("{what}: {}, step skipped", reason(report)));
        *self.skipped.borrow_mut().entry(format!("{model}_skipped_steps")).or_default() += 1.0;
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

/// Why a step made no update.
pub(crate) fn reason(report: &StepReport) -> &'static str {
    match report.is_nonfinite() {
        true if report.target_weight.is_nan() => "a target's weight is negative or not finite",
        true => "loss or gradient norm not finite",
        false => "no valid target in the global batch",
    }
}
