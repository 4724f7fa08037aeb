//! What an engine reports.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dist::Traffic;
use crate::metrics::{Clock, Memory};

/// What an evaluation found. It is equal on all ranks, to the bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Mean loss over the valid targets.
    pub loss: f64,
    /// The model's [metrics](crate::Model::metric), by name: means over the same targets.
    pub metrics: BTreeMap<String, f64>,
    /// Valid targets of all batches.
    pub targets: u64,
    /// The sum of their [weights](crate::Batch::weighted), which the means are divided by: their number, where none has a weight.
    pub target_weight: f64,
}

/// What one step did, together with those before it that only [accumulated](crate::Engine::accumulate) gradients. Loss, norm,
/// targets and whether it was skipped are equal on all ranks, to the bit.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// Mean loss over the valid targets of the global batch.
    pub loss: f64,
    /// The model's [metrics](crate::Model::metric), by name: means over the same targets.
    pub metrics: BTreeMap<String, f64>,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Valid targets in the global batch.
    pub targets: u64,
    /// The sum of their [weights](crate::Batch::weighted), which the means are divided by: their number, where none has a weight.
    pub target_weight: f64,
    /// Whether the optimizer was left out because something was not finite.
    pub skipped: bool,
    /// Where this rank's time went.
    pub clock: Clock,
    /// The time from the step's start to the end of all ranks' last backward in which this rank stood still
    /// because of the pipeline: it waited for a neighbouring stage, or for the other stages to finish.
    pub bubble: Duration,
    /// Most micro-batches that were between forward and backward on this rank, chunk by chunk.
    pub in_flight: usize,
    /// Bytes that this rank holds.
    pub memory: Memory,
    /// Calls and bytes that this rank sent in this step.
    pub traffic: Traffic,
}
