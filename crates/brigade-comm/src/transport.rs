//! The choice of what carries bytes between processes.

use serde::{Deserialize, Serialize};

/// What carries the bytes between two ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// Shared memory where two ranks have the same host identity, TCP elsewhere.
    #[default]
    Auto,
    /// Shared memory with every rank, or an error.
    SharedMemory,
    /// TCP with every rank, also on the same host.
    Tcp,
}
