//! The summary at the end of a run.

use std::{fmt, path::PathBuf};

use brigade_sorted::{SortedMap, SortedSet};
use indicatif::{HumanBytes, HumanCount};

use crate::console::counted::number;
use crate::record::{DeviceMemory, RoundRecord, TARGET_COUNTS};
use crate::{counted, duration};

/// The width of the column of names, if none is longer.
const LEAST_WIDTH: usize = 13;

/// A run in a few numbers, counted in this process alone. `Display` gives the lines to print.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Steps that were reported, including those that were undone.
    pub steps: u64,
    /// Where the run ended before its last step, and why, if it did.
    pub ended_early: Option<String>,
    /// The step of the best checkpoint, if one is kept.
    pub best_step: Option<u64>,
    /// What targets are called: `tokens`, `samples`.
    pub unit: String,
    /// What the ranks computed on, where that is known (`8 x NVIDIA H100 80GB HBM3`).
    pub devices: Option<String>,
    /// The step after which this process resumed; none if it started with the first.
    pub resumed_at: Option<u64>,
    /// How often the ranks were restarted before.
    pub restarts: u32,
    /// Steps that were reported, then undone by [`Reporter::rewind`](crate::Reporter::rewind).
    pub undone_steps: u64,
    /// Tokens (or samples) that these steps trained on.
    pub tokens: u64,
    /// Loss of the first step, of those that were not undone.
    pub first_loss: Option<f64>,
    /// Loss of the last step, of those that were not undone.
    pub last_loss: Option<f64>,
    /// The last validation loss that was measured, at a step that was not undone.
    pub validation_loss: Option<f64>,
    /// The last value of each named metric, at a step that was not undone.
    pub metrics: SortedMap<String, f64>,
    /// The same of the validation data.
    pub validation_metrics: SortedMap<String, f64>,
    /// Median of the steps' tokens (or samples) per second.
    pub median_tokens_per_second: Option<f64>,
    /// Median of the steps' TFLOP/s of one rank, where known.
    pub median_tflops: Option<f64>,
    /// Median of the steps' model FLOPs utilization, in percent, where known.
    pub median_mfu_percent: Option<f64>,
    /// Share of all steps' time spent waiting for data, in percent.
    pub data_wait_percent: f64,
    /// Share of all steps' time spent waiting for other ranks, in percent.
    pub comm_wait_percent: f64,
    /// All rounds together, where workers push gradients to servers that apply each at once.
    pub rounds: Option<RoundRecord>,
    /// The most memory of a device, where devices have their own.
    pub device_memory: Option<DeviceMemory>,
    /// The largest resident memory of a rank in the host, in bytes.
    pub peak_rss_bytes: u64,
    /// Checkpoints that were written.
    pub checkpoints: u64,
    /// Mean of the bytes that checkpoints wrote; 0 without any.
    pub checkpoint_bytes: u64,
    /// Share of `seconds` that training was interrupted for checkpoints, in percent.
    pub checkpoint_stall_percent: f64,
    /// Time from the creation of the reporter to its end, in seconds.
    pub seconds: f64,
    /// Files that were written.
    pub files: Vec<PathBuf>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(LEAST_WIDTH);
        for (i, (name, text)) in rows.iter().enumerate() {
            write!(f, "{}{name:<width$} {text}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl Summary {
    /// What each line is about, and what it says.
    fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut row = |name: &str, text: String| rows.push((name.to_owned(), text));
        let loss = |loss: Option<f64>| loss.map_or("-".into(), |loss| format!("{loss:.4}"));
        let (tokens, unit) = (HumanCount(self.tokens), &self.unit);
        let resumed = self.resumed_at.map_or(String::new(), |step| format!(", resumed at step {step}"));
        row(
            "steps",
            format!("{} ({tokens} {unit}) in {}{resumed}", HumanCount(self.steps), elapsed(self.seconds)),
        );
        if self.undone_steps > 0 {
            row("undone", format!("{} of these steps", HumanCount(self.undone_steps)));
        }
        if self.restarts > 0 {
            row("restarts", self.restarts.to_string());
        }
        if let Some(ended) = &self.ended_early {
            row("ended early", ended.clone());
        }
        if self.steps > 0 {
            row("loss", format!("{} -> {}", loss(self.first_loss), loss(self.last_loss)));
        }
        if self.validation_loss.is_some() {
            row("validation", loss(self.validation_loss));
        }
        if let Some(step) = self.best_step {
            row("best", format!("step {}", HumanCount(step)));
        }
        for (name, text) in self.metrics() {
            row(name, text);
        }
        if let Some(rate) = self.median_tokens_per_second {
            row(&format!("{unit}/s"), format!("{} (median)", HumanCount(rate.round() as u64)));
        }
        if let Some(tflops) = self.median_tflops {
            let mfu = self.median_mfu_percent.map_or(String::new(), |mfu| format!(", MFU {mfu:.1}%"));
            row("TFLOP/s", format!("{tflops:.3} a device{mfu} (median)"));
        }
        if let Some(devices) = &self.devices {
            row("devices", devices.clone());
        }
        if self.steps > 0 {
            let (data, ranks) = (self.data_wait_percent, self.comm_wait_percent);
            row("waiting", format!("data {data:.1}%, other ranks {ranks:.1}%"));
        }
        if let Some(RoundRecord { staleness_mean, staleness_max, waits, wait_seconds, .. }) = self.rounds {
            let waits = counted(waits as usize, "time");
            row(
                "staleness",
                format!(
                    "{staleness_mean:.2} steps (mean), {staleness_max:.2} (most); workers waited {waits} at the bound, {wait_seconds:.1} s"
                ),
            );
        }
        if self.checkpoints > 0 {
            let each = if self.checkpoints == 1 { "" } else { " each" };
            let saved = counted(self.checkpoints as usize, "checkpoint");
            let bytes = HumanBytes(self.checkpoint_bytes);
            let stall = self.checkpoint_stall_percent;
            row("saved", format!("{saved}, {bytes}{each}, interrupted training for {stall:.1}% of the time"));
        }
        if let Some(memory) = self.device_memory {
            let of = match (memory.total, memory.peak_percent()) {
                (Some(total), Some(part)) => format!(" of {} ({part:.1}%)", HumanBytes(total)),
                _ => String::new(),
            };
            row("device memory", format!("{}{of} on the fullest device", HumanBytes(memory.reserved_peak)));
        }
        // A run that was over when it was resumed has measured nothing.
        match self.peak_rss_bytes {
            0 => row("peak memory", "–".into()),
            bytes => row("peak memory", format!("{} in the largest rank", HumanBytes(bytes))),
        }
        for (i, file) in self.files.iter().enumerate() {
            row(if i == 0 { "files" } else { "" }, file.display().to_string());
        }
        rows
    }

    /// The last values of the named metrics, of training and of validation. How many targets a step had is no result.
    fn metrics(&self) -> impl Iterator<Item = (&str, String)> {
        let names: SortedSet<&str> = [&self.metrics, &self.validation_metrics]
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect();
        names.into_iter().filter(|name| !TARGET_COUNTS.contains(name)).map(|name| {
            let value = |of: &SortedMap<String, f64>| of.get(name).map(|value| number(*value));
            let text = match (value(&self.metrics), value(&self.validation_metrics)) {
                (Some(trained), Some(validated)) => format!("{trained}, validation {validated}"),
                (Some(trained), None) => trained,
                (None, validated) => format!("validation {}", validated.unwrap_or_default()),
            };
            (name, text)
        })
    }
}

