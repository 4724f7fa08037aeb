//! The GPUs of a node, before ranks have them.

use crate::settings::Backend;

/// A GPU of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGpu {
    /// Its model as its driver names it, for example `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Its memory in bytes.
    pub memory: u64,
}

/// The GPUs that ranks of this node can compute on, in the order of their local ranks; none with a backend that does not know their memory.
///
/// # Errors
/// If the driver is missing or fails.
pub fn node_gpus(backend: Backend) -> anyhow::Result<Vec<NodeGpu>> {
    match backend.resolved() {
        #[cfg(feature = "cuda")]
        Backend::Cuda => {
            let gpus = brigade_cuda::driver()?.gpus()?;
            Ok(gpus
                .into_iter()
                .map(|gpu| NodeGpu { name: gpu.name, memory: gpu.total_memory as u64 })
                .collect())
        }
        _ => Ok(Vec::new()),
    }
}
