//! What is sharded over the data-parallel ranks, and when.

use brigade_compress::GatherCodes;
use brigade_plan::ReshardPolicy;
use serde::{Deserialize, Serialize};

use crate::dist::{DATA, DP, Mesh};

/// When ZeRO-3 frees the parameters that it gathered for a block's forward; the names are FSDP's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReshardAfterForward {
    /// Without a pipeline: after use, unless the same block is used next. In a pipeline: like `never`.
    #[default]
    Default,
    /// After every use: least memory, two all-gathers per micro-batch.
    Always,
    /// After the backward: one all-gather per micro-batch, or fewer if micro-batches overlap.
    Never,
}

/// How often gradients that several ranks have are brought together: those of ZeRO-2 and ZeRO-3, and those of parameters that several pipeline stages share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceEvery {
    /// After every micro-batch, so that no rank ever holds more than one block's whole gradient.
    #[default]
    MicroBatch,
    /// Once per update: less traffic, but whole gradients until then.
    Step,
}

/// Sharding over the data-parallel ranks (Rajbhandari et al., "ZeRO: memory optimizations toward
/// training trillion parameter models", 2020).
///
/// | stage | parameters | gradients | optimizer state |
/// |---|---|---|---|
/// | 0 | whole | whole | whole |
/// | 1 | whole | whole | shard |
/// | 2 | whole | shard | shard |
/// | 3 | shard | shard | shard |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zero {
    /// 0 to 3.
    pub stage: u8,
    /// ZeRO-3: how many blocks ahead parameters are gathered.
    pub prefetch: usize,
    /// ZeRO-3: when gathered parameters are freed.
    pub reshard_after_forward: ReshardAfterForward,
    /// ZeRO-3: parameters stay gathered for all micro-batches of a step; overrides `reshard_after_forward`.
    pub keep_gathered: bool,
    /// ZeRO-2 and ZeRO-3: when gradients are summed over the ranks.
    pub reduce_every: ReduceEvery,
    /// What parameters travel as when their shards are gathered: under ZeRO-1 and 2 after an update, under ZeRO-3 before their use. Ranks then
    /// compute with what the codes stand for, a lone one too, so the number of ranks changes no bit; masters, and what is saved, are fp32.
    pub gather_codes: GatherCodes,
}

impl Default for Zero {
    fn default() -> Self {
        Self {
            stage: 0,
            prefetch: 1,
            reshard_after_forward: ReshardAfterForward::Default,
            keep_gathered: false,
            reduce_every: ReduceEvery::MicroBatch,
            gather_codes: GatherCodes::None,
        }
    }
}

impl Zero {
    /// Whether each rank keeps only the optimizer's state of its shard.
    pub fn shards_optimizer(&self) -> bool {
        self.stage >= 1
    }

    /// Whether each micro-batch's gradients are summed over the ranks at once.
    pub fn reduces_each_micro_batch(&self) -> bool {
        self.stage >= 2 && self.reduce_every == ReduceEvery::MicroBatch
    }

    /// Whether parameters are whole only while they are used.
    pub fn shards_parameters(&self) -> bool {
        self.stage >= 3
    }

    /// The index in the global batch of micro-batch `k` of a rank of the mesh, where each has `count` micro-batches.
    ///
    /// Sums are taken pairwise over this index. If a rank adds its own micro-batches first, those are neighbours; if each micro-batch
    /// is summed over the sharding ranks first, those of the ranks are neighbours, and replicas are added last. Either way, what is
    /// added first is a subtree of the global sum (for powers of two), and the result has the same bits.
    ///
    /// ```
    /// use brigade_core::{Mesh, Zero};
    /// let (ddp, mesh) = (Zero::default(), Mesh::data_parallel(2));
    /// assert_eq!([0, 1].map(|k| ddp.micro_batch_number(&mesh, 1, k, 2)), [2, 3]);
    /// let zero3 = Zero { stage: 3, ..ddp };
    /// assert_eq!([0, 1].map(|k| zero3.micro_batch_number(&mesh, 1, k, 2)), [1, 3]);
    /// ```
    pub fn micro_batch_number(&self, mesh: &Mesh, rank: usize, k: usize, count: usize) -> usize {
        let (data, dp) = (mesh.position(rank, &DATA), mesh.size(DP));
        let summed_first = if self.reduces_each_micro_batch() { dp } else { 1 };
        (data / summed_first * count + k) * summed_first + data % summed_first
    }

    /// When gathered parameters are freed, in a pipeline of `stages`.
    pub fn reshard_policy(&self, stages: usize) -> ReshardPolicy {
        match self.reshard_after_forward {
            _ if self.keep_gathered => ReshardPolicy::AfterStep,
            ReshardAfterForward::Always => ReshardPolicy::AfterUse,
            ReshardAfterForward::Default => ReshardPolicy::usual(stages),
            ReshardAfterForward::Never => ReshardPolicy::AfterBackward,
        }
    }
}
