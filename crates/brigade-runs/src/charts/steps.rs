//! The charts of a run's steps.

use std::collections::BTreeSet;

use brigade_report::{StepRecord, TARGET_COUNTS};

use super::thin::{Aggregation, Thinned};
use super::{Chart, Charts, Series};

/// More points would make the page large and no clearer.
const MAX_POINTS: usize = 4000;

/// A number of a record, where it has one.
type Number<'a> = Box<dyn Fn(&StepRecord) -> Option<f64> + 'a>;

/// A chart before its numbers are taken from the records.
struct Wanted<'a> {
    id: String,
    title: String,
    hint: &'static str,
    unit: &'static str,
    stacked: bool,
    log: bool,
    series: Vec<(String, Number<'a>)>,
}

impl<'a> Wanted<'a> {
    fn new(id: &str, title: &str, unit: &'static str, hint: &'static str) -> Self {
        let (id, title) = (id.to_owned(), title.to_owned());
        Self { id, title, hint, unit, stacked: false, log: false, series: Vec::new() }
    }

    fn stacked(self) -> Self {
        Self { stacked: true, ..self }
    }

    fn log(self) -> Self {
        Self { log: true, ..self }
    }

    fn with(mut self, name: &str, number: impl Fn(&StepRecord) -> Option<f64> + 'a) -> Self {
        self.series.push((name.to_owned(), Box::new(number)));
        self
    }

    /// The chart without series that have no number, or only zeros where they are parts of a whole; none if no series is left.
    fn chart(self, records: &[StepRecord], thinned: &Thinned) -> Option<Chart> {
        let aggregation = if self.stacked { Aggregation::Mean } else { Aggregation::Extremes };
        let mut series = Vec::new();
        for (name, number) in self.series {
            let finite = |record| number(record).filter(|value| value.is_finite());
            let values: Vec<Option<f64>> = records.iter().map(finite).collect();
            let known = values.iter().flatten().count();
            let is_nothing = self.stacked && values.iter().flatten().all(|value| *value == 0.0);
            if known > 0 && !is_nothing {
                let values =
                    thinned.values(&values, aggregation).into_iter().map(|value| value.map(six_digits));
                series.push(Series { name, sparse: 2 * known < records.len(), values: values.collect() });
            }
        }
        let Self { id, title, hint, unit, stacked, log, .. } = self;
        (!series.is_empty()).then_some(Chart { id, title, hint, unit, stacked, log, series })
    }
}

/// The charts of these records. `unit`: what targets are called.
pub fn charts(records: &[StepRecord], unit: &str) -> Charts {
    let thinned = Thinned::to(records.len(), MAX_POINTS);
    let steps: Vec<u64> = records.iter().map(|record| record.step).collect();
    let begin = records.first().and_then(|first| Some(first.time? - first.step_seconds));
    let times: Option<Vec<f64>> =
        records.iter().map(|record| Some((1e3 * (record.time? - begin?)).round() / 1e3)).collect();
    Charts {
        steps: thinned.places(&steps),
        times: times.map(|times| thinned.places(&times)),
        steps_per_point: thinned.steps_per_point(),
        charts: wanted(records, unit)
            .into_iter()
            .filter_map(|chart| chart.chart(records, &thinned))
            .collect(),
    }
}

fn wanted<'a>(records: &[StepRecord], unit: &str) -> Vec<Wanted<'a>> {
    let mut all = vec![
        Wanted::new(
            "loss",
            "Loss",
            "number",
            "Mean loss per valid target of each step's batch, and of the validation data.",
        )
        .with("loss", |record| Some(record.loss))
        .with("validation", |record| record.validation_loss),
    ];
    all.extend(metric_charts(records));
    all.extend([
        Wanted::new("learning-rate", "Learning rate", "number", "As set by the schedule.")
            .with("learning rate", |record| Some(record.learning_rate)),
        Wanted::new("gradient-norm", "Gradient norm", "number", "Of the whole gradient, before clipping.")
            .log()
            .with("gradient norm", |record| Some(record.grad_norm)),
        Wanted::new("throughput", &format!("Throughput: {unit} per second"), "rate", "Total of all ranks.")
            .with(&format!("{unit}/s"), |record| Some(record.tokens_per_second)),
        Wanted::new("mfu", "Model FLOPs utilization", "percent", "Of a device's peak, mean over the ranks.")
            .with("MFU", |record| record.mfu_percent),
    ]);
    if records.iter().all(|record| record.mfu_percent.is_none()) {
        let hint = "Of one device, mean over the ranks; its peak is not known.";
        all.push(Wanted::new("tflops", "TFLOP/s", "number", hint).with("TFLOP/s", |record| record.tflops));
    }
    all.extend([time_chart(records), communication_chart(), memory_chart(), traffic_chart(records)]);
    all
}

