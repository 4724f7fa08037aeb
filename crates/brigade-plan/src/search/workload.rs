//! What to train, on which cluster.

use thiserror::Error;

use crate::cluster::{Cluster, Dtype};
use crate::memory::{Accounting, KeptBytes};
use crate::model::ModelShape;
use crate::schedule::ScheduleError;
use crate::split::SplitError;
use crate::time::PlannedAlgorithm;

/// What stages are balanced by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageBalance {
    /// The time of their blocks.
    Time,
    /// The parameters that multiply every token, of which an embedding has none: each part ends with the block that brings it to its share, as Nanotron splits.
    Parameters,
}

/// A training to be planned.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The model.
    pub model: ModelShape,
    /// Where it trains.
    pub cluster: Cluster,
    /// Tokens of a sequence.
    pub sequence_length: usize,
    /// Sequences of a step over all ranks.
    pub global_batch: usize,
    /// The type of the computation.
    pub dtype: Dtype,
    /// What is held of each parameter.
    pub accounting: Accounting,
    /// Bytes of a gradient while it is summed over ranks; less than one where it is compressed.
    pub reduce_bytes: f64,
    /// What is kept of gradients from one update to the next, where they are compressed with error feedback.
    pub kept_bytes: KeptBytes,
    /// Whether attention is fused.
    pub fused_attention: bool,
    /// Whether gathers and reductions run beside the computation.
    pub overlap: bool,
    /// What stages are balanced by.
    pub balance: StageBalance,
    /// How ranks talk in collectives.
    pub algorithm: PlannedAlgorithm,
    /// Ranks that compute slower than others, and how many times longer they take.
    pub slow_ranks: Vec<(usize, f64)>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlanError {
    /// A number that does not go with the others.
    #[error("{option} = {given} is not possible: {allowed}")]
    Setting {
        /// The option's full name.
        option: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// No configuration has the axes that were asked for.
    #[error("no configuration is left: {0}")]
    Nothing(String),
    /// A run shows nothing of its cluster.
    #[error("nothing can be learned from the run: {0}")]
    Run(String),
    /// A schedule that cannot be.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A split that cannot be.
    #[error(transparent)]
    Split(#[from] SplitError),
}

impl PlanError {
    pub(super) fn new(option: &'static str, given: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Setting { option, given: given.to_string(), allowed: allowed.into() }
    }
}

impl Workload {
    /// With what Brigade does by default: bf16 where the device has it, AdamW, gradients summed in fp32 beside the computation, fused attention.
    pub fn new(model: ModelShape, cluster: Cluster, sequence_length: usize, global_batch: usize) -> Self {
        let dtype = cluster.device.default_dtype();
        Self {
            model,
            cluster,
            sequence_length,
            global_batch,
            dtype,
            accounting: Accounting::brigade(dtype, 8),
            reduce_bytes: 4.0,
            kept_bytes: KeptBytes::default(),
            fused_attention: true,
            overlap: true,
            balance: StageBalance::Time,
            algorithm: PlannedAlgorithm::Auto,
            slow_ranks: Vec::new(),
        }
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> f64 {
        self.global_batch as f64 * self.sequence_length as f64
    }

    /// Model FLOPs utilization of a step that takes this many seconds.
    pub fn mfu(&self, seconds: f64) -> f64 {
        let peak = self.cluster.device.peak(self.dtype) * self.cluster.devices() as f64;
        self.model.flops_per_token(self.sequence_length) * self.tokens() / (seconds * peak)
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// If one is 0, a slow rank does not exist, or the device cannot compute in the type.
    pub fn check(&self) -> Result<(), PlanError> {
        let most = 1 << 24;
        for (option, number) in
            [("--sequence-length", self.sequence_length), ("--global-batch-size", self.global_batch)]
        {
            if !(1..=most).contains(&number) {
                return Err(PlanError::new(option, number, format!("it must be from 1 to {most}")));
            }
        }
        if self.algorithm != PlannedAlgorithm::Auto && self.cluster.measured.is_some() {
            let allowed = "the cluster's [measured] bandwidths are those of whatever algorithm its library chose; leave out one of the two";
            return Err(PlanError::new("--algorithm", self.algorithm.name(), allowed));
        }
        let ranks = self.cluster.devices();
        for (rank, factor) in &self.slow_ranks {
            if *rank >= ranks {
                let allowed = format!("the cluster has ranks 0 to {}", ranks - 1);
                return Err(PlanError::new("--slow-rank", format!("{rank}={factor}"), allowed));
            }
            if !(1.0..=1000.0).contains(factor) {
                let allowed = "a rank must take 1 to 1000 times as long as others, as in 3=1.3";
                return Err(PlanError::new("--slow-rank", format!("{rank}={factor}"), allowed));
            }
        }
        if self.cluster.device.peak(self.dtype) <= 0.0 {
            let device = &self.cluster.device;
            let allowed = format!(
                "{} has no hardware for it; its fastest types are {}",
                device.name,
                device.default_dtype().name()
            );
            return Err(PlanError::new("--dtype", self.dtype.name(), allowed));
        }
        Ok(())
    }
}
