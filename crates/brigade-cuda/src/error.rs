//! The errors of this crate. Each says what was found and what to do about it.

use std::time::Duration;

/// A failure of a GPU, its driver or NCCL. It can be cloned, because every call after a rank's first failure returns that failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `libcuda` is not installed, or the loader does not find it.
    #[error(
        "found no NVIDIA driver: the loader finds neither libcuda.so nor libcuda.so.1. Install the driver \
         on this host; start a container with its GPUs (docker run --gpus all); if the library is in \
         another folder, add that folder to LD_LIBRARY_PATH"
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
        /// The driver's description of it.
        text: String,
        /// What to do.
        advice: String,
    },
    /// The driver is older than CUDA 12.0.
    #[error(
        "the NVIDIA driver ({path}) supports CUDA {found}, but at least {needed} is needed: update the driver (525 or \
         later for CUDA 12.0)"
    )]
    DriverTooOld {
        /// The file of `libcuda`.
        path: String,
        /// The newest CUDA version that it supports.
        found: String,
        /// The oldest version that works.
        needed: String,
    },
    /// A library whose version is new enough, but which lacks a function.
    #[error(
        "{library} {version} ({path}) lacks the function {symbol}: install an unmodified build of {library}, \
         version {needed} or later"
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
    /// No NCCL was found, or the file that `BRIGADE_NCCL` names cannot be loaded.
    #[error("{found}. {advice}")]
    NoNccl {
        /// What was tried, and what the loader reported.
        found: String,
        /// What to do.
        advice: String,
    },
    /// No cuBLAS was found, or the file that `BRIGADE_CUBLAS` names cannot be loaded, or it is off.
    #[error("{found}")]
    NoCublas {
        /// What was tried, and what the loader reported.
        found: String,
    },
    /// Where Burn's compiler looks there is no libdevice.
    #[error(
        "{found}, which kernels with exponentials are linked with: install CUDA's toolkit (or its part cuda-nvvm, or pip install nvidia-nvvm), and set CUDA_PATH to the folder that has it"
    )]
    NoLibdevice {
        /// Where it is not.
        found: String,
    },
    /// A call to cuBLAS failed.
    #[error("{call} of cuBLAS failed with {status} (BRIGADE_CUBLAS=off uses Burn's own kernels)")]
    Cublas {
        /// The function.
        call: &'static str,
        /// The `cublasStatus_t`.
        status: String,
    },
    /// NCCL is too old to split communicators, or to make them without blocking.
    #[error(
        "NCCL {found} ({path}) is too old: at least {needed} is needed. Install a newer one (pip install \
         nvidia-nccl-cu12, or the package libnccl2), or set BRIGADE_NCCL to its file"
    )]
    NcclTooOld {
        /// Its file.
        path: String,
        /// Its version.
        found: String,
        /// The oldest version that works.
        needed: String,
    },
    /// A node has fewer GPUs than ranks.
    #[error(
        "local rank {local_rank} of {local_size} has no GPU: {visible} GPU{} {} visible on this node ({visibility}). {}",
        plural(*visible), if *visible == 1 { "is" } else { "are" }, too_few_advice(*visible)
    )]
    TooFewGpus {
        /// The rank's index among those of its node.
        local_rank: usize,
        /// How many ranks the node runs.
        local_size: usize,
        /// How many GPUs the process sees.
        visible: usize,
        /// The setting that selects them, as in `CUDA_VISIBLE_DEVICES=0,1`.
        visibility: String,
    },
    /// Two ranks have the same GPU, which NCCL refuses.
    #[error(
        "ranks {first} and {second} both run on GPU {uuid}, but NCCL needs a GPU for each rank: start fewer ranks, \
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
    /// A call to the driver failed.
    #[error("{operation}: the driver's {call} failed with {name} ({code}): {text}")]
    Driver {
        /// The function.
        call: &'static str,
        /// The name of the `CUresult`.
        name: String,
        /// Its number.
        code: i32,
        /// The driver's description of it.
        text: String,
        /// What it was called for.
        operation: String,
    },
    /// A call to NCCL failed, or an operation that it had started.
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
    /// An operation did not finish before its deadline.
    #[error(
        "{operation} on group \"{group}\" did not finish within {} s: another rank of the group has not called it, has \
         exited, or cannot be reached (NCCL_DEBUG=INFO shows the connections)",
        waited.as_secs_f64()
    )]
    Timeout {
        /// The operation.
        operation: String,
        /// The group's name.
        group: String,
        /// How long it was given.
        waited: Duration,
    },
    /// A computation on the GPU failed.
    #[error("a computation on the GPU failed: {reason}")]
    Compute {
        /// Burn's error.
        reason: String,
    },
    /// A call after the first failure.
    #[error("aborted because of an earlier failure: {reason}")]
    Aborted {
        /// The text of that failure.
        reason: String,
    },
    /// An invalid argument or setting.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// What was attempted.
        operation: String,
        /// What was given and what is allowed.
        reason: String,
    },
    /// The system cannot start another thread.
    #[error("cannot start the watchdog's thread: {reason}")]
    NoThread {
        /// The system's error.
        reason: String,
    },
}

impl Error {
    /// Its text, as the reason of an [`Aborted`](Self::Aborted) that follows from it.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Aborted { reason } => reason.clone(),
            other => other.to_string(),
        }
    }
}

/// What to do on a node with more ranks than GPUs.
fn too_few_advice(visible: usize) -> String {
    match visible {
        0 => "Make its GPUs visible; nvidia-smi lists those that the driver finds".into(),
        n => format!(
            "Start at most {n} rank{} on this node (--nproc-per-node), make more GPUs visible, or let ranks share them \
             with --collectives host",
            plural(n)
        ),
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
