//! What failures cost a configuration.

use serde::Serialize;

use super::seconds;
use crate::search::{PlanEvaluation, Workload};
use crate::time::failures::Failures;

/// Failures of a cluster, and how often to save.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailureForecast {
    /// Failures, and what a checkpoint costs.
    pub failures: Failures,
    /// Bytes that a checkpoint writes. Frozen weights do not count: a run writes them once.
    pub checkpoint_bytes: f64,
    /// Seconds until all nodes have written it.
    pub write: f64,
    /// Seconds between checkpoints: as given, or the best by Daly, not below the time of writing.
    pub interval: f64,
    /// The same in steps.
    pub steps: u64,
    /// The interval by Young.
    pub young: f64,
    /// Seconds of work that a failure loses on average.
    pub work: f64,
    /// The share of time that is lost with this interval.
    pub lost: f64,
}

/// How often to save, or none where nothing fails. `interval`: seconds between checkpoints, if they are given.
pub fn failures(
    workload: &Workload,
    evaluation: &PlanEvaluation,
    interval: Option<f64>,
) -> Option<FailureForecast> {
    let cluster = &workload.cluster;
    if cluster.node_mtbf_hours <= 0.0 {
        return None;
    }
    let mtbf = cluster.node_mtbf_hours * 3600.0 / cluster.nodes as f64;
    let accounting = workload.accounting;
    // Weights in fp32 and the optimizer's moments.
    let trained = workload.model.all_trained_parameters() as f64;
    let checkpoint_bytes = trained * (4.0 + accounting.moments as f64);
    let write = checkpoint_bytes / (cluster.storage_bandwidth * cluster.nodes as f64);
    // Training waits only while the state is copied to the host's memory.
    let save = checkpoint_bytes / cluster.devices() as f64 / cluster.host_bandwidth;
    let usual = Failures { mtbf, save, write, restart: cluster.restart };
    // Whole steps, as `--checkpoint-every` counts them.
    let in_steps = |seconds: f64| (seconds / evaluation.seconds).round().max(1.0);
    let best = interval.unwrap_or_else(|| in_steps(usual.daly_interval().max(write)) * evaluation.seconds);
    // A checkpoint waits until the one before it is written.
    let failures = Failures { save: save + (write - best).max(0.0), ..usual };
    Some(FailureForecast {
        failures,
        checkpoint_bytes,
        write,
        interval: best,
        steps: in_steps(best) as u64,
        young: usual.young_interval(),
        work: failures.work(best),
        lost: failures.lost(best),
    })
}

impl FailureForecast {
    /// In a sentence or two.
    pub fn text(&self) -> String {
        let Self { failures, write, interval, steps, young, work, lost, checkpoint_bytes } = self;
        let hours = failures.mtbf / 3600.0;
        let (size, unit) = if *checkpoint_bytes < 1e9 { (1e6, "MB") } else { (1e9, "GB") };
        format!(
            "failures: one in {hours:.1} h; a checkpoint of {:.1} {unit} stops training for {} and is written \
             in {}. With --checkpoint-every {steps} (every {}; Young's formula says {}) a failure loses {} of \
             work and {} until training continues: {:.2}% of the time in all",
            checkpoint_bytes / size,
            seconds(failures.save),
            seconds(*write),
            seconds(*interval),
            seconds(*young),
            seconds(*work),
            seconds(failures.restart),
            100.0 * lost,
        )
    }
}
