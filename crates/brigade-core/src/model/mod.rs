//! What is trained: blocks, what flows between them, their parameters and the ties between these.

pub(crate) mod activation;
pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod cache;
pub(crate) mod chain;
pub(crate) mod context;
mod erased;
pub(crate) mod objective;
pub(crate) mod parameters;
pub(crate) mod random_state;
mod run;
pub(crate) mod split_forward;

pub use activation::{Activation, Part, Parts};
pub use batch::Batch;
pub use block::Block;
pub use cache::{BlockCache, Cache};
pub use chain::Chain;
pub use chain::blocks::{Blocks, ParameterCounts};
pub use chain::values::NamedTensor;
pub use context::ForwardContext;
pub use objective::{Model, SmallerModel};
pub use parameters::initialization::initialize;
pub use parameters::precision::{Dtype, Precision};
pub use random_state::with_seed;
pub use split_forward::{ParameterGradients, SplitForward};
