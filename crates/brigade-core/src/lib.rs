//! The strategies that distribute the training of a Burn model over ranks.
//!
//! A model is a list of [blocks](Block), and each runs in its own autodiff graph. A block's parameters are in one
//! [flat buffer](FlatLayout), whole or in [shards](Zero). An [`Engine`] runs a rank's share of a training step, that is, the
//! actions that a [schedule](plan::Pipeline) lists for its stage. It communicates with the other ranks of the mesh through
//! [`Collectives`], a trait that a backend crate implements. This crate knows neither devices nor transports, and models know
//! nothing about parallelism.
//!
//! Invariants:
//! - **Order of sums.** Gradients and losses are added pairwise over the global index of the
//!   micro-batch ([`PairwiseSum`]): inside a rank first, then over ranks in the same pattern
//!   ([`Collectives::all_reduce`]). With a power-of-two number of micro-batches per rank, both
//!   trees form one tree over the global batch, so the sum has the same bits on any number of ranks. If each micro-batch is summed
//!   over the ranks at once, micro-batches are [numbered](Zero::micro_batch_number) so that the same holds for power-of-two
//!   numbers of ranks.
//! - **One order of communication.** What a rank sends and gathers, and when, is derived from its list of actions before the step
//!   begins, never from timing.
//! - **One division.** A micro-batch's loss is a sum over valid targets, divided once, before the backward, by the number of valid
//!   targets in the global batch, or the exact sum of their weights ([`Batch::weighted`]). After that, only clipping and gradient
//!   hooks scale anything. If an update has several steps ([`Engine::accumulate`]), that number is not known so early, and the
//!   optimizer divides the summed gradient by it.
//! - **Same decisions everywhere.** Ranks decide (to clip, to skip a step, to stop) only from values that are equal to the bit on
//!   all of them, or, if workers make their own updates ([`LocalUpdates`]), on all ranks of their worker.
//! - **Keys are paths.** Everything that leaves a process is keyed by block name and parameter path, never by
//!   Burn's parameter ids, which are random per process.

mod dist;
mod error;
mod exact_sum;
mod measure;
mod metrics;
mod model;
pub mod nn;
mod optim;
mod sharding;
mod state;
mod step;

pub use brigade_compress as compress;
pub use brigade_derive::Activation;
pub use brigade_plan as plan;
pub use brigade_plan::CHUNK;
pub use brigade_random::keyed_seed;
pub use dist::{
    Axis, Buckets, CollectiveKind, Collectives, DATA, DP, Groups, Mesh, Message, PP, Pending, PendingTensor,
    PendingValues, REPLICATE, ReshardedBuffer, SingleRankGroup, Traffic, UnshardedBuffer, WORKERS,
};
pub use error::{BoxError, Error, NonFiniteLocation, Result};
pub use measure::{HeapMeter, MeasuredActivations};
pub use metrics::{Activity, Bytes, Clock, Memory, Span, WAITS};
pub use model::{
    Activation, Batch, Block, BlockCache, Blocks, Cache, Chain, Dtype, ForwardContext, Model, NamedTensor,
    ParameterCounts, ParameterGradients, Part, Parts, Precision, SmallerModel, SplitForward, initialize,
    with_seed,
};
pub use optim::{
    Elementwise, FlatOptimizer, FlatState, LearningRateScaling, LrScheduler, LrSchedulerKind,
    OptimizerFactory, SavedState, clip_factor,
};
pub use sharding::{
    FlatLayout, FlatParam, ParameterGroup, ReduceEvery, ReshardAfterForward, SeparateWorlds, Zero,
};
pub use state::{Snapshot, StateReader, saved_workers};
pub use step::{
    AsyncServer, CheckBlocks, Compressed, DataParallel, Engine, EngineSettings, Evaluation, Fragments,
    LocalUpdates, NonFinite, OuterDtype, OuterOptimizer, OuterReport, OuterSchedule, OuterSums, PairwiseSum,
    ParameterPart, ParameterServers, Recompute, ReducedUnit, Reduction, ReductionState, RoundProgress,
    RoundReport, Rounds, Share, StepReport, Strategy, Synchronous, UnitGradient, UntypedEngine, Update,
    WorkerLink, WorkerLinkSender, WorkerLinks,
};
