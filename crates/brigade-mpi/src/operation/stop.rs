//! Why an operation cannot continue.

use brigade_comm::{Call, Error};

use crate::library::Failure;
use crate::membership::Membership;

/// Why an operation cannot continue. Peers are ranks of the group.
#[derive(Debug)]
pub(crate) enum Stop {
    OtherCall {
        peer: usize,
        theirs: Call,
    },
    Header {
        peer: usize,
        reason: String,
    },
    NoMemory {
        peer: usize,
        theirs: Call,
        reason: String,
    },
    /// More elements in a slice than MPI counts.
    TooLarge {
        given: usize,
        most: usize,
    },
    /// MPI's, or the system's answer.
    Failed(String),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.to_string())
    }
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl Stop {
    /// The world's failure that follows, for a call of this rank.
    pub(crate) fn error(self, group: &Membership, call: &Call) -> Error {
        let (name, rank, ours) = (group.name.clone(), group.world_rank(), Box::new(*call));
        let world = |peer: usize| group.members[peer];
        match self {
            Self::OtherCall { peer, theirs } => {
                let theirs = Box::new(theirs);
                Error::Mismatch { group: name, rank, peer: world(peer), ours, theirs }
            }
            Self::Header { peer, reason } => {
                Error::Protocol { group: name, rank, peer: world(peer), call: ours, reason }
            }
            Self::NoMemory { peer, theirs, reason } => {
                let theirs = Box::new(theirs);
                Error::NoMemory { group: name, rank, peer: world(peer), ours, theirs, reason }
            }
            Self::TooLarge { given, most } => {
                let reason = format!("{given} elements per rank are given, but MPI counts at most {most}");
                Error::InvalidArgument { rank, group: name, operation: call.operation, reason }
            }
            Self::Failed(reason) => Error::Library { group: name, rank, library: "MPI", call: ours, reason },
        }
    }
}