/// One chart for each named metric, of training and validation.
fn metric_charts<'a>(records: &[StepRecord]) -> Vec<Wanted<'a>> {
    let of = |record: &StepRecord| -> Vec<String> {
        record.metrics.keys().chain(record.validation_metrics.keys()).cloned().collect()
    };
    let names: BTreeSet<String> =
        records.iter().flat_map(of).filter(|name| !TARGET_COUNTS.contains(&name.as_str())).collect();
    let chart = |(index, name): (usize, String)| {
        let (own, validation) = (name.clone(), name.clone());
        Wanted::new(&format!("metric-{index}"), &name, "number", "")
            .with(&name, move |record| record.metrics.get(&own).copied())
            .with("validation", move |record| record.validation_metrics.get(&validation).copied())
    };
    names.into_iter().enumerate().map(chart).collect()
}

/// Where a step's time went, mean over the ranks.
fn time_chart<'a>(records: &[StepRecord]) -> Wanted<'a> {
    let hint = "Means over the ranks. `other` is the rest: hooks, snapshots, and time after a rank was done before the slowest.";
    let mut chart = Wanted::new("time", "Time of a step by part", "seconds", hint)
        .stacked()
        .with("forward", |record| Some(record.forward_seconds))
        .with("backward", |record| Some(record.backward_seconds))
        .with("optimizer", |record| Some(record.optimizer_seconds))
        .with("waiting for data", |record| Some(record.data_wait_seconds));
    let waits: BTreeSet<&String> =
        records.iter().flat_map(|record| record.comm_wait_seconds_by.keys()).collect();
    for wait in waits {
        let name = wait.clone();
        chart = chart.with(&format!("waiting: {wait}"), move |record| {
            Some(record.comm_wait_seconds_by.get(&name).copied().unwrap_or(0.0))
        });
    }
    chart.with("other", |record| Some(other_seconds(record)))
}

/// Communication that is waited for, and that which is hidden, of runs that recorded it.
fn communication_chart<'a>() -> Wanted<'a> {
    let hint = "Collectives of a rank, mean over the ranks: waited for (exposed), or running while it computed or the pipeline waited (hidden).";
    Wanted::new("communication", "Communication of a step", "seconds", hint)
        .stacked()
        .with("exposed", |record| record.comm_hidden_seconds.map(|_| exposed_seconds(record)))
        .with("hidden", |record| record.comm_hidden_seconds)
}

/// Waits for collectives: all but those for the pipeline and for servers.
fn exposed_seconds(record: &StepRecord) -> f64 {
    let waits = record.comm_wait_seconds_by.iter();
    waits
        .filter(|(what, _)| !["pipeline", "server"].contains(&what.as_str()))
        .map(|(_, seconds)| seconds)
        .sum()
}

/// What none of a step's parts counts.
fn other_seconds(record: &StepRecord) -> f64 {
    let StepRecord { forward_seconds, backward_seconds, optimizer_seconds, .. } = record;
    let parts = [forward_seconds, backward_seconds, optimizer_seconds, &record.data_wait_seconds];
    (record.step_seconds - parts.into_iter().sum::<f64>() - record.comm_wait_seconds).max(0.0)
}

fn memory_chart<'a>() -> Wanted<'a> {
    let hint = "The peak so far, on the rank with the most of each; the process as the system counts it.";
    Wanted::new("memory", "Memory of a rank by part", "bytes", hint)
        .with("parameters", |record| Some(record.memory.parameter_bytes_peak as f64))
        .with("gradients", |record| Some(record.memory.gradient_bytes_peak as f64))
        .with("optimizer", |record| Some(record.memory.optimizer_bytes_peak as f64))
        .with("activations between blocks", |record| Some(record.memory.activation_bytes_peak as f64))
        .with("whole process", |record| Some(record.peak_rss_bytes as f64))
        .with("device, reserved", |record| Some(record.device_memory?.reserved as f64))
}

fn traffic_chart<'a>(records: &[StepRecord]) -> Wanted<'a> {
    let mut chart =
        Wanted::new("traffic", "Sent in a step, by collective", "bytes", "Total of all ranks.").stacked();
    let kinds: BTreeSet<&String> = records.iter().flat_map(|record| record.collectives.keys()).collect();
    for kind in kinds {
        let name = kind.clone();
        chart = chart.with(kind, move |record| {
            Some(record.collectives.get(&name).map_or(0.0, |collective| collective.bytes as f64))
        });
    }
    chart
}

/// Rounded to what a chart can show.
fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}
