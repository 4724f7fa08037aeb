//! Ranks as threads, each with a compute stream of its own on the stand-in for its GPU, as in Burn's backend.
//!
//! Burn's part in a run is simulated: the compute stream, its memory pool, and the order between it and NCCL's streams, as
//! `src/tensors/` makes it. Communication streams, receive queues and the watchdog are the crate's own.

mod compute_stream;
mod gradients;
mod memory_pool;
mod mesh;
mod messages;
mod order;
mod step;
mod values;

pub use mesh::{Mesh, Sim};
pub use order::OrderKind;
pub use step::{Compiles, EXITED, Plan, RankExit, Sharding, run_step};
