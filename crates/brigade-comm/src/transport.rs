//! The choice of what carries bytes between processes, and of who can read them.

use serde::{Deserialize, Serialize};

/// What carries the bytes between two ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Shared memory where two ranks have the same host identity, TCP elsewhere.
    #[default]
    Auto,
    /// Shared memory with every rank, or an error.
    SharedMemory,
    /// TCP with every rank, also on the same host.
    Tcp,
}

/// Whether others on the network can read or change what ranks send each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encryption {
    /// What leaves a host is encrypted and authenticated.
    #[default]
    BetweenHosts,
    /// Only control messages are, where the other rank has the same setting: for networks that nobody else can reach.
    Off,
}
