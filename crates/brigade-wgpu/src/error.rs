//! The errors of this crate.

/// Why a rank has no device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// wgpu finds no adapter.
    #[error(
        "wgpu finds no adapter on this machine, neither a GPU nor a driver in software: install the GPU's Vulkan \
         driver, or to compute in software a Vulkan driver such as lavapipe (Debian and Ubuntu: mesa-vulkan-drivers); in a \
         container the driver must be inside, with its file in /usr/share/vulkan/icd.d or \
         named in VK_ICD_FILENAMES"
    )]
    NoAdapter,
    /// More ranks on a node than it has adapters, which are of several kinds.
    #[error(
        "rank {local_rank} of this node has no adapter of its own: there are {}; adapters are shared only where all \
         are of one kind, for the slowest would hold up the others: start at most {} ranks on this node",
        found.join(", "), found.len()
    )]
    TooFewAdapters {
        /// The rank's number on its node.
        local_rank: usize,
        /// The adapters, described.
        found: Vec<String>,
    },
    /// An adapter that is there cannot be used.
    #[error("cannot open {adapter}: {reason}")]
    Open {
        /// The adapter, described.
        adapter: String,
        /// What wgpu says.
        reason: String,
    },
}
