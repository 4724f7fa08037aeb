//! Prometheus' text format, version 0.0.4.

use std::fmt::Write;

use crate::record::StepRecord;

/// What a scrape gets: of the last step, and of the run so far.
pub fn text(record: &StepRecord, total_steps: u64, tokens: u64, restarts: u32) -> String {
    let mut text = String::new();
    let gauges = [
        ("step", "Number of the last step.", Some(record.step as f64)),
        ("total_steps", "Number of steps of the run.", Some(total_steps as f64)),
        ("loss", "Mean loss per target of the last step.", Some(record.loss)),
        (
            "validation_loss",
            "Mean loss per target of the validation data, at steps that measured it.",
            record.validation_loss,
        ),
        ("grad_norm", "Norm of the gradient before clipping.", Some(record.grad_norm)),
        ("learning_rate", "Learning rate of the last step.", Some(record.learning_rate)),
        ("targets_per_second", "Targets per second, over all ranks.", Some(record.tokens_per_second)),
        ("tflops", "TFLOP/s of a rank.", record.tflops),
        ("mfu_ratio", "Model FLOPs utilization.", record.mfu_percent.map(|percent| percent / 100.0)),
        ("step_seconds", "Time of the last step on the slowest rank.", Some(record.step_seconds)),
        (
            "data_wait_seconds",
            "Time of the last step spent waiting for data.",
            Some(record.data_wait_seconds),
        ),
        (
            "comm_wait_seconds",
            "Time of the last step spent waiting for other ranks.",
            Some(record.comm_wait_seconds),
        ),
        ("comm_hidden_seconds", "Time of collectives that was hidden.", record.comm_hidden_seconds),
        ("peak_rss_bytes", "The largest resident memory of a rank.", Some(record.peak_rss_bytes as f64)),
        ("last_step_timestamp_seconds", "When the last step ended, in seconds since 1970.", record.time),
        ("restarts", "How often the ranks were restarted.", Some(f64::from(restarts))),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            family(&mut text, name, "gauge", help);
            line(&mut text, name, "", value);
        }
    }
    family(&mut text, "targets_total", "counter", "Targets since the ranks were started.");
    line(&mut text, "targets_total", "", tokens as f64);
    if !record.metrics.is_empty() {
        family(&mut text, "metric", "gauge", "Additional values of the last step.");
        for (name, value) in &record.metrics {
            let name = name.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            line(&mut text, "metric", &format!("{{name=\"{name}\"}}"), *value);
        }
    }
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a text cannot fail.
    let _ = writeln!(text, "# HELP brigade_{name} {help}\n# TYPE brigade_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: f64) {
    let value = match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        value => value.to_string(),
    };
    let _ = writeln!(text, "brigade_{name}{labels} {value}");
}
