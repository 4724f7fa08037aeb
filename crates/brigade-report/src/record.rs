//! What one step leaves behind.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// One step of a run: a line of `metrics.jsonl`, whose field names these are.
///
/// Numbers are of the whole world; the caller gathers them. A number that is not finite is written as
/// `null`, and read back as NaN.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The number of the step, from 1.
    pub step: u64,
    /// Mean loss per target token of the global batch.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Global norm of the gradient, before clipping.
    #[serde(deserialize_with = "null_is_nan")]
    pub grad_norm: f64,
    /// The learning rate of this step.
    #[serde(deserialize_with = "null_is_nan")]
    pub learning_rate: f64,
    /// Whether the optimizer was left out: something was not finite, or no target was valid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Target tokens (or samples) that counted in this step's loss.
    pub tokens: u64,
    /// `tokens / step_seconds`.
    #[serde(deserialize_with = "null_is_nan")]
    pub tokens_per_second: f64,
    /// The whole step, in seconds, of the rank that took longest.
    #[serde(deserialize_with = "null_is_nan")]
    pub step_seconds: f64,
    /// Forward passes, in seconds, mean over the ranks.
    #[serde(deserialize_with = "null_is_nan")]
    pub forward_seconds: f64,
    /// Backward passes, in seconds, mean over the ranks.
    #[serde(deserialize_with = "null_is_nan")]
    pub backward_seconds: f64,
    /// Norm, clipping and the optimizer, in seconds, mean over the ranks.
    #[serde(deserialize_with = "null_is_nan")]
    pub optimizer_seconds: f64,
    /// Waiting for data, in seconds, mean over the ranks.
    #[serde(deserialize_with = "null_is_nan")]
    pub data_wait_seconds: f64,
    /// Waiting for other ranks, in seconds, mean over the ranks.
    #[serde(deserialize_with = "null_is_nan")]
    pub comm_wait_seconds: f64,
    /// The same by what was waited for: sums of gradients (`all_reduce`, `reduce_scatter`), parameters (`all_gather`),
    /// a few numbers (`exchange`), an activation or its gradient from a neighbouring stage (`pipeline`).
    #[serde(default)]
    pub comm_wait_seconds_by: BTreeMap<String, f64>,
    /// Standing still because of the pipeline, from the start of the step to the end of the last backward of all ranks,
    /// in seconds, mean over the ranks.
    #[serde(default, deserialize_with = "null_is_nan")]
    pub bubble_seconds: f64,
    /// Most micro-batches between forward and backward on a rank, of one chunk of blocks each.
    #[serde(default)]
    pub micro_batches_in_flight: u64,
    /// Payload bytes that all ranks sent in the collectives of the step itself; what gathers this record, and
    /// validation, are not counted.
    pub comm_bytes: u64,
    /// Collectives that the world performed, each counted once.
    pub comm_calls: u64,
    /// The same by collective (`all_reduce`, `all_gather`, …).
    #[serde(default)]
    pub collectives: BTreeMap<String, Collective>,
    /// What tensors are for, in bytes.
    #[serde(flatten)]
    pub memory: MemoryRecord,
    /// The largest resident memory that a rank has had so far, in bytes.
    pub peak_rss_bytes: u64,
    /// Mean loss per target token of the validation data, at steps that measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// A checkpoint whose files were found whole on disk at this step; it may hold an earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRecord>,
}

/// One checkpoint, once it is whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    /// The step after which training goes on from it.
    pub step: u64,
    /// How long training stood still for it, in seconds, on the rank that stood longest.
    #[serde(deserialize_with = "null_is_nan")]
    pub stall_seconds: f64,
    /// Bytes that all ranks wrote.
    pub bytes: u64,
    /// From the beginning of the save until it was whole, in seconds.
    #[serde(deserialize_with = "null_is_nan")]
    pub seconds: f64,
}

