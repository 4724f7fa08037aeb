//! The CUDA backend: GPUs, NCCL with deadlines, and what is found of both at run time.
//!
//! # Invariants
//! - **Nothing is linked.** The driver and NCCL are looked for when they are first needed; what is missing is
//!   an [`Error`] that says what to do, never a panic.
//! - **No call blocks.** Communicators are made with `blocking = 0`; every wait of the host looks again and
//!   again, and has a deadline. What runs on the GPU is looked after by a [`Watch`].
//! - **A communicator ends once**: finalized and destroyed after good work, aborted after any failure.
//! - **The first failure is final.** It aborts all communicators of the rank, reaches the other ranks, and is
//!   the answer to all later calls.
//!
//! # Reading order
//! [`Error`] → `library`, `driver`, `nccl`, `environment` (what there is) → `choose` (which GPU) → `stream` (order on a GPU) → `life`,
//! `communicator`, `queue` (NCCL) → `watch` (what does not end) →
//! `order`, `lane`, `in_flight`, `inbox` (operations among what is computed) → `doctor` (all of it, for people)
//! → `tensors` (Burn; the feature `tensors`, on by default).

#[cfg(any(test, feature = "autotune"))]
mod autotune;
mod backoff;
mod doctor;
mod driver;
mod error;
mod library;
mod nccl;
mod stream;
#[cfg(feature = "tensors")]
mod tensors;
mod watchdog;

pub use doctor::examine;
pub use driver::{Context, Driver, Event, Gpu, Stream, driver, enough_for, gpu_for, shared};
pub use error::Error;
pub use nccl::{Communicator, ElementType, Id, NCCL_FILE, Nccl, Queue, nccl};
pub use stream::{InFlight, Inbox, Lane, Order, Rank};
pub use watchdog::{Operation, Ticket, Underway, Watch};

#[cfg(feature = "tensors")]
pub use tensors::{NcclCollectives, Options, RankGpu, check, count, groups, host_groups};
