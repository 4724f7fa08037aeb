//! The record of one step.

pub mod compute;
mod memory;
mod rounds;

use brigade_sorted::SortedMap;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

pub use memory::{DeviceMemory, MemoryRecord, PLANNED_MEMORY_FILE, PlannedMemory};
pub use rounds::{OuterStepRecord, RoundRecord};

/// Metrics that say how many targets a step had, and no result.
pub const TARGET_COUNTS: [&str; 2] = ["valid_targets", "target_weight"];

/// One step of a run: a line of `metrics.jsonl`, whose field names these are.
///
/// Numbers describe the whole world; the caller gathers them. A number that is not finite is written as
/// `null`, and read back as NaN.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The number of the step, from 1.
    pub step: u64,
    /// Mean loss per target token of the global batch.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Further values of the global batch, by name: sums that were added over all ranks (`valid_targets`), or the mean of
    /// such a sum per valid target (`accuracy`, the share of valid targets that the model ranks first).
    #[serde(default, skip_serializing_if = "SortedMap::is_empty", deserialize_with = "nulls_are_nan")]
    pub metrics: SortedMap<String, f64>,
    /// Global norm of the gradient, before clipping.
    #[serde(deserialize_with = "null_is_nan")]
    pub grad_norm: f64,
    /// The learning rate of this step.
    #[serde(deserialize_with = "null_is_nan")]
    pub learning_rate: f64,
    /// Whether the optimizer step was skipped: something was not finite, or no target was valid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Targets that counted in this step's loss: tokens, unless `unit` says otherwise.
    pub tokens: u64,
    /// What they are called where they are not tokens (`images`): the [`Reporter`](crate::Reporter) sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// `tokens / step_seconds`.
    #[serde(deserialize_with = "null_is_nan")]
    pub tokens_per_second: f64,
    /// TFLOP/s of one rank (one device), where the operations of a token are known: the mean over the ranks. The
    /// [`Reporter`](crate::Reporter) sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// The same in percent of the device's peak (model FLOPs utilization), where that is known. The
    /// [`Reporter`](crate::Reporter) sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu_percent: Option<f64>,
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
    /// a few numbers (`all_gather_scalars`), an activation or its gradient from a neighbouring stage (`pipeline`).
    #[serde(default)]
    pub comm_wait_seconds_by: SortedMap<String, f64>,
    /// Collectives under way that nothing waited for, hidden behind computing or the pipeline, in seconds, mean over the ranks. Old
    /// files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm_hidden_seconds: Option<f64>,
    /// Idle time because of the pipeline, from the start of the step to the end of the last backward of all ranks,
    /// in seconds, mean over the ranks.
    #[serde(default, deserialize_with = "null_is_nan")]
    pub bubble_seconds: f64,
    /// The most micro-batches between forward and backward on a rank, each of one chunk of blocks.
    #[serde(default)]
    pub micro_batches_in_flight: u64,
    /// Payload bytes that all ranks sent in the collectives of the step itself; what gathers this record, and
    /// validation, are not counted.
    pub comm_bytes: u64,
    /// Collectives that the world performed, each counted once.
    pub comm_calls: u64,
    /// The same by collective (`all_reduce`, `all_gather`, …).
    #[serde(default)]
    pub collectives: SortedMap<String, CollectiveRecord>,
    /// Bytes of tensors, by what they are for.
    #[serde(flatten)]
    pub memory: MemoryRecord,
    /// Memory of the devices, where ranks compute on devices with memory of their own.
    #[serde(flatten)]
    pub device_memory: Option<DeviceMemory>,
    /// The largest resident memory in the host that a rank has had so far, in bytes.
    pub peak_rss_bytes: u64,
    /// Mean loss per target token of the validation data, at steps that measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// As `metrics`, of the validation data, at steps that measured it.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty", deserialize_with = "nulls_are_nan")]
    pub validation_metrics: SortedMap<String, f64>,
    /// When the step ended, in seconds since 1970. Old files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// How long rank 0 was in its hooks after the step, in seconds, while the other ranks waited for their answer. Old files have none,
    /// and neither have steps without hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_seconds: Option<f64>,
    /// The step's time on each rank, in worlds of up to 128 ranks; in larger ones only every few steps. Old files have none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "as_many_in_each")]
    pub rank_seconds: Option<RankSeconds>,
    /// The outer step with which a step ended, where workers make updates of their own; all else is then of their steps since the last
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_step: Option<OuterStepRecord>,
    /// The round that a step ended, where workers push gradients to servers that apply each at once; all else is then of all its
    /// steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<RoundRecord>,
    /// A checkpoint that became complete during this step; it may be of an earlier step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRecord>,
}

