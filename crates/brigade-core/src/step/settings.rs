//! Settings of an engine.

use std::sync::Arc;

use brigade_plan::PipelineScheduleKind;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::dist::Buckets;
use crate::model::Precision;
use crate::sharding::groups::ParameterGroup;
use crate::sharding::zero::{ReduceEvery, Zero};
use crate::step::forward_backward::check_blocks::CheckBlocks;
use crate::step::forward_backward::recompute::Recompute;
use crate::step::strategy::{Strategy, Synchronous};

/// What to do when the loss or the gradient norm is not finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// End the run; the message names rank, step and block.
    #[default]
    Stop,
    /// Leave weights and optimizer as they are and continue with the next step; also where no target
    /// of the global batch is valid.
    Skip,
}

/// Settings of the step. The default is plain data parallelism in fp32, with an update in each step.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Global-norm clipping: gradients of a larger norm are scaled down to it.
    pub gradient_clipping: Option<f64>,
    /// What to do when the loss or the gradient norm is not finite.
    pub on_nonfinite: NonFinite,
    /// What is sharded over the data-parallel ranks.
    pub zero: Zero,
    /// The schedule of the pipeline; without effect where there is one stage with one chunk.
    pub schedule: PipelineScheduleKind,
    /// Chunks of blocks per pipeline stage (interleaving).
    pub chunks: usize,
    /// How often the gradients of parameters that several pipeline stages share go to the stage that owns them. For every micro-batch, the sums are those of one
    /// process, to the bit; once a step, far less is sent, and the last bits depend on the mesh.
    pub tied_gradients: ReduceEvery,
    /// Number of blocks in each of the `stages · chunks` parts of the model, in order; empty to balance by cost.
    pub split: Vec<usize>,
    /// Which blocks are run again in the backward pass.
    pub recompute: Recompute,
    /// Which forwards are run twice, to compare the outputs.
    pub check_blocks: CheckBlocks,
    /// Number types.
    pub precision: Precision,
    /// Keeps the optimizer's state and fp32 masters on this device, and steps them there: the host's, where the
    /// blocks' device is a different one.
    pub offload: Option<Device>,
    /// In a process without data-parallel peers: sums the gradients of this many neighbouring micro-batches
    /// first, as that many ranks do which sum each micro-batch at once ([`crate::ReduceEvery`]). It makes one
    /// process the reference for them when their number is not a power of two.
    pub sum_group: usize,
    /// Parameters that are trained in another way than the rest. A parameter belongs to the first group whose pattern matches it.
    pub groups: Vec<ParameterGroup>,
    /// Layer-wise decay of the learning rate: that of a block is multiplied by this for each block after it, but those of [the head](crate::Chain::begin_head) count as
    /// one. 1 leaves all the same.
    pub layer_decay: f64,
    /// How ranks that run different micro-batches train together.
    pub strategy: Arc<dyn Strategy>,
    /// Which operations over ranks travel together, as each costs a delay of the network: reductions of gradients, gathers of what ZeRO-1 and 2 have updated,
    /// and outer steps, but not what the next block waits for, nor reductions of [each micro-batch](crate::ReduceEvery). On their way they take their
    /// memory twice.
    pub buckets: Buckets,
    /// Where this world is one worker of several that have worlds of their own: its number among them, by which its micro-batches are
    /// numbered in the global batch, and its inner state is found in a checkpoint of one world. It then makes outer steps by [`UntypedEngine::outer_sums`](crate::UntypedEngine::outer_sums).
    pub worker: Option<usize>,
    /// Whether nothing is trained: all parameters are frozen, so that none has a copy in fp32 beside that in which blocks compute.
    pub inference: bool,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            gradient_clipping: None,
            on_nonfinite: NonFinite::Stop,
            zero: Zero::default(),
            schedule: PipelineScheduleKind::default(),
            chunks: 1,
            tied_gradients: ReduceEvery::MicroBatch,
            split: Vec::new(),
            recompute: Recompute::None,
            check_blocks: CheckBlocks::default(),
            precision: Precision::default(),
            offload: None,
            sum_group: 1,
            groups: Vec::new(),
            layer_decay: 1.0,
            strategy: Arc::new(Synchronous::default()),
            buckets: Buckets::default(),
            worker: None,
            inference: false,
        }
    }
}
