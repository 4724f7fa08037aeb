//! What can go wrong. Each message tells the reader which rank to look at.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::op::call::{Call, OpType};
use crate::open_files::explained;

/// A rank that holds up others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalledRank {
    /// The rank.
    pub rank: usize,
    /// What it does or does not do, in words that follow its name.
    pub why: String,
}

/// Who holds up an operation, found by following who waits for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The ranks at the end of the waits: those that hold up all others. Empty where the ranks wait for each other.
    pub root: Vec<StalledRank>,
    /// What other ranks wait for, in words.
    pub others: Vec<String>,
}

/// A failure. All ranks in it are ranks of the world, also where the operation ran in a sub-group.
///
/// Every variant can reach a rank in one of two ways: directly, or as [`Error::PeerFailed`] or [`Error::HeldUp`] with
/// the text of the rank that failed first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that no group could run. Nothing was sent, but the other ranks are informed, because they wait
    /// for this rank.
    #[error("rank {rank}: {operation} on group \"{group}\": {reason}")]
    InvalidArgument {
        /// The rank that called.
        rank: usize,
        /// The group's name.
        group: String,
        /// The operation.
        operation: OpType,
        /// What was given and what is allowed.
        reason: String,
    },
    /// Two ranks called different things at the same place in their order of operations.
    #[error("group \"{group}\": rank {rank} called {ours}, but rank {peer} called {theirs}")]
    Mismatch {
        /// The group's name.
        group: String,
        /// The rank that noticed.
        rank: usize,
        /// The rank that it differs from.
        peer: usize,
        /// What `rank` called.
        ours: Box<Call>,
        /// What `peer` called.
        theirs: Box<Call>,
    },
    /// There is no memory for a message, though its size is within the limit.
    #[error(
        "group \"{group}\": rank {rank} called {ours}, but has no memory for rank {peer}'s {theirs}: {reason}"
    )]
    NoMemory {
        /// The group's name.
        group: String,
        /// The rank that has no memory.
        rank: usize,
        /// The rank that sends the message.
        peer: usize,
        /// What `rank` called.
        ours: Box<Call>,
        /// What `peer` called.
        theirs: Box<Call>,
        /// The allocator's answer.
        reason: String,
    },
    /// A peer's bytes make no sense.
    #[error("group \"{group}\": rank {rank} cannot understand rank {peer} during {call}: {reason}")]
    Protocol {
        /// The group's name.
        group: String,
        /// The rank that noticed.
        rank: usize,
        /// The rank whose bytes they are.
        peer: usize,
        /// What `rank` was doing.
        call: Box<Call>,
        /// What is wrong with the bytes.
        reason: String,
    },
    /// An operation did not end in time.
    #[error(
        "{}{}{}",
        named_ranks(&diagnosis.root),
        given_up(*rank, group, call, *waited, absent, stalled),
        meanwhile(&diagnosis.others)
    )]
    Timeout {
        /// The group's name.
        group: String,
        /// The rank that gave up.
        rank: usize,
        /// What it was doing.
        call: Box<Call>,
        /// How long it waited.
        waited: Duration,
        /// The ranks that did not call the operation.
        absent: Vec<usize>,
        /// The ranks that did, but then sent or took no more data.
        stalled: Vec<usize>,
        /// What the other ranks said when they were asked.
        diagnosis: Box<Diagnosis>,
    },
    /// A peer's operation did not end in time, and the peer found out which ranks held it up. This is its error.
    #[error("{}{reason}", named_ranks(root))]
    HeldUp {
        /// The rank that gave up.
        peer: usize,
        /// The ranks that hold up all others; at least one.
        root: Vec<StalledRank>,
        /// The rest of its error.
        reason: String,
    },
    /// A peer's process is gone, or its host cannot be reached.
    #[error("rank {peer} died: {reason}")]
    PeerDied {
        /// The rank that died.
        peer: usize,
        /// How that was noticed.
        reason: String,
    },
    /// A peer failed first; this is its error.
    #[error("rank {peer} failed: {reason}")]
    PeerFailed {
        /// The rank that failed first.
        peer: usize,
        /// Its error.
        reason: String,
    },
    /// A peer left the group while this rank still waited for it.
    #[error("group \"{group}\": rank {peer} has left, but rank {rank} waits for it in {call}")]
    PeerLeft {
        /// The group's name.
        group: String,
        /// The rank that waited.
        rank: usize,
        /// The rank that left.
        peer: usize,
        /// What `rank` was doing.
        call: Box<Call>,
    },
    /// This rank called [`abort`](crate::ProcessGroup::abort), or dropped its world without shutting it down.
    #[error("rank {rank} aborted: {reason}")]
    Aborted {
        /// The rank that aborted.
        rank: usize,
        /// The reason it gave.
        reason: String,
    },
    /// A member of [`Join`](crate::Join) has a value that is not allowed.
    #[error("{option} = {given}: {allowed}")]
    Option {
        /// The member's name.
        option: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// Rank 0 cannot listen at the endpoint.
    #[error("rank 0 cannot listen at {endpoint}: {reason}")]
    Listen {
        /// The address.
        endpoint: String,
        /// Why not.
        reason: String,
    },
    /// Rank 0 was not found at the endpoint.
    #[error("rank {rank} found no rank 0 at {endpoint} within {:?}: {reason}", rounded(*waited))]
    Unreachable {
        /// The rank that looked for it.
        rank: usize,
        /// The address.
        endpoint: String,
        /// How long it tried.
        waited: Duration,
        /// What the last try gave.
        reason: String,
    },
    /// Not all ranks came to the rendezvous.
    #[error(
        "ranks {missing:?} of {world_size} did not connect to {endpoint} within {:?}{}",
        rounded(*waited),
        refusals(*refused)
    )]
    Missing {
        /// The address of the rendezvous.
        endpoint: String,
        /// How long rank 0 waited.
        waited: Duration,
        /// The ranks that are missing.
        missing: Vec<usize>,
        /// How many ranks there should be.
        world_size: usize,
        /// Connections that were refused because they did not know the token.
        refused: usize,
    },
    /// The ranks do not fit together: their numbers, world sizes, versions or transports differ.
    #[error("the world at {endpoint} cannot start: {reason}")]
    Rendezvous {
        /// The address of the rendezvous.
        endpoint: String,
        /// What does not fit, and on which ranks.
        reason: String,
    },
    /// The other side of a new connection does not accept this rank.
    #[error("rank {rank} was refused by {endpoint}: {reason}")]
    Refused {
        /// The rank that was refused.
        rank: usize,
        /// Who refused it.
        endpoint: String,
        /// The reason that was given.
        reason: String,
    },
    /// The ranks of a new group did not all connect in time.
    #[error("group \"{group}\": rank {rank} could not connect to rank {peer} within {:?}: {reason}", rounded(*waited))]
    Connect {
        /// The group's name.
        group: String,
        /// The rank that tried.
        rank: usize,
        /// The rank that it tried to reach.
        peer: usize,
        /// How long it tried.
        waited: Duration,
        /// What went wrong.
        reason: String,
    },
    /// A flight record cannot be written or read.
    #[error("flight record {path}: {reason}")]
    FlightRecord {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A library that runs operations, such as MPI, failed in one.
    #[error("group \"{group}\": rank {rank}: {library} failed in {call}: {reason}")]
    Library {
        /// The group's name.
        group: String,
        /// The rank that noticed.
        rank: usize,
        /// The library's name.
        library: &'static str,
        /// What the rank was doing.
        call: Box<Call>,
        /// The library's own words.
        reason: String,
    },
    /// The operating system refuses what is needed.
    #[error("cannot {what}: {reason}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        reason: String,
    },
}

