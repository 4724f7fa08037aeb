//! What a framework holds of each parameter, and what it does otherwise than Brigade.

use serde::Serialize;

use crate::cluster::Dtype;

/// What is held of a parameter, in bytes, how gradients are added up, and how a framework computes and reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Accounting {
    /// The parameter in forward and backward.
    pub parameter: u64,
    /// What each rank keeps of a parameter in its shard under ZeRO-3, besides the masters.
    pub parameter_shard: u64,
    /// A gradient of one micro-batch, where it is held apart from the sum.
    pub gradient: u64,
    /// An element of the sum over micro-batches.
    pub sum: u64,
    /// Whether sums are added pairwise, so that several of them are held in between.
    pub pairwise: bool,
    /// The master weight.
    pub master: u64,
    /// The optimizer's moments.
    pub moments: u64,
    /// Whether every stage that reads a shared parameter steps it, not its owner alone.
    pub steps_copies: bool,
    /// Whether what tensor-parallel ranks gather for their products is kept whole for the backward. Else each keeps its shard, and they gather again.
    pub keeps_gathered: bool,
    /// Whether the loss is one kernel over the logits forward and one backward. Else each of its operations reads and writes them in fp32.
    pub fused_loss: bool,
    /// Whether tensor-parallel ranks add up the gradients of a product's inputs while they compute those of its weights.
    pub hides_tensor_sums: bool,
    /// Whether ranks that shard the optimizer's state alone (ZeRO-1) sum their whole gradients once the last backward is over. Else they reduce shards during it.
    pub sums_after_backward: bool,
}

impl Accounting {
    /// As Brigade trains: sums in fp32, added pairwise; fp32 masters where the computation is in 16 bits, which are a shard's only copy
    /// under ZeRO-3. `moments` are 8 bytes for AdamW.
    pub fn brigade(dtype: Dtype, moments: u64) -> Self {
        let has_masters = dtype != Dtype::F32;
        Self {
            parameter: dtype.bytes(),
            parameter_shard: if has_masters { 0 } else { 4 },
            gradient: 0,
            sum: 4,
            pairwise: true,
            master: if has_masters { 4 } else { 0 },
            moments,
            steps_copies: false,
            keeps_gathered: true,
            fused_loss: true,
            hides_tensor_sums: false,
            sums_after_backward: false,
        }
    }

    /// Mixed-precision Adam as the ZeRO paper counts it: 2 + 2 + 12 bytes (Rajbhandari et al. 2020, section 3.1).
    pub fn mixed_adam() -> Self {
        Self {
            parameter: 2,
            parameter_shard: 2,
            gradient: 0,
            sum: 2,
            pairwise: false,
            master: 4,
            moments: 8,
            steps_copies: true,
            keeps_gathered: true,
            fused_loss: true,
            hides_tensor_sums: false,
            sums_after_backward: false,
        }
    }

    /// Megatron-LM's: gradients are summed in fp32, so 18 bytes, or 6 + 12/N with a sharded optimizer; of inputs of products each tensor-parallel rank keeps its shard
    /// (Korthikanti et al. 2022, section 4.2.2).
    pub fn megatron() -> Self {
        Self { sum: 4, keeps_gathered: false, ..Self::mixed_adam() }
    }

    /// Gradients in 16 bits for each micro-batch, and sums in fp32 besides, as frameworks on top of PyTorch's `DistributedDataParallel` have them: 20 bytes. What else takes time is
    /// Nanotron's in early 2025: `DistributedDataParallel` is left out where the optimizer is sharded (`_init_model` and `training_step` in `trainer.py`), the loss is made of PyTorch's
    /// operations (`_ShardedCrossEntropy` in `tensor_parallel/functional.py`), and reductions run beside the products of weights' gradients (`_ColumnLinearAsyncCommunication` there).
    pub fn separate_sums() -> Self {
        Self {
            gradient: 2,
            sum: 4,
            fused_loss: false,
            hides_tensor_sums: true,
            sums_after_backward: true,
            ..Self::mixed_adam()
        }
    }

    /// All by name.
    pub const NAMES: [&'static str; 4] = ["brigade", "mixed-adam", "megatron", "separate-sums"];

    /// The one of this name.
    pub fn named(name: &str, dtype: Dtype, moments: u64) -> Option<Self> {
        let fixed = |accounting: Self| Self { moments, ..accounting };
        match name {
            "brigade" => Some(Self::brigade(dtype, moments)),
            "mixed-adam" => Some(fixed(Self::mixed_adam())),
            "megatron" => Some(fixed(Self::megatron())),
            "separate-sums" => Some(fixed(Self::separate_sums())),
            _ => None,
        }
    }

    /// Buffers of sums that are held at once while this many gradients are added: pairwise sums of 1, 2, 4, … terms, one per binary digit of the number
    /// of terms. Sums over the ranks (`reduced`) stay until all terms are there; of others each is reduced as soon as its last term has come.
    pub fn sums(&self, terms: usize, reduced: bool) -> u64 {
        let most = if reduced { terms + 1 } else { terms };
        if self.pairwise { u64::from(most.max(2).ilog2()) } else { 1 }
    }
}
