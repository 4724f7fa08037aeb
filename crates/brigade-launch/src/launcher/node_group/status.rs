//! The status that each launcher sends to the others at every tick, in a fixed number of bytes.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    interrupt::InterruptKind,
};

/// What a node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum NodeState {
    /// It has just joined the others.
    #[default]
    Joined = 0,
    /// It can start its ranks.
    Ready = 1,
    /// Its ranks run.
    Running = 2,
    /// Its ranks have exited and its report is ready.
    Finished = 3,
    /// It wants to leave, together with the others.
    Leaving = 4,
}

/// Why a node wants all ranks to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopCause {
    /// It does not want that.
    #[default]
    None,
    /// One of its ranks failed.
    Failed,
    /// A node that came later is to join.
    Resize,
    /// Its launcher got this signal; 0 stands for a rank that exited with the code of preemption.
    Requested(InterruptKind, i32),
}

/// The status of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeStatus {
    pub state: NodeState,
    pub cause: StopCause,
    /// Whether its launcher itself got a signal; causes spread to all nodes.
    pub signalled: bool,
    /// How often the ranks were restarted before.
    pub restart_count: u32,
    /// From node 0: the port of the ranks' rendezvous.
    pub port: u16,
}

/// Bytes of a status.
pub const BYTES: usize = 10;

impl NodeStatus {
    pub fn encode(self) -> [u8; BYTES] {
        let (cause, signal) = match self.cause {
            StopCause::None => (0, 0),
            StopCause::Failed => (1, 0),
            StopCause::Requested(InterruptKind::Stop, signal) => (2, signal),
            StopCause::Requested(InterruptKind::Preempt, signal) => (3, signal),
            StopCause::Resize => (4, 0),
        };
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&[
            self.state as u8,
            cause,
            signal.to_le_bytes()[0],
            self.signalled.into(),
        ]);
        bytes[4..8].copy_from_slice(&self.restart_count.to_le_bytes());
        bytes[8..].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// `None` for bytes that no launcher of this version sends.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let &[state, cause, signal, signalled @ (0 | 1), a, b, c, d, e, f] = bytes else { return None };
        let state = match state {
            0 => NodeState::Joined,
            1 => NodeState::Ready,
            2 => NodeState::Running,
            3 => NodeState::Finished,
            4 => NodeState::Leaving,
            _ => return None,
        };
        let cause = match cause {
            0 => StopCause::None,
            1 => StopCause::Failed,
            2 => StopCause::Requested(InterruptKind::Stop, signal.into()),
            3 => StopCause::Requested(InterruptKind::Preempt, signal.into()),
            4 => StopCause::Resize,
            _ => return None,
        };
        Some(Self {
            state,
            cause,
            signalled: signalled == 1,
            restart_count: u32::from_le_bytes([a, b, c, d]),
            port: u16::from_le_bytes([e, f]),
        })
    }
}

/// What a launcher tells the others when it joins them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// The name of its host.
    pub host: String,
    pub nproc: usize,
    pub max_restarts: u32,
    /// How often the ranks were restarted before, as far as it knows.
    pub restart_count: u32,
    /// What the launchers decide together before they start ranks, by the option that asks for it; empty if they start ranks now.
    pub decides: String,
}

/// All nodes decide the same, and start the same number of ranks.
pub fn check_alike(descriptions: &[NodeDescription], node: usize) -> Result<()> {
    let refused = |field, show: &dyn Fn(&NodeDescription) -> String, allowed: &str| {
        let shown = descriptions.iter().map(show).collect::<Vec<_>>();
        let Some(other) = shown.iter().position(|other| *other != shown[0]) else { return Ok(()) };
        let other = if shown[node] == shown[0] { other } else { node };
        let value = format!("{} on node 0 and {} on node {other}", shown[0], shown[other]);
        Err(Error::LaunchConfig { field, value, allowed: allowed.into() })
    };
    let decides = |description: &NodeDescription| match &*description.decides {
        "" => "nothing".to_owned(),
        option => option.to_owned(),
    };
    refused("what is decided before ranks start", &decides, "give the option to all nodes or to none")?;
    refused("nproc", &|description| description.nproc.to_string(), "all nodes start the same number of ranks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_decoded_as_it_was_encoded() {
        let causes = [
            StopCause::None,
            StopCause::Failed,
            StopCause::Requested(InterruptKind::Stop, 2),
            StopCause::Requested(InterruptKind::Preempt, 64),
            StopCause::Resize,
        ];
        for state in
            [NodeState::Joined, NodeState::Ready, NodeState::Running, NodeState::Finished, NodeState::Leaving]
        {
            for cause in causes {
                for signalled in [false, true] {
                    let status = NodeStatus { state, cause, signalled, restart_count: 70_000, port: 65_000 };
                    assert_eq!(NodeStatus::decode(&status.encode()), Some(status));
                }
            }
        }
        for (place, byte) in [(0, 5), (1, 5), (3, 2)] {
            let mut bytes = [0; BYTES];
            bytes[place] = byte;
            assert_eq!(NodeStatus::decode(&bytes), None);
        }
        for bytes in [&[0u8][..], &[]] {
            assert_eq!(NodeStatus::decode(bytes), None);
        }
    }
}
