//! What can go wrong below tensors, said so that the reader knows what was found and what to do.

use std::time::Duration;

/// A failure of a GPU, its driver or NCCL. Cloned freely: the first failure of a rank is the answer to all
/// later calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `libcuda` is not installed, or the loader does not find it.
    #[error(
        "found no NVIDIA driver: the loader finds no libcuda.so or libcuda.so.1. Install the driver on this host; in a \
         container, start it with its GPUs (docker run --gpus all); elsewhere, put the library's folder on \
         LD_LIBRARY_PATH"
    )]
    NoDriver,
    /// `cuInit` failed.
    #[error("the NVIDIA driver ({path}) does not initialise: {name} ({code}), {text}. {advice}")]
    DriverInit {
        /// The file of `libcuda`.
        path: String,
        /// The name of the `CUresult`.
        name: String,
        /// Its number.
        code: i32,
        /// The driver's words for it.
        text: String,
        /// What to do.
        advice: String,
    },
    /// The driver is of before CUDA 12.0.
    #[error(
        "the NVIDIA driver ({path}) supports CUDA {found}, but at least {needed} is needed: update the driver (525 or \
         later for CUDA 12.0)"
    )]
    DriverTooOld {
        /// The file of `libcuda`.
        path: String,
        /// The newest CUDA version that it supports.
        found: String,
        /// The oldest that will do.
        needed: String,
    },
    /// A library that is new enough by its version, but lacks a function.
    #[error(
        "{library} {version} ({path}) lacks the function {symbol}: install an unchanged build of {library} {needed} or \
         later"
    )]
    MissingSymbol {
        /// Which library, as in `NCCL`.
        library: String,
        /// Its version.
        version: String,
        /// Its file.
        path: String,
        /// The function.
        symbol: String,
        /// The oldest version that has it.
        needed: String,
    },
    /// No NCCL was found, or what `BRIGADE_NCCL` names cannot be loaded.
    #[error("{found}. {advice}")]
    NoNccl {
        /// What was tried, and what the loader said.
        found: String,
        /// What to do.
        advice: String,
    },
    /// NCCL cannot split communicators or make them without blocking.
    #[error(
        "NCCL {found} ({path}) is too old: at least {needed} is needed. Install a newer one (pip install \
         nvidia-nccl-cu12, or the package libnccl2), or name its file in BRIGADE_NCCL"
    )]
    NcclTooOld {
        /// Its file.
        path: String,
        /// Its version.
        found: String,
        /// The oldest that will do.
        needed: String,
    },
    /// A node has fewer GPUs than ranks.
    #[error(
        "local rank {local_rank} of {local_size} has no GPU: this node shows {visible} GPU{} ({visibility}). {}",
        plural(*visible), too_few_advice(*visible)
    )]
    TooFewGpus {
        /// The rank's index among those of its node.
        local_rank: usize,
        /// How many ranks the node runs.
        local_size: usize,
        /// How many GPUs the process sees.
        visible: usize,
        /// The setting that says which, as in `CUDA_VISIBLE_DEVICES=0,1`.
        visibility: String,
    },
    /// Two ranks chose one GPU; NCCL refuses that.
    #[error(
        "ranks {first} and {second} both run on GPU {uuid}; NCCL needs a GPU for each: start fewer ranks, \
         make more GPUs visible, or use --collectives host"
    )]
    SharedGpu {
        /// The lower rank.
        first: usize,
        /// The higher rank.
        second: usize,
        /// The GPU.
        uuid: String,
    },
    /// A call of the driver failed.
    #[error("{operation}: the driver's {call} failed with {name} ({code}): {text}")]
    Driver {
        /// The function.
        call: &'static str,
        /// The name of the `CUresult`.
        name: String,
        /// Its number.
        code: i32,
        /// The driver's words for it.
        text: String,
        /// What it was called for.
        operation: String,
    },
    /// A call of NCCL failed, or an operation that it had begun.
    #[error("{operation} on group \"{group}\": {call} failed with {name}: {text}")]
    Nccl {
        /// The function that returned the error.
        call: &'static str,
        /// The name of the `ncclResult_t`.
        name: String,
        /// `ncclGetLastError`, or what the result means where that is empty.
        text: String,
        /// What it was called for.
        operation: String,
        /// The group's name.
        group: String,
    },
    /// An operation did not end in time.
    #[error(
        "{operation} on group \"{group}\" did not end within {} s: another rank of the group has not called it, has \
         ended, or cannot be reached (NCCL_DEBUG=INFO shows the connections)",
        waited.as_secs_f64()
    )]
    Deadline {
        /// The operation.
        operation: String,
        /// The group's name.
        group: String,
        /// The time that it had.
        waited: Duration,
    },
    /// What was to be computed on the GPU failed.
    #[error("computing on the GPU failed: {reason}")]
    Compute {
        /// What Burn says.
        reason: String,
    },
    /// A call that came after the first failure.
    #[error("aborted because of an earlier failure: {reason}")]
    Aborted {
        /// The text of that failure.
        reason: String,
    },
    /// Something that no GPU could do.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// What was asked for.
        operation: String,
        /// What was given and what is allowed.
        reason: String,
    },
    /// The system has no thread left.
    #[error("cannot start the thread that watches operations: {reason}")]
    NoThread {
        /// The system's answer.
        reason: String,
    },
}

impl Error {
    /// Its text as the reason for what follows it.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Aborted { reason } => reason.clone(),
            other => other.to_string(),
        }
    }
}

/// What to do where a node has a rank more than GPUs.
fn too_few_advice(visible: usize) -> String {
    match visible {
        0 => "Make its GPUs visible; nvidia-smi lists those that the driver sees".into(),
        n => format!(
            "Start at most {n} rank{} on this node (--nproc-per-node), make more GPUs visible, or let ranks share them by \
             --collectives host",
            plural(n)
        ),
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
