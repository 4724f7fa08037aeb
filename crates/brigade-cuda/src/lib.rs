//! The CUDA backend: GPUs, and NCCL with deadlines; both are found at run time.
//!
//! # Invariants
//! - **Nothing is linked.** The driver and NCCL are looked for when they are first needed; what is missing is
//!   an [`Error`] that says what to do, never a panic.
//! - **No call blocks.** Communicators are made with `blocking = 0`; every wait of the host looks again and
//!   again, and has a deadline. What runs on the GPU is looked after by a [`Watchdog`].
//! - **A communicator endpoints once**: finalized and destroyed after good work, aborted after any failure.
//! - **The first failure is final.** It aborts all communicators of the rank, reaches the other ranks, and is
//!   the answer to all later calls.
//!
//! # Reading order
//! [`Error`] → `library`, `driver`, `nccl`, `environment` (what there is) → `choose` (which GPU) → `stream` (order on a GPU) → `life`,
//! `communicator`, `queue` (NCCL) → `watchdog` (what does not end) →
//! `order`, `comm_stream`, `work`, `receive_queue` (operations among what is computed) → `doctor` (all of it, for people)
//! → `tensors` (Burn; the feature `tensors`, on by default).

#[cfg(any(test, feature = "autotune"))]
mod autotune;
mod doctor;
mod driver;
mod error;
mod loading;
mod nccl;
mod polling;
mod stream;
#[cfg(feature = "tensors")]
mod tensors;
mod watchdog;

pub use doctor::examine;
pub use driver::{Context, Driver, Event, Gpu, Stream, check_gpu_count, driver, gpu_for, shared_gpu};
pub use error::Error;
pub use nccl::{Communicator, GroupCall, NCCL_FILE, Nccl, UniqueId, nccl};
pub use stream::{CommStream, RankState, ReceiveQueue, StreamOrder, Work};
pub use watchdog::{Watchdog, WatchedWork, WorkHandle, WorkInfo};

#[cfg(feature = "tensors")]
pub use tensors::{NcclCollectives, NcclOptions, RankGpu, check_gpus, gpu_count, groups, host_groups};
