//! The records of a run, added up to its summary.

use std::path::PathBuf;

use brigade_sorted::SortedMap;

use crate::median::median;
use crate::record::{CheckpointRecord, StepRecord, percent};
use crate::summary::Summary;

/// Adds up records into a [`Summary`].
#[derive(Default)]
pub struct Totals {
    summary: Summary,
    rates: Vec<f64>,
    tflops: Vec<f64>,
    mfu_percents: Vec<f64>,
    /// Step, loss and validation loss of the steps that were not undone.
    losses: Vec<(u64, f64, Option<f64>)>,
    /// The step of the last record; an update may have several steps.
    last: u64,
    metrics: Series,
    validation_metrics: Series,
    checkpoint_bytes: u128,
    checkpoint_stall_seconds: f64,
    step_seconds: f64,
    data_wait_seconds: f64,
    comm_wait_seconds: f64,
}

/// The values of named metrics, each with its step, of the steps that were not undone.
#[derive(Default)]
struct Series(SortedMap<String, Vec<(u64, f64)>>);

impl Series {
    fn add(&mut self, step: u64, metrics: &SortedMap<String, f64>) {
        for (name, value) in metrics {
            self.0.entry(name.clone()).or_default().push((step, *value));
        }
    }

    fn rewind(&mut self, step: u64) {
        self.0.values_mut().for_each(|values| values.retain(|(number, _)| *number <= step));
    }

    fn last(self) -> SortedMap<String, f64> {
        let last = |(name, values): (String, Vec<(u64, f64)>)| Some((name, values.last()?.1));
        self.0.into_iter().filter_map(last).collect()
    }
}

impl Totals {
    pub fn new(resumed_at: Option<u64>, restarts: u32, devices: Option<String>, unit: String) -> Self {
        let summary = Summary { resumed_at, restarts, devices, unit, ..Summary::default() };
        Self { last: resumed_at.unwrap_or(0), summary, ..Self::default() }
    }

    pub fn add(&mut self, record: &StepRecord) {
        let summary = &mut self.summary;
        summary.steps += record.step.saturating_sub(self.last);
        self.last = record.step;
        summary.tokens += record.tokens;
        summary.peak_rss_bytes = summary.peak_rss_bytes.max(record.peak_rss_bytes);
        if let Some(memory) = record.device_memory {
            summary.device_memory = Some(summary.device_memory.unwrap_or_default().most(memory));
        }
        if let Some(round) = &record.round {
            summary.rounds.get_or_insert_default().add(round);
        }
        self.rates.push(record.tokens_per_second);
        self.tflops.extend(record.tflops);
        self.mfu_percents.extend(record.mfu_percent);
        self.step_seconds += record.step_seconds;
        self.data_wait_seconds += record.data_wait_seconds;
        self.comm_wait_seconds += record.comm_wait_seconds;
        self.losses.push((record.step, record.loss, record.validation_loss));
        self.metrics.add(record.step, &record.metrics);
        self.validation_metrics.add(record.step, &record.validation_metrics);
        record.checkpoint.iter().for_each(|checkpoint| self.add_checkpoint(checkpoint));
    }

    /// Adds what a validation found after the last record.
    pub fn add_validation(&mut self, record: &StepRecord) {
        if let Some((step, _, validation_loss)) = self.losses.last_mut()
            && *step == record.step
        {
            *validation_loss = record.validation_loss;
        }
        self.validation_metrics.add(record.step, &record.validation_metrics);
    }

    pub fn add_checkpoint(&mut self, checkpoint: &CheckpointRecord) {
        self.summary.checkpoints += 1;
        self.checkpoint_bytes += u128::from(checkpoint.bytes);
        self.checkpoint_stall_seconds += checkpoint.stall_seconds;
    }

    /// Later steps still count as time spent, but no longer with their losses and metrics.
    pub fn rewind(&mut self, step: u64) {
        self.losses.retain(|(number, ..)| *number <= step);
        self.summary.undone_steps += self.last.saturating_sub(step);
        self.last = self.last.min(step);
        self.metrics.rewind(step);
        self.validation_metrics.rewind(step);
    }

