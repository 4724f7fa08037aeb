//! The errors of this crate.

/// Why a rank cannot use a device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// wgpu finds no adapter.
    #[error(
        "wgpu finds no adapter on this machine, neither a GPU nor a software driver: install the GPU's Vulkan driver, or \
         lavapipe to compute in software (mesa-vulkan-drivers on Debian and Ubuntu); in a container, the driver must be \
         installed inside it, with its file in /usr/share/vulkan/icd.d or named in VK_ICD_FILENAMES"
    )]
    NoAdapter,
    /// A node has more ranks than adapters, and these are of several kinds.
    #[error(
        "local rank {local_rank} has no adapter of its own: this node has {}; ranks share adapters only if all are of \
        one kind, because the slowest would hold up the others: start at most {} ranks on this node (--nproc-per-node)",
        found.join(", "), found.len()
    )]
    TooFewAdapters {
        /// The local rank.
        local_rank: usize,
        /// The adapters, described.
        found: Vec<String>,
    },
    /// An adapter cannot be opened.
    #[error("cannot open {adapter}: {reason}")]
    Open {
        /// The adapter, described.
        adapter: String,
        /// wgpu's error.
        reason: String,
    },
}
