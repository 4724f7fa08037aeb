//! What a configuration lacks.

use serde::Serialize;

use crate::columns::bytes;

/// Bytes that a configuration lacks; none where it fits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Shortage {
    /// On each rank of its fullest stage.
    pub device: u64,
    /// In the memory of each host, where the optimizer's state is offloaded.
    pub host: u64,
}

impl Shortage {
    /// Whether it fits.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Of all that a node has, if each of its ranks lacks as much.
    pub(super) fn of_node(&self, devices: usize) -> u64 {
        self.device.saturating_mul(devices as u64).saturating_add(self.host)
    }

    /// What is lacking, and where.
    pub fn text(&self) -> String {
        let device = || format!("{} of memory on each rank of its fullest stage", bytes(self.device));
        let host = || format!("{} of memory on each host", bytes(self.host));
        match (self.device, self.host) {
            (_, 0) => device(),
            (0, _) => host(),
            _ => format!("{} and {}", device(), host()),
        }
    }

    /// By how much it is too much.
    pub fn too_much(&self) -> String {
        let host = || format!("{} too much for the host's memory", bytes(self.host));
        match (self.device, self.host) {
            (device, 0) => format!("{} too much", bytes(device)),
            (0, _) => host(),
            (device, _) => format!("{} too much, and {}", bytes(device), host()),
        }
    }
}