    pub fn finish(self, seconds: f64, files: Vec<PathBuf>) -> Summary {
        let checkpoints = u128::from(self.summary.checkpoints);
        Summary {
            first_loss: self.losses.first().map(|(_, loss, _)| *loss),
            last_loss: self.losses.last().map(|(_, loss, _)| *loss),
            validation_loss: self.losses.iter().rev().find_map(|(.., loss)| *loss),
            metrics: self.metrics.last(),
            validation_metrics: self.validation_metrics.last(),
            checkpoint_bytes: self.checkpoint_bytes.checked_div(checkpoints).unwrap_or(0) as u64,
            checkpoint_stall_percent: percent(self.checkpoint_stall_seconds, seconds),
            median_tokens_per_second: median(self.rates),
            median_tflops: median(self.tflops),
            median_mfu_percent: median(self.mfu_percents),
            data_wait_percent: percent(self.data_wait_seconds, self.step_seconds),
            comm_wait_percent: percent(self.comm_wait_seconds, self.step_seconds),
            seconds,
            files,
            ..self.summary
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_shows_restarts_and_undone_steps() {
        let mut totals = Totals::new(Some(50), 2, None, "tokens".into());
        for step in [51, 52, 53, 52] {
            if step == 52 && totals.summary.steps == 3 {
                totals.rewind(51);
            }
            let checkpoint =
                CheckpointRecord { step, stall_seconds: 0.01, bytes: (29 + (step - 50)) << 20, seconds: 1.0 };
            totals.add(&StepRecord {
                step,
                loss: step as f64,
                validation_loss: (step == 51).then_some(3.0),
                checkpoint: (step != 51).then_some(checkpoint),
                ..StepRecord::default()
            });
        }
        let summary = totals.finish(30.0, vec![]);
        let text = summary.to_string();
        assert!(
            text.starts_with(
                "steps         4 (0 tokens) in 30.0 s, resumed at step 50\n\
                 undone        2 of these steps\n\
                 restarts      2\n\
                 loss          51.0000 -> 52.0000\n\
                 validation    3.0000\n"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "\nsaved         3 checkpoints, 31.33 MiB each, interrupted training for 0.1% of the time\n"
            ),
            "{text}"
        );
        let one = Summary { checkpoints: 1, checkpoint_bytes: 3 << 29, ..Summary::default() }.to_string();
        assert!(
            one.contains("saved         1 checkpoint, 1.50 GiB, interrupted training for 0.0% of the time"),
            "{one}"
        );
    }

    #[test]
    fn losses_and_metrics_of_undone_steps_do_not_count() {
        let metrics = |value| SortedMap::from([("accuracy".to_owned(), value)]);
        let after = |last_step| {
            let mut totals = Totals::new(Some(3), 0, None, "tokens".into());
            totals.add(&StepRecord { step: 4, loss: 2.0, metrics: metrics(0.25), ..StepRecord::default() });
            totals.add(&StepRecord {
                step: 5,
                validation_loss: Some(1.0),
                metrics: metrics(0.75),
                validation_metrics: metrics(0.5),
                ..StepRecord::default()
            });
            totals.rewind(last_step);
            totals.finish(1.0, vec![])
        };
        let summary = after(3);
        assert_eq!((summary.first_loss, summary.last_loss, summary.validation_loss), (None, None, None));
        assert_eq!((summary.steps, summary.undone_steps, summary.metrics), (2, 2, SortedMap::new()));
        let summary = after(4);
        assert_eq!((summary.last_loss, summary.metrics), (Some(2.0), metrics(0.25)));
        assert_eq!(summary.validation_metrics, SortedMap::new());
        let summary = after(5);
        assert_eq!((summary.metrics, summary.validation_metrics), (metrics(0.75), metrics(0.5)));
    }
}
