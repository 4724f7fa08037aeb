//! What all ranks tell each other of a step, and the record that becomes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use brigade_core::{Bytes, Collectives, Operation, StepReport, Traffic, WAITS};
use brigade_report::{CheckpointRecord, MemoryRecord, StepRecord};

use crate::checkpoint::Progress;

/// What a rank tells the others beside its figures.
pub(crate) struct News {
    /// How far it is with saving a checkpoint.
    pub saving: Progress,
    /// Whether a signal told it that its machine is about to be taken away.
    pub preempted: bool,
}

/// What each rank tells the others of its step.
pub(crate) struct Shares {
    /// How far each rank is with saving a checkpoint.
    pub saving: Vec<Progress>,
    /// Whether any rank is about to lose its machine.
    pub preempted: bool,
    /// Longest step of any rank.
    step_seconds: f64,
    /// Means over the ranks, in the order of [`share`].
    seconds: [f64; 6],
    /// Means over the ranks, by what was waited for.
    waits: [f64; WAITS.len()],
    /// The largest of any rank.
    peak_rss_bytes: u64,
    in_flight: u64,
    memory: MemoryRecord,
    /// Calls of the world, and the bytes of all ranks.
    traffic: Traffic,
}

const OPERATIONS: [Operation; 7] = [
    Operation::AllReduce,
    Operation::ReduceScatter,
    Operation::AllGather,
    Operation::Broadcast,
    Operation::Send,
    Operation::Exchange,
    Operation::Barrier,
];

/// Exchanges what this rank has of a step; all ranks call it.
pub(crate) fn share(
    collectives: &dyn Collectives,
    report: &StepReport,
    data_wait: Duration,
    step: Duration,
    news: News,
) -> anyhow::Result<Shares> {
    let clock = &report.clock;
    let seconds =
        [clock.forward, clock.backward, clock.optimizer, data_wait, clock.comm_wait(), report.bubble];
    let memory = report.memory;
    let memory = [memory.parameters, memory.gradients, memory.optimizer, memory.activations];
    let mut values =
        vec![step.as_secs_f64(), brigade_report::peak_rss_bytes() as f64, report.in_flight as f64];
    values.extend(memory.iter().flat_map(|Bytes { live, peak }| [*live as f64, *peak as f64]));
    let means = values.len();
    values.extend(seconds.iter().map(Duration::as_secs_f64));
    values.extend(WAITS.map(|what| clock.waits.get(what).map_or(0.0, Duration::as_secs_f64)));
    let counts = values.len();
    for operation in OPERATIONS {
        let (calls, bytes) = report.traffic.get(&operation).copied().unwrap_or_default();
        values.extend([calls as f64, bytes as f64]);
    }
    let told = values.len();
    values.extend([f64::from(news.saving as u8), f64::from(u8::from(news.preempted))]);
    let all = collectives.exchange(values).wait()?;
    let sum = |index: usize| all.iter().map(|values| values[index]).sum::<f64>();
    let most = |index: usize| all.iter().map(|values| values[index]).fold(0.0, f64::max);
    let traffic = OPERATIONS.iter().enumerate().map(|(index, operation)| {
        (*operation, (most(counts + 2 * index) as u64, sum(counts + 2 * index + 1) as u64))
    });
    Ok(Shares {
        saving: all.iter().map(|values| Progress::from_number(values[told])).collect(),
        preempted: most(told + 1) > 0.0,
        step_seconds: most(0),
        seconds: std::array::from_fn(|index| sum(means + index) / all.len() as f64),
        waits: std::array::from_fn(|index| sum(means + seconds.len() + index) / all.len() as f64),
        peak_rss_bytes: most(1) as u64,
        in_flight: most(2) as u64,
        memory: MemoryRecord {
            parameter_bytes: most(3) as u64,
            parameter_bytes_peak: most(4) as u64,
            gradient_bytes: most(5) as u64,
            gradient_bytes_peak: most(6) as u64,
            optimizer_bytes: most(7) as u64,
            optimizer_bytes_peak: most(8) as u64,
            activation_bytes: most(9) as u64,
            activation_bytes_peak: most(10) as u64,
        },
        traffic: traffic.filter(|(_, (calls, _))| *calls > 0).collect(),
    })
}

/// The step of the whole world.
pub(crate) fn record(
    report: &StepReport,
    learning_rate: f64,
    shares: &Shares,
    validation_loss: Option<f64>,
    checkpoint: Option<CheckpointRecord>,
) -> StepRecord {
    let [forward, backward, optimizer, data_wait, comm_wait, bubble] = shares.seconds;
    let collectives: BTreeMap<String, brigade_report::Collective> = shares
        .traffic
        .iter()
        .map(|(operation, (calls, bytes))| {
            (operation.name().to_owned(), brigade_report::Collective { calls: *calls, bytes: *bytes })
        })
        .collect();
    StepRecord {
        step: report.step,
        loss: report.loss,
        grad_norm: report.grad_norm,
        learning_rate,
        skipped: report.skipped,
        tokens: report.targets,
        tokens_per_second: report.targets as f64 / shares.step_seconds,
        step_seconds: shares.step_seconds,
        forward_seconds: forward,
        backward_seconds: backward,
        optimizer_seconds: optimizer,
        data_wait_seconds: data_wait,
        comm_wait_seconds: comm_wait,
        comm_wait_seconds_by: WAITS
            .into_iter()
            .zip(shares.waits)
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(what, seconds)| (what.to_owned(), seconds))
            .collect(),
        bubble_seconds: bubble,
        micro_batches_in_flight: shares.in_flight,
        memory: shares.memory,
        comm_bytes: collectives.values().map(|c| c.bytes).sum(),
        comm_calls: collectives.values().map(|c| c.calls).sum(),
        collectives,
        peak_rss_bytes: shares.peak_rss_bytes,
        validation_loss,
        checkpoint,
    }
}
