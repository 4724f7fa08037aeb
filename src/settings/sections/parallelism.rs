//! Settings of the mesh, ZeRO, the pipeline, number types and activation checkpointing.

use brigade_core::plan::PipelineScheduleKind;
use brigade_core::{Dtype, Recompute, ReduceEvery, ReshardAfterForward, Zero};
use serde::{Deserialize, Serialize};

use crate::settings::SettingError;
use crate::settings::sections::backend::{Backend, CollectivesBackend, ComputeDtype};

/// `[mesh]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeshSettings {
    /// Pipeline stages.
    pub pp: usize,
    /// Data-parallel ranks; 0 uses all ranks.
    pub dp: usize,
    /// Replicas of what ZeRO shards: every `dp / replicate` neighbouring ranks hold all shards, and replicas sum their
    /// gradients (hybrid sharding, HSDP). 1 shards over all data-parallel ranks.
    pub replicate: usize,
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self { pp: 1, dp: 0, replicate: 1 }
    }
}

/// `[zero]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ZeroSettings {
    /// What is sharded over the data-parallel ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
    pub stage: u8,
    /// Stage 3: how many blocks ahead parameters are all-gathered.
    pub prefetch: usize,
    /// Stage 3: whether parameters are resharded (freed) after the forward pass: `always`, `never`, or `default`, which is `always` without pipeline stages and
    /// `never` with them.
    pub reshard_after_forward: ReshardAfterForward,
    /// Stage 3: whether parameters stay gathered for all micro-batches of a step.
    pub keep_gathered: bool,
    /// Stages 2 and 3: `micro_batch` or `step`: how often gradients are reduce-scattered.
    pub reduce_every: ReduceEvery,
    /// Whether optimizer state and fp32 master weights are kept and updated on the CPU (for devices with memory of their own).
    pub offload_optimizer: bool,
}

impl Default for ZeroSettings {
    fn default() -> Self {
        let Zero { stage, prefetch, reshard_after_forward, keep_gathered, reduce_every, .. } =
            Zero::default();
        Self { stage, prefetch, reshard_after_forward, keep_gathered, reduce_every, offload_optimizer: false }
    }
}

/// `[pipeline]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineSettings {
    /// `gpipe`, `1f1b`, `interleaved-1f1b`, `zb-h1`, `zb-h2` or `zbv`.
    pub schedule: PipelineScheduleKind,
    /// Model chunks per stage, for interleaved schedules; 2 for `zbv`.
    pub chunks: usize,
    /// Number of blocks in each of the pp x chunks parts of the model; empty balances them.
    pub stages: Vec<usize>,
    /// `cost` or `measured`: what stages are balanced by: the costs that the model's blocks state, or the time that each block
    /// takes in a few runs before the first step.
    pub balance: Balance,
    /// `auto`, `micro_batch` or `step`: how often the gradients of tied weights, such as an embedding that the head reads, go to the stage that owns them. With
    /// `step` much less is sent, and the last bits of the weights depend on the mesh. `auto` is `step` where NCCL sums gradients, so that they do anyway, and else
    /// `micro_batch`.
    pub tied_gradients: TiedGradients,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self {
            schedule: PipelineScheduleKind::default(),
            chunks: 1,
            stages: Vec::new(),
            balance: Balance::default(),
            tied_gradients: TiedGradients::default(),
        }
    }
}

/// How often the gradients of tied weights go to the pipeline stage that owns them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TiedGradients {
    /// Once a step where NCCL sums gradients, else with every micro-batch.
    #[default]
    Auto,
    /// With every micro-batch: the sums are those of one process, to the bit.
    MicroBatch,
    /// Once a step.
    Step,
}

impl TiedGradients {
    /// What it is where these collectives sum gradients.
    pub(crate) fn with(self, collectives: CollectivesBackend) -> ReduceEvery {
        match self {
            Self::Step => ReduceEvery::Step,
            Self::Auto if collectives == CollectivesBackend::Nccl => ReduceEvery::Step,
            Self::MicroBatch | Self::Auto => ReduceEvery::MicroBatch,
        }
    }
}