/// `7.3 s`, or as any [`duration`] from a minute on.
fn elapsed(seconds: f64) -> String {
    if seconds < 59.95 { format!("{seconds:.1} s") } else { duration(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StepRecord;
    use crate::totals::Totals;

    #[test]
    fn totals_are_shown() {
        let mut totals = Totals::new(None, 0, None, "images".into());
        for (i, loss) in [5.0, 4.0, 3.5].into_iter().enumerate() {
            totals.add(&StepRecord {
                step: i as u64 + 1,
                loss,
                tflops: Some(0.5),
                tokens: 1000,
                tokens_per_second: 500.0 * (i + 1) as f64,
                step_seconds: 2.0,
                data_wait_seconds: 0.02,
                comm_wait_seconds: 0.1,
                peak_rss_bytes: 1 << 30,
                validation_loss: (i == 1).then_some(4.25),
                metrics: SortedMap::from([
                    ("accuracy".to_owned(), 0.1 * i as f64),
                    ("valid_targets".to_owned(), 1000.0),
                    ("variance".to_owned(), 1e-7),
                ]),
                validation_metrics: SortedMap::from([
                    ("accuracy".to_owned(), 0.125),
                    ("valid_targets".to_owned(), 96.0),
                ]),
                ..StepRecord::default()
            });
        }
        let summary =
            totals.finish(7.0, vec!["runs/a/metrics.jsonl".into(), "runs/a/model.safetensors".into()]);
        assert_eq!(
            summary.to_string(),
            "steps         3 (3,000 images) in 7.0 s\n\
             loss          5.0000 -> 3.5000\n\
             validation    4.2500\n\
             accuracy      0.2000, validation 0.1250\n\
             variance      1.0000e-7\n\
             images/s      1,000 (median)\n\
             TFLOP/s       0.500 a device (median)\n\
             waiting       data 1.0%, other ranks 5.0%\n\
             peak memory   1.00 GiB in the largest rank\n\
             files         runs/a/metrics.jsonl\n              runs/a/model.safetensors"
        );
        let none = Summary {
            ended_early: Some("after step 4 of 9: x".into()),
            best_step: Some(2),
            ..Summary::default()
        };
        let none = none.to_string();
        assert!(
            none.contains("\nended early   after step 4 of 9: x\nbest          step 2\npeak memory"),
            "{none}"
        );
    }

    #[test]
    fn long_times_are_in_minutes_and_hours() {
        assert_eq!([50.46, 59.96, 12_000.0].map(elapsed), ["50.5 s", "59.96 s", "3 h 20 min"]);
    }

    #[test]
    fn a_long_name_moves_the_column() {
        let summary = Summary {
            validation_metrics: SortedMap::from([("next_token_accuracy".to_owned(), 0.5)]),
            ..Summary::default()
        };
        assert_eq!(
            summary.to_string(),
            "steps               0 (0 ) in 0.0 s\n\
             next_token_accuracy validation 0.5000\n\
             peak memory         –"
        );
    }

    #[test]
    fn devices_are_shown_where_there_are_any() {
        let mut totals = Totals::new(None, 0, Some("8 x NVIDIA H100 80GB HBM3".into()), "tokens".into());
        for (peak, rate) in [(30, 390.0), (41, 412.3), (35, 420.0)] {
            totals.add(&StepRecord {
                tflops: Some(rate),
                mfu_percent: Some(rate / 10.0),
                device_memory: Some(DeviceMemory {
                    reserved_peak: peak << 30,
                    total: Some(82 << 30),
                    ..DeviceMemory::default()
                }),
                peak_rss_bytes: 3 << 30,
                ..StepRecord::default()
            });
        }
        let mut summary = totals.finish(1.0, vec![]);
        let text = summary.to_string();
        assert!(
            text.contains(
                "\nTFLOP/s       412.300 a device, MFU 41.2% (median)\ndevices       8 x NVIDIA H100 80GB HBM3\n"
            ),
            "{text}"
        );
        assert!(
            text.ends_with(
                "\ndevice memory 41.00 GiB of 82.00 GiB (50.0%) on the fullest device\n\
                 peak memory   3.00 GiB in the largest rank"
            ),
            "{text}"
        );
        summary.device_memory = Some(DeviceMemory { reserved_peak: 3 << 29, ..DeviceMemory::default() });
        assert!(
            summary.to_string().contains("\ndevice memory 1.50 GiB on the fullest device\n"),
            "{summary}"
        );
    }
}
