//! The CUDA backend: the GPU of a rank, NCCL with deadlines, and cuBLAS. The driver, both libraries and libdevice are found at run time.
//!
//! # Invariants
//! - **Nothing is linked.** The driver and NCCL are loaded when they are first needed. If something is missing, an [`Error`] says
//!   what to do about it; nothing panics.
//! - **No call blocks.** Communicators are made with `blocking = 0`. Every wait on the host polls, and has a deadline. A
//!   [`Watchdog`] watches what runs on the GPU.
//! - **A communicator ends once**: it is finalized and destroyed if all went well, and aborted after any failure.
//! - **The first failure is final.** It aborts all communicators of the rank, reaches the other ranks, and is returned by every
//!   later call.
//!
//! # NCCL among Burn's operations
//! Each communicator has its own stream ([`CommStream`]), and each direction between two pipeline stages is a communicator of
//! two ranks. An operation runs after everything that its thread has submitted to Burn: Burn's stream increments a counter in the
//! GPU's memory, and NCCL's stream waits until it reads that value. Anything computed after the wait for an operation runs after
//! the operation: the whole context waits for an event. (A context event would not work in the first direction. It would also
//! capture NCCL's own operations in flight, and two stages that send to each other would wait forever; a test shows it.)
//!
//! So the dependencies on the GPU are a subset of those of a program that blocks at each wait. Sends are not such a wait: in tests
//! under load, replicas whose hosts waited for every send could wait for each other through all-gathers. The interpreter waits for
//! the older of two sends before it starts a third, which never held up a rank in those tests.
//!
//! A message's size travels ahead through the host, and its receive is enqueued as soon as the size is known. Memory is held until
//! everything that is computed later runs after the operation. Buffers that are contiguous and have a single owner are reduced in
//! place, others into new memory. Burn's streams and pointers are not quite public; only the module `tensors` names them.
//!
//! # Waits on the GPU
//! NCCL's kernels wait for other ranks on the GPU, where nothing can time out. The [`Watchdog`], a thread of each rank, aborts all
//! communicators when an operation is overdue (counted from when its input is ready), when NCCL reports an asynchronous error, or
//! when another rank has failed; every later call then returns that failure. Operations appear in the flight recorder together with
//! those of `brigade-comm`.
//!
//! # Why not …
//! - *NCCL inside Burn?* It works within one process only, and has neither reduce-scatter nor all-gather.
//! - *cudarc's loader of NCCL?* It looks for `libnccl.so` but not for `libnccl.so.2`, the only name that Debian's package and
//!   NVIDIA's wheels install, and panics if there is none. Its types are used; functions are looked up in the library that was
//!   found.
//!
//! # Reading order
//! [`Error`] → `driver` (GPUs, contexts, streams, events) → `cublas` (products of matrices) → `libdevice` (what kernels are linked with) → `nccl` (communicators) → `watchdog` (operations that do not end) →
//! `stream` (operations among what is computed) → `doctor` (all of it, as findings for people) → `tensors` (Burn; the feature
//! `tensors`, on by default) → `autotune` (a cache of the fastest kernels).

#[cfg(any(test, feature = "autotune"))]
mod autotune;
#[cfg_attr(
    not(feature = "tensors"),
    allow(dead_code, unused_imports, reason = "only products of tensors use it")
)]
mod cublas;
mod doctor;
mod driver;
mod error;
mod libdevice;
mod loading;
mod nccl;
mod polling;
mod stream;
#[cfg(feature = "tensors")]
mod tensors;
mod watchdog;

pub use cublas::{CUBLAS_FILE, Cublas, cublas};
pub use doctor::examine;
pub use driver::{Context, Driver, Event, Gpu, Stream, check_gpu_count, driver, gpu_for, shared_gpu};
pub use error::Error;
pub use libdevice::{LIBDEVICE, libdevice};
pub use nccl::{Communicator, GroupCall, NCCL_FILE, Nccl, UniqueId, nccl};
pub use stream::{CommStream, NcclWork, RankState, ReceiveQueue, StreamOrder};
pub use watchdog::{Watchdog, WatchedWork, WorkHandle, WorkInfo};

#[cfg(feature = "tensors")]
pub use tensors::{NcclCollectives, NcclOptions, RankGpu, check_gpus, gpu_count, groups, host_groups};