fn named_ranks(root: &[StalledRank]) -> String {
    root.iter().map(|StalledRank { rank, why }| format!("rank {rank} {why}; ")).collect()
}

fn given_up(
    rank: usize,
    group: &str,
    call: &Call,
    waited: Duration,
    absent: &[usize],
    stalled: &[usize],
) -> String {
    let (waited, who) = (rounded(waited), who(absent, stalled));
    format!("group \"{group}\": rank {rank} gave up {call} after {waited:?}: {who}")
}

/// To milliseconds: a deadline that earlier tries have used up in part is shown as it was given.
fn rounded(waited: Duration) -> Duration {
    Duration::from_millis(u64::try_from((waited.as_micros() + 500) / 1000).unwrap_or(u64::MAX))
}

fn meanwhile(others: &[String]) -> String {
    others.iter().map(|other| format!("; {other}")).collect()
}

impl Error {
    /// The operating system's refusal.
    pub(crate) fn system(what: &'static str, error: impl Into<std::io::Error>) -> Self {
        Self::System { what, reason: explained(&error.into()) }
    }

    /// What the other ranks learn about this error of rank `origin`.
    pub(crate) fn for_others(&self, origin: usize) -> Error {
        match self {
            Error::PeerDied { .. } | Error::PeerFailed { .. } | Error::HeldUp { .. } => self.clone(),
            Error::Timeout { group, rank, call, waited, absent, stalled, diagnosis }
                if !diagnosis.root.is_empty() =>
            {
                let Diagnosis { root, others } = &**diagnosis;
                let given_up = given_up(*rank, group, call, *waited, absent, stalled);
                let reason = given_up + &meanwhile(others);
                Error::HeldUp { peer: origin, root: root.clone(), reason }
            }
            error => Error::PeerFailed { peer: origin, reason: error.to_string() },
        }
    }

    /// The ranks that, by a timeout's diagnosis, hold up all others.
    pub(crate) fn root(&self) -> &[StalledRank] {
        match self {
            Error::Timeout { diagnosis, .. } => &diagnosis.root,
            Error::HeldUp { root, .. } => root,
            _ => &[],
        }
    }
}

fn who(absent: &[usize], stalled: &[usize]) -> String {
    match (absent, stalled) {
        ([], []) => "it ran out of time".into(),
        (absent, []) => format!("ranks {absent:?} did not arrive"),
        ([], stalled) => format!("ranks {stalled:?} stopped in the middle"),
        (absent, stalled) => {
            format!("ranks {absent:?} did not arrive, ranks {stalled:?} stopped in the middle")
        }
    }
}

fn refusals(refused: usize) -> String {
    match refused {
        0 => String::new(),
        1 => "; 1 connection was refused for a wrong token".into(),
        n => format!("; {n} connections were refused for a wrong token"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_shown_as_they_were_given() {
        let waited = Duration::from_secs(4) - Duration::from_nanos(51);
        let endpoint = "head:29400".to_owned();
        let error = Error::Missing { endpoint, waited, missing: vec![1], world_size: 2, refused: 0 };
        assert_eq!(error.to_string(), "ranks [1] of 2 did not connect to head:29400 within 4s");
        assert_eq!(rounded(Duration::from_millis(2500)), Duration::from_millis(2500));
    }
}
