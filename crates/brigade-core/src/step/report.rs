//! What an engine reports.

use std::time::Duration;

use brigade_sorted::SortedMap;

use crate::dist::Traffic;
use crate::metrics::{Clock, Memory};

/// What an evaluation found. It is equal on all ranks, to the bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Mean loss over the valid targets.
    pub loss: f64,
    /// The model's [metrics](crate::Model::metric), by name: means over the same targets.
    pub metrics: SortedMap<String, f64>,
    /// Valid targets of all batches.
    pub targets: u64,
    /// The sum of their [weights](crate::Batch::weighted), which the means are divided by: their number, where none has a weight.
    pub target_weight: f64,
}

/// What an outer step did, in which workers synchronised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterReport {
    /// How many workers took part.
    pub workers: usize,
    /// How many updates of all workers were left out since the last one, because something was not finite. Loss, norm and metrics
    /// are of the others alone. Equal on all ranks.
    pub skipped: u64,
    /// Bytes that this rank sent to other workers.
    pub sent: u64,
    /// How long it took, with the wait for the slowest worker.
    pub time: Duration,
}

/// What a round did, in which workers pushed gradients to servers that applied each at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundReport {
    /// Its steps.
    pub steps: u64,
    /// How many updates servers made between a worker's pull of the parameters and the push of its gradient, in steps of as many updates as
    /// there are workers: the mean over all updates.
    pub staleness_mean: f64,
    /// The most of any update.
    pub staleness_most: f64,
    /// How often a worker waited at the bound for a slower one.
    pub waits: u64,
    /// How long, all workers together.
    pub waited: Duration,
    /// Updates that were left out because something was not finite. Loss, norm and metrics are of the others alone.
    pub skipped: u64,
    /// Where workers are worlds of their own: how many were there at the end, and how often one was lost.
    pub workers: usize,
    /// See `workers`.
    pub lost: u64,
}

/// What one step did, together with those before it that only [accumulated](crate::Engine::accumulate) gradients, or were
/// [inner steps](crate::Engine::inner_step): then it is of all workers, and all their steps since the last outer one. Loss, norm,
/// targets and whether it was skipped are equal on all ranks, to the bit.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// The step, counted from 1.
    pub step: u64,
    /// Mean loss over the valid targets of the global batch.
    pub loss: f64,
    /// The model's [metrics](crate::Model::metric), by name: means over the same targets.
    pub metrics: SortedMap<String, f64>,
    /// Global gradient norm before clipping; of several updates, the mean.
    pub grad_norm: f64,
    /// Valid targets in the global batch.
    pub targets: u64,
    /// The sum of their [weights](crate::Batch::weighted), which the means are divided by: their number, where none has a weight.
    pub target_weight: f64,
    /// Whether the optimizer was left out because something was not finite: on all workers, and in all their steps, where workers
    /// make updates of their own.
    pub skipped: bool,
    /// The outer step, where workers make updates of their own ([`Strategy::outer_schedule`](crate::Strategy::outer_schedule)).
    pub outer: Option<OuterReport>,
    /// The round, where steps are made in [rounds](crate::Rounds); all else is then of all its steps.
    pub round: Option<RoundReport>,
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

impl StepReport {
    /// Whether no update was made because something was not finite, as opposed to a step without a valid target.
    pub fn is_nonfinite(&self) -> bool {
        let found = match (self.outer, self.round) {
            (Some(outer), _) => outer.skipped > 0,
            (_, Some(round)) => round.skipped > 0,
            _ => self.targets > 0,
        };
        self.skipped && found
    }

    /// How many updates were left out because something was not finite: of a step, one; of an outer step or a round, those of all workers.
    pub fn nonfinite_updates(&self) -> u64 {
        match (self.outer, self.round) {
            (Some(outer), _) => outer.skipped,
            (_, Some(round)) => round.skipped,
            _ => u64::from(self.is_nonfinite()),
        }
    }
}
