//! Which scalars TensorBoard gets, and under which names.

use std::borrow::Cow;

use crate::record::{CheckpointRecord, StepRecord, gib};

/// The scalars of a step, under torchtitan's names where it has one. The rates `tflops` and `mfu(%)` are those of one rank.
/// `memory/max_active` is the host's; where devices have memory of their own, the host's has another name. Named metrics are
/// `metrics/<name>` and `validation_metrics/<name>`.
pub fn step_scalars(step: &StepRecord) -> Vec<(Cow<'_, str>, f64)> {
    let device = step.device_memory;
    let always = [
        ("loss_metrics/global_avg_loss", step.loss),
        ("grad_norm", step.grad_norm),
        ("learning_rate", step.learning_rate),
        ("time_metrics/end_to_end(s)", step.step_seconds),
        ("time_metrics/forward(s)", step.forward_seconds),
        ("time_metrics/backward(s)", step.backward_seconds),
        ("time_metrics/optimizer(s)", step.optimizer_seconds),
        ("time_metrics/data_loading(s)", step.data_wait_seconds),
        ("time_metrics/data_loading(%)", step.data_wait_percent()),
        ("time_metrics/comm_wait(s)", step.comm_wait_seconds),
        ("time_metrics/comm_wait(%)", step.comm_wait_percent()),
        (
            if device.is_some() { "memory/host_max_resident(GiB)" } else { "memory/max_active(GiB)" },
            gib(step.peak_rss_bytes),
        ),
        ("comm/bytes", step.comm_bytes as f64),
        ("comm/calls", step.comm_calls as f64),
    ];
    let sometimes = [
        ("time_metrics/comm_hidden(s)", step.comm_hidden_seconds),
        ("tflops", step.tflops),
        ("mfu(%)", step.mfu_percent),
        ("memory/active(GiB)", device.map(|memory| gib(memory.in_use))),
        ("memory/reserved(GiB)", device.map(|memory| gib(memory.reserved))),
        ("memory/max_reserved(GiB)", device.map(|memory| gib(memory.reserved_peak))),
        ("memory/max_reserved(%)", device.and_then(|memory| memory.peak_percent())),
        ("validation_metrics/global_avg_loss", step.validation_loss),
    ];
    let fixed =
        always.into_iter().chain(sometimes.into_iter().filter_map(|(tag, value)| Some((tag, value?))));
    let named = [("metrics", &step.metrics), ("validation_metrics", &step.validation_metrics)];
    let named = named.into_iter().flat_map(|(group, metrics)| {
        metrics.iter().map(move |(name, value)| (Cow::Owned(format!("{group}/{name}")), *value))
    });
    let throughput = match &step.unit {
        None => Cow::Borrowed("throughput(tps)"),
        Some(unit) => Cow::Owned(format!("throughput({unit}/s)")),
    };
    let fixed = fixed.map(|(tag, value)| (Cow::Borrowed(tag), value));
    fixed.chain([(throughput, step.tokens_per_second)]).chain(named).collect()
}

/// Those of a step's validation.
pub fn validation_scalars(step: &StepRecord) -> Vec<(Cow<'_, str>, f64)> {
    let mut scalars = step_scalars(step);
    scalars.retain(|(tag, _)| tag.starts_with("validation_metrics/"));
    scalars
}

/// The scalars of a checkpoint.
pub fn checkpoint_scalars(checkpoint: &CheckpointRecord) -> [(Cow<'static, str>, f64); 3] {
    [
        ("checkpoint/stall_seconds", checkpoint.stall_seconds),
        ("checkpoint/write_seconds", checkpoint.seconds),
        ("checkpoint/bytes", checkpoint.bytes as f64),
    ]
    .map(|(tag, value)| (Cow::Borrowed(tag), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_says_what_it_counts() {
        let tag = |unit: Option<&str>| {
            let step =
                StepRecord { unit: unit.map(str::to_owned), tokens_per_second: 7.0, ..StepRecord::default() };
            let tag = step_scalars(&step).into_iter().find(|(tag, _)| tag.starts_with("throughput"));
            tag.map(|(tag, value)| (tag.into_owned(), value))
        };
        assert_eq!(tag(None), Some(("throughput(tps)".into(), 7.0)));
        assert_eq!(tag(Some("images")), Some(("throughput(images/s)".into(), 7.0)));
    }
}