/// Bytes of tensors by what they are for, on the rank that holds most of a kind; at the end of the step, and the most
/// so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryRecord {
    /// Parameters: whole, shards, gathered, fp32 masters.
    pub parameter_bytes: u64,
    /// The most of them so far.
    pub parameter_bytes_peak: u64,
    /// Gradients: being added up, on their way, and reduced.
    pub gradient_bytes: u64,
    /// The most of them so far.
    pub gradient_bytes_peak: u64,
    /// The optimizer's state.
    pub optimizer_bytes: u64,
    /// The most of it so far.
    pub optimizer_bytes_peak: u64,
    /// What micro-batches in flight keep at the cuts between blocks.
    pub activation_bytes: u64,
    /// The most of it so far.
    pub activation_bytes_peak: u64,
}

/// One kind of collective in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// How often the world performed it.
    pub calls: u64,
    /// Payload bytes that all ranks sent in it.
    pub bytes: u64,
}

/// JSON has no NaN and no infinity.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl StepRecord {
    /// The share of the step spent waiting for data, in percent.
    pub fn data_wait_percent(&self) -> f64 {
        percent(self.data_wait_seconds, self.step_seconds)
    }

    /// The share of the step spent waiting for other ranks, in percent.
    pub fn comm_wait_percent(&self) -> f64 {
        percent(self.comm_wait_seconds, self.step_seconds)
    }

    /// The peak memory in GiB.
    pub fn peak_rss_gib(&self) -> f64 {
        gib(self.peak_rss_bytes)
    }
}

/// `part` of `whole` in percent; 0 of nothing is 0.
pub fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Bytes in GiB.
pub fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// What is known about the arithmetic of a step. The columns that hang on it appear only when it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Compute {
    /// Floating-point operations per token, forward and backward: `6·N + 12·L·h·seq` for a transformer with
    /// `N` parameters, `L` layers of width `h`, and sequences of length `seq`. The caller decides whether `N`
    /// counts the embedding, and says so.
    pub flops_per_token: Option<f64>,
    /// Operations per second that all devices of the world could do at best.
    pub peak_flops: Option<f64>,
}

impl Compute {
    /// TFLOP/s of a step, of the whole world.
    pub fn tflops(&self, record: &StepRecord) -> Option<f64> {
        self.flops_per_token.map(|flops| flops * record.tokens_per_second / 1e12)
    }

    /// The share of the peak that a step used (model FLOPs utilization), in percent.
    pub fn mfu_percent(&self, record: &StepRecord) -> Option<f64> {
        let peak = self.peak_flops.filter(|peak| *peak > 0.0)?;
        self.tflops(record).map(|tflops| percent(tflops * 1e12, peak))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_stay_json() {
        let record = StepRecord { loss: f64::NAN, grad_norm: f64::INFINITY, ..StepRecord::default() };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""loss":null,"grad_norm":null,"learning_rate":0.0"#), "{text}");
        assert!(!text.contains("validation_loss") && !text.contains("checkpoint"));
        let back: StepRecord = serde_json::from_str(&text).unwrap();
        assert!(back.loss.is_nan() && back.grad_norm.is_nan());
    }

    #[test]
    fn a_checkpoint_comes_back_as_it_went() {
        let checkpoint =
            CheckpointRecord { step: 50, stall_seconds: 0.1, bytes: 1 << 40, seconds: 1.0 / 3.0 };
        let record = StepRecord { step: 53, checkpoint: Some(checkpoint), ..StepRecord::default() };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""checkpoint":{"step":50,"stall_seconds":0.1,"bytes":"#), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), record);
    }

    #[test]
    fn utilization_is_known_only_with_its_parts() {
        let record = StepRecord { tokens_per_second: 2e3, ..StepRecord::default() };
        let mut compute = Compute { flops_per_token: Some(1e9), peak_flops: None };
        assert_eq!((compute.tflops(&record), compute.mfu_percent(&record)), (Some(2.0), None));
        compute.peak_flops = Some(8e12);
        assert_eq!(compute.mfu_percent(&record), Some(25.0));
        assert_eq!(StepRecord::default().data_wait_percent(), 0.0);
    }
}
