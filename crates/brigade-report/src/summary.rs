//! What is said at the end of a run.

use std::{fmt, path::PathBuf};

use crate::{
    StepRecord,
    console::{grouped, readable},
    record::{gib, percent},
};

/// A run in a few numbers. `Display` gives the lines to print.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Steps that were reported.
    pub steps: u64,
    /// Tokens that these steps trained on.
    pub tokens: u64,
    /// Loss of the first step.
    pub first_loss: Option<f64>,
    /// Loss of the last step.
    pub last_loss: Option<f64>,
    /// The last validation loss that was measured.
    pub validation_loss: Option<f64>,
    /// Median of the steps' tokens per second.
    pub median_tokens_per_second: Option<f64>,
    /// Share of all steps' time spent waiting for data, in percent.
    pub data_wait_percent: f64,
    /// Share of all steps' time spent waiting for other ranks, in percent.
    pub comm_wait_percent: f64,
    /// The largest resident memory of a rank, in bytes.
    pub peak_rss_bytes: u64,
    /// Time from the creation of the reporter to its end, in seconds.
    pub seconds: f64,
    /// Files that were written.
    pub files: Vec<PathBuf>,
}

/// Adds up records into a [`Summary`].
#[derive(Default)]
pub struct Totals {
    summary: Summary,
    rates: Vec<f64>,
    step_seconds: f64,
    data_wait_seconds: f64,
    comm_wait_seconds: f64,
}

impl Totals {
    pub fn add(&mut self, record: &StepRecord) {
        let summary = &mut self.summary;
        summary.steps += 1;
        summary.tokens += record.tokens;
        summary.first_loss.get_or_insert(record.loss);
        summary.last_loss = Some(record.loss);
        summary.validation_loss = record.validation_loss.or(summary.validation_loss);
        summary.peak_rss_bytes = summary.peak_rss_bytes.max(record.peak_rss_bytes);
        self.rates.push(record.tokens_per_second);
        self.step_seconds += record.step_seconds;
        self.data_wait_seconds += record.data_wait_seconds;
        self.comm_wait_seconds += record.comm_wait_seconds;
    }

    pub fn finish(mut self, seconds: f64, files: Vec<PathBuf>) -> Summary {
        Summary {
            median_tokens_per_second: median(&mut self.rates),
            data_wait_percent: percent(self.data_wait_seconds, self.step_seconds),
            comm_wait_percent: percent(self.comm_wait_seconds, self.step_seconds),
            seconds,
            files,
            ..self.summary
        }
    }
}

/// The middle value, or the mean of the two middle ones.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().saturating_sub(1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loss = |loss: Option<f64>| loss.map_or("-".into(), |loss| format!("{loss:.4}"));
        let seconds = self.seconds;
        writeln!(
            f,
            "steps         {} ({} tokens) in {seconds:.1} s",
            grouped(self.steps),
            readable(self.tokens as f64)
        )?;
        writeln!(f, "loss          {} -> {}", loss(self.first_loss), loss(self.last_loss))?;
        if self.validation_loss.is_some() {
            writeln!(f, "validation    {}", loss(self.validation_loss))?;
        }
        let rate = self.median_tokens_per_second.map_or("-".into(), |rate| grouped(rate.round() as u64));
        writeln!(f, "tokens/s      {rate} (median)")?;
        writeln!(
            f,
            "waiting       data {:.1}%, other ranks {:.1}%",
            self.data_wait_percent, self.comm_wait_percent
        )?;
        write!(f, "peak memory   {:.2} GiB in the largest rank", gib(self.peak_rss_bytes))?;
        for (i, file) in self.files.iter().enumerate() {
            write!(f, "\n{:<14}{}", if i == 0 { "files" } else { "" }, file.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [3.0, 1.0]), Some(2.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn adds_up_and_reads_well() {
        let mut totals = Totals::default();
        for (i, loss) in [5.0, 4.0, 3.5].into_iter().enumerate() {
            totals.add(&StepRecord {
                loss,
                tokens: 1000,
                tokens_per_second: 500.0 * (i + 1) as f64,
                step_seconds: 2.0,
                data_wait_seconds: 0.02,
                comm_wait_seconds: 0.1,
                peak_rss_bytes: 1 << 30,
                validation_loss: (i == 1).then_some(4.25),
                ..StepRecord::default()
            });
        }
        let summary =
            totals.finish(7.0, vec!["runs/a/metrics.jsonl".into(), "runs/a/model.safetensors".into()]);
        assert_eq!(
            summary.to_string(),
            "steps         3 (3.00k tokens) in 7.0 s\n\
             loss          5.0000 -> 3.5000\n\
             validation    4.2500\n\
             tokens/s      1,000 (median)\n\
             waiting       data 1.0%, other ranks 5.0%\n\
             peak memory   1.00 GiB in the largest rank\n\
             files         runs/a/metrics.jsonl\n              runs/a/model.safetensors"
        );
        assert!(Totals::default().finish(0.0, vec![]).to_string().contains("loss          - -> -"));
    }
}
