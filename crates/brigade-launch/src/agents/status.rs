//! What each launcher tells the others at every tick, in a fixed number of bytes.

use serde::{Deserialize, Serialize};

use crate::interrupt::Kind;

/// How far a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum State {
    /// It has just met the others.
    #[default]
    Met = 0,
    /// It can start its ranks.
    Ready = 1,
    /// Its ranks run.
    Running = 2,
    /// Its ranks have ended and its report is there.
    Ended = 3,
    /// It wants to leave, together with the others.
    Leaving = 4,
}

/// Why a node wants all ranks to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cause {
    /// It does not.
    #[default]
    None,
    /// One of its ranks failed.
    Failed,
    /// Its launcher got this signal; 0 for a rank that left with the exit code of preemption.
    Told(Kind, i32),
}

/// What a launcher tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    pub state: State,
    pub cause: Cause,
    /// How often the world was started again before.
    pub round: u32,
    /// From node 0: the port of the ranks' rendezvous.
    pub port: u16,
}

/// Bytes of a status.
pub const BYTES: usize = 9;

impl Status {
    pub fn encode(self) -> [u8; BYTES] {
        let (cause, signal) = match self.cause {
            Cause::None => (0, 0),
            Cause::Failed => (1, 0),
            Cause::Told(Kind::Stop, signal) => (2, signal),
            Cause::Told(Kind::Preempt, signal) => (3, signal),
        };
        let mut bytes = [self.state as u8, cause, signal.to_le_bytes()[0], 0, 0, 0, 0, 0, 0];
        bytes[3..7].copy_from_slice(&self.round.to_le_bytes());
        bytes[7..].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// `None` for bytes that no launcher of this version sends.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let &[state, cause, signal, a, b, c, d, e, f] = bytes else { return None };
        let state = match state {
            0 => State::Met,
            1 => State::Ready,
            2 => State::Running,
            3 => State::Ended,
            4 => State::Leaving,
            _ => return None,
        };
        let cause = match cause {
            0 => Cause::None,
            1 => Cause::Failed,
            2 => Cause::Told(Kind::Stop, signal.into()),
            3 => Cause::Told(Kind::Preempt, signal.into()),
            _ => return None,
        };
        Some(Self { state, cause, round: u32::from_le_bytes([a, b, c, d]), port: u16::from_le_bytes([e, f]) })
    }
}

/// What a launcher tells the others when it meets them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The name of its host.
    pub host: String,
    pub nproc: usize,
    pub max_restarts: u32,
    /// How often the world was started again before, as far as it knows.
    pub round: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_its_way() {
        let causes = [Cause::None, Cause::Failed, Cause::Told(Kind::Stop, 2), Cause::Told(Kind::Preempt, 64)];
        for state in [State::Met, State::Ready, State::Running, State::Ended, State::Leaving] {
            for cause in causes {
                let status = Status { state, cause, round: 70_000, port: 65_000 };
                assert_eq!(Status::decode(&status.encode()), Some(status));
            }
        }
        for bytes in [&[5u8, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0, 4, 0, 0, 0, 0, 0, 0, 0], &[0], &[]] {
            assert_eq!(Status::decode(bytes), None);
        }
    }
}