/// Where a step's time went on each rank, in seconds, one number a rank. What is in none of the parts is time that the training
/// thread spent otherwise: in hooks, in snapshots for a checkpoint, or not running at all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankSeconds {
    /// The whole step.
    pub step: Vec<f64>,
    /// Forward, backward and the optimizer.
    pub compute: Vec<f64>,
    /// Waiting for data.
    pub data_wait: Vec<f64>,
    /// Waiting for other ranks.
    pub comm_wait: Vec<f64>,
}

/// One checkpoint, once it is complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    /// The step that it was saved after.
    pub step: u64,
    /// How long training was interrupted for it, in seconds, on the rank that waited longest.
    #[serde(deserialize_with = "null_is_nan")]
    pub stall_seconds: f64,
    /// Bytes that all ranks wrote: without frozen values that an earlier checkpoint has already.
    pub bytes: u64,
    /// From the beginning of the save until it was complete, in seconds.
    #[serde(deserialize_with = "null_is_nan")]
    pub seconds: f64,
}

/// One kind of collective in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveRecord {
    /// How often the world performed it.
    pub calls: u64,
    /// Payload bytes that all ranks sent in it.
    pub bytes: u64,
}

/// JSON has no NaN and no infinity.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Every rank needs a number in each list.
fn as_many_in_each<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RankSeconds>, D::Error> {
    let read = Option::<RankSeconds>::deserialize(deserializer)?;
    let is_whole = |all: &RankSeconds| {
        let ranks = all.step.len();
        ranks > 0 && [&all.compute, &all.data_wait, &all.comm_wait].iter().all(|part| part.len() == ranks)
    };
    match read.as_ref().is_none_or(is_whole) {
        true => Ok(read),
        false => Err(D::Error::custom("rank_seconds needs a number of every rank in each of its lists")),
    }
}

fn nulls_are_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SortedMap<String, f64>, D::Error> {
    let values = SortedMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
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

    /// The most memory that a rank has taken so far, in GiB: reserved of the device where it has memory of its own, else
    /// resident in the host.
    pub fn peak_memory_gib(&self) -> f64 {
        gib(self.device_memory.map_or(self.peak_rss_bytes, |memory| memory.reserved_peak))
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
    fn named_metrics_are_read_as_they_were_written() {
        let metrics = SortedMap::from([("accuracy".to_owned(), 0.25), ("valid_targets".to_owned(), 4096.0)]);
        let validation_metrics = SortedMap::from([("accuracy".to_owned(), 1.0 / 3.0)]);
        let record = StepRecord { step: 2, metrics, validation_metrics, ..StepRecord::default() };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""metrics":{"accuracy":0.25,"valid_targets":4096.0}"#), "{text}");
        assert!(text.contains(r#""validation_metrics":{"accuracy":0.3333333333333333}"#), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), record);
        let infinite = SortedMap::from([("accuracy".to_owned(), f64::INFINITY)]);
        let text = serde_json::to_string(&StepRecord { metrics: infinite, ..record }).unwrap();
        assert!(text.contains(r#""metrics":{"accuracy":null}"#), "{text}");
        assert!(serde_json::from_str::<StepRecord>(&text).unwrap().metrics["accuracy"].is_nan());
        let none = serde_json::to_string(&StepRecord::default()).unwrap();
        assert!(!none.contains("metrics"), "{none}");
    }

    #[test]
    fn a_checkpoint_is_read_as_it_was_written() {
        let checkpoint =
            CheckpointRecord { step: 50, stall_seconds: 0.1, bytes: 1 << 40, seconds: 1.0 / 3.0 };
        let record = StepRecord { step: 53, checkpoint: Some(checkpoint), ..StepRecord::default() };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""checkpoint":{"step":50,"stall_seconds":0.1,"bytes":"#), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), record);
    }

    /// A line of a version that knew neither devices nor rates.
    #[test]
    fn lines_of_older_runs_are_read() {
        let old = r#"{"step":3,"loss":8.25,"grad_norm":1.5,"learning_rate":0.001,"tokens":4096,"tokens_per_second":2048.0,"step_seconds":2.0,
            "forward_seconds":0.5,"backward_seconds":1.0,"optimizer_seconds":0.25,"data_wait_seconds":0.0,"comm_wait_seconds":0.125,
            "comm_bytes":10,"comm_calls":1,"parameter_bytes":64,"parameter_bytes_peak":64,"gradient_bytes":0,"gradient_bytes_peak":64,
            "optimizer_bytes":128,"optimizer_bytes_peak":128,"activation_bytes":0,"activation_bytes_peak":32,"peak_rss_bytes":1024}"#;
        let record: StepRecord = serde_json::from_str(old).unwrap();
        assert_eq!((record.step, record.memory.activation_bytes_peak, record.peak_rss_bytes), (3, 32, 1024));
        assert_eq!((record.device_memory, record.tflops, record.mfu_percent), (None, None, None));
    }
}
