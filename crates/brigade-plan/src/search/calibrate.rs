//! What a run shows of the cluster that it ran on.

use serde::Serialize;

use super::candidate::Candidate;
use super::evaluate::Evaluator;
use super::workload::{PlanError, Workload};
use crate::cluster::{Cluster, Device};
use crate::time::StepParts;

/// The usual step of a run, in seconds of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredStep {
    /// Forward, backward and the optimizer.
    pub compute: f64,
    /// Waiting for other ranks, also for other stages.
    pub waiting: f64,
    /// What is neither, nor waiting for data.
    pub rest: f64,
}

/// A cluster as a run shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibrated {
    /// With the run's rates.
    pub cluster: Cluster,
    /// How many times as fast as before devices compute.
    pub compute: f64,
    /// How many times as fast as before messages are; none where ranks do not wait for them, or where no links explain how long they wait.
    pub links: Option<f64>,
    /// Seconds of a step as predicted before, and with the run's rates.
    pub predicted: [f64; 2],
}

impl MeasuredStep {
    /// A step of so many seconds without waiting for data, of which the rank computed and did other work for as long as is said.
    ///
    /// # Errors
    /// If no time was measured.
    pub fn of(step: f64, compute: f64, rest: f64) -> Result<Self, PlanError> {
        if !(step.is_finite() && step > 0.0) {
            let why = format!("its usual step took {step} s without waiting for data; it must be above 0 s");
            return Err(PlanError::Run(why));
        }
        Ok(Self { compute, waiting: (step - compute - rest).max(0.0), rest })
    }
}

/// How much faster or slower than described devices and links may turn out to be.
const RANGE: f64 = 64.0;

/// Changes the workload's cluster so that a step of this configuration takes what was measured: first how fast devices compute and read memory, then what the host does
/// besides, then the links.
///
/// # Errors
/// If the configuration cannot be, nothing was measured, or devices would be more than 64 times as fast or as slow as described.
pub fn calibrate(
    workload: &Workload,
    candidate: &Candidate,
    measured: &MeasuredStep,
) -> Result<Calibrated, PlanError> {
    if !(measured.compute.is_finite() && measured.compute > 0.0) {
        return Err(PlanError::Run("its metrics have no time of forward and backward".into()));
    }
    let mut workload = workload.clone();
    let before = Evaluator::new(&workload).evaluate(candidate)?;
    let computes = |parts: &StepParts| {
        parts.compute + parts.recompute + parts.contention + parts.optimizer + parts.cores
    };
    let compute = computes(&before.parts) / measured.compute;
    if !(1.0 / RANGE..=RANGE).contains(&compute) {
        return Err(PlanError::Run(format!(
            "it computed {compute:.2e} times as fast as {} is described; from 1/{RANGE} to {RANGE} times is possible (--cluster says what a run was on)",
            workload.cluster.device.name
        )));
    }
    let device = &mut workload.cluster.device;
    compute_at(device, compute);
    device.launch /= compute;
    device.function /= compute;
    device.step = measured.rest.max(0.0);
    let links = links(&workload, candidate, measured.waiting)?;
    if let Some(times) = links {
        workload.cluster = faster(&workload.cluster, times);
    }
    let after = Evaluator::new(&workload).evaluate(candidate)?;
    let cluster = Cluster { measured: None, ..workload.cluster };
    Ok(Calibrated { cluster, compute, links, predicted: [before.seconds, after.seconds] })
}

/// Lets products, attention and memory be this many times as fast. The peaks stay, which MFU is a share of, unless the device does more than they say.
fn compute_at(device: &mut Device, times: f64) {
    let Device { efficiency, peaks, memory_bandwidth, .. } = device;
    let beyond = (efficiency.products.max(efficiency.attention) * times).max(1.0);
    for share in [&mut efficiency.products, &mut efficiency.attention] {
        *share *= times / beyond;
    }
    for peak in [&mut peaks.bf16, &mut peaks.fp16, &mut peaks.tf32, &mut peaks.f32] {
        *peak *= beyond;
    }
    let beyond = (efficiency.memory * times).max(1.0);
    efficiency.memory *= times / beyond;
    *memory_bandwidth *= beyond;
}

/// How many times as fast links must be for ranks to wait so long.
fn links(workload: &Workload, candidate: &Candidate, waiting: f64) -> Result<Option<f64>, PlanError> {
    let waits = |times: f64| -> Result<f64, PlanError> {
        let other = Workload { cluster: faster(&workload.cluster, times), ..workload.clone() };
        let parts = Evaluator::new(&other).evaluate(candidate)?.parts;
        Ok(parts.all_gather + parts.reduce + parts.send + parts.tensor_parallel + parts.bubble)
    };
    let (mut slow, mut fast) = (1.0 / RANGE, RANGE);
    if candidate.pp * candidate.dp * candidate.tp == 1 || waits(fast)? > waiting || waits(slow)? < waiting {
        return Ok(None);
    }
    for _ in 0..40 {
        let middle = f64::sqrt(slow * fast);
        if waits(middle)? > waiting { slow = middle } else { fast = middle }
    }
    Ok(Some(f64::sqrt(slow * fast)))
}

/// With the links that ranks wait for, those between nodes if there are several, this many times as fast.
fn faster(cluster: &Cluster, times: f64) -> Cluster {
    let mut cluster = Cluster { measured: None, ..cluster.clone() };
    let link = if cluster.nodes > 1 { &mut cluster.inter_node } else { &mut cluster.intra_node };
    link.bandwidth *= times;
    link.latency /= times;
    cluster
}
