//! Ranks as threads, each with a computing stream of its own on the stand-in of its GPU, as Burn's backend has one.
//!
//! What is Burn's part in a run is simulated here: the computing stream, its pool of memory and the order between it and
//! NCCL's streams, as `src/tensors/` makes them. Lanes, receive_queues and the watchdog are the crate's own.

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