/// What pipeline stages are balanced by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// The costs that blocks state.
    #[default]
    Cost,
    /// The time that they take, measured before the first step.
    Measured,
}

/// `[compute]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSettings {
    /// `auto`, `cpu`, `cuda` or `wgpu`: the backend that a rank computes on.
    pub backend: Backend,
    /// `auto`, `fp32` or `bf16`: number type of parameters and activations in forward and backward. Master weights and optimizer
    /// state are fp32.
    pub dtype: ComputeDtype,
    /// `fp32` or `bf16`: the number type in which gradients are summed over ranks. With `bf16`, the last bits of the weights
    /// depend on the number of data-parallel ranks.
    pub reduce_dtype: Dtype,
    /// Activation checkpointing: which blocks are recomputed in the backward pass instead of saving their activations: `none`,
    /// `all`, `every-2` (every second), `every-3`, …
    pub recompute: String,
    /// Whether models compute with the fused operations of `brigade::kernels` where the backend has them: on the CPU, CUDA and wgpu, in fp32 and
    /// bf16. With `false` they compute with Burn's own: slower, and with other last bits.
    pub fused: bool,
}

impl Default for ComputeSettings {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            dtype: ComputeDtype::default(),
            reduce_dtype: Dtype::F32,
            recompute: "none".into(),
            fused: true,
        }
    }
}

impl ComputeSettings {
    /// The number type of parameters and activations.
    pub fn resolved_dtype(&self) -> Dtype {
        match self.dtype {
            ComputeDtype::F32 => Dtype::F32,
            ComputeDtype::Bf16 => Dtype::Bf16,
            ComputeDtype::Auto => self.backend.default_dtype(),
        }
    }

    /// Checks that a device supports the number types.
    pub(crate) fn check_types(&self, device: &str, has_bf16: impl Fn() -> bool) -> Result<(), SettingError> {
        let types = [("compute.dtype", self.resolved_dtype()), ("compute.reduce_dtype", self.reduce_dtype)];
        let bf16 = types.into_iter().find(|(_, dtype)| *dtype == Dtype::Bf16);
        let Some((option, _)) = bf16.filter(|_| !has_bf16()) else { return Ok(()) };
        let allowed = format!("{device} does not support bf16; it must be fp32 (--set {option}=fp32)");
        Err(SettingError::new(option, "bf16", allowed))
    }

    pub(crate) fn recompute(&self) -> Result<Recompute, SettingError> {
        let every = self.recompute.strip_prefix("every-").and_then(|k| k.parse().ok()).filter(|k| *k > 0);
        match (self.recompute.as_str(), every) {
            ("none", _) => Ok(Recompute::None),
            ("all", _) => Ok(Recompute::Every(1)),
            (_, Some(k)) => Ok(Recompute::Every(k)),
            _ => Err(SettingError::new(
                "compute.recompute (--recompute)",
                &self.recompute,
                "it must be none, all, or every-K for every K-th block, as in every-2",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn bf16_needs_a_device_that_has_it() {
        let settings = |dtype, reduce_dtype| ComputeSettings {
            backend: Backend::Wgpu,
            dtype,
            reduce_dtype,
            ..ComputeSettings::default()
        };
        settings(ComputeDtype::Auto, Dtype::F32)
            .check_types("a GPU", || panic!("not asked for f32"))
            .unwrap();
        for (dtype, reduce, option) in [
            (ComputeDtype::Bf16, Dtype::F32, "compute.dtype"),
            (ComputeDtype::F32, Dtype::Bf16, "compute.reduce_dtype"),
        ] {
            let settings = settings(dtype, reduce);
            settings.check_types("a GPU", || true).unwrap();
            let said = format!(
                "{option} = bf16 is not possible: a GPU does not support bf16; it must be fp32 (--set {option}=fp32)"
            );
            assert_eq!(settings.check_types("a GPU", || false).unwrap_err().to_string(), said);
        }
    }
}
