//! The memory that the ranks of this machine share.

use brigade_report::{AddressSpace, HumanBytes, MemoryCapacity, memory_capacity};

use crate::device::node_gpus;
use crate::run::Session;
use crate::settings::Backend;

/// The memory of the machine that rank 0 runs on.
pub(super) struct Machine {
    /// Ranks that run on it, from rank 0 on.
    pub ranks: usize,
    pub memory: Memory,
}

pub(super) enum Memory {
    /// All ranks of the machine share it.
    Host(MemoryCapacity),
    /// Each rank has a device with this many bytes.
    Device(u64),
}

impl Machine {
    /// None where it is unknown.
    pub(super) fn of(session: &Session) -> Option<Self> {
        let ranks = session.local_ranks?;
        let memory = match session.settings.compute.backend {
            Backend::Cpu => Memory::Host(memory_capacity()?),
            // A dry run has no device of its own.
            backend if session.is_dry_run => {
                Memory::Device(node_gpus(backend).ok()?.iter().map(|gpu| gpu.memory).min()?)
            }
            _ => Memory::Device(session.device_memory()?.total?),
        };
        Some(Self { ranks, memory })
    }

    /// Whether it has room for ranks of which the largest needs `largest` bytes, and all together `all`.
    pub(super) fn has(&self, largest: u64, all: u64) -> bool {
        match &self.memory {
            Memory::Host(MemoryCapacity { available, address_space, .. }) => {
                all <= *available && address_space.is_none_or(|space| largest <= space.left)
            }
            Memory::Device(total) => largest <= *total,
        }
    }

    pub(super) fn describe(&self) -> String {
        match &self.memory {
            Memory::Host(MemoryCapacity { available, source, address_space }) => {
                let limit = address_space.map_or_else(String::new, |AddressSpace { limit, left }| {
                    let (limit, left) = (HumanBytes(limit), HumanBytes(left));
                    format!(
                        ", and a process has an address space of {limit} (ulimit -v), of which {left} is free"
                    )
                });
                format!("{} are {source}{limit}", HumanBytes(*available))
            }
            Memory::Device(total) => format!("the device has {}", HumanBytes(*total)),
        }
    }
}
