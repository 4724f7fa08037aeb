//! What workers and their coordinator tell each other, as JSON over a [`Channel`](brigade_comm::Channel).

use serde::{Deserialize, Serialize};

/// The name of parameters that workers have in common. Newer ones are greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Base {
    /// The steps that led to them.
    pub step: u64,
    /// The quorum that they come from; 0 for initial values, and for those of a checkpoint that no quorum preceded.
    pub quorum: u64,
}

/// Who a worker is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerJoinRequest {
    /// The version of these messages.
    pub version: u32,
    /// Its number, below `workers`.
    pub worker: usize,
    /// The number of workers.
    pub workers: usize,
    /// Ranks of its world.
    pub ranks: usize,
    /// Its host.
    pub host: String,
    /// What must be the same on all workers.
    pub configuration: String,
    /// Distinguishes it from others that have had its number.
    pub incarnation: u64,
}

/// What a worker is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It has made no step yet, and asks whether others are ahead.
    Starting,
    /// It makes inner steps.
    Training,
    /// It asks for a quorum.
    Waiting(Request),
    /// It takes part in this one.
    Quorum(u64),
    /// It has made its last step.
    Done,
}

/// A worker's request for a quorum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number of the request, each time another one.
    pub number: u64,
    /// The steps it has made: more than those of its base where it has something to contribute.
    pub step: u64,
    /// `host:port` where the workers' first ranks would find each other to add up, should it be the first of them.
    pub sums: String,
    /// And where those that join would find it.
    pub transfer: String,
    /// The quorum since which it has a world together with the other participants; 0 where it has none.
    pub world: u64,
}

/// Who takes part in an outer step, and how they find each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quorum {
    /// Its number, greater than that of any before it.
    pub id: u64,
    /// The steps after which it is.
    pub step: u64,
    /// The workers that contribute, in order. The first one gives the result to those that join.
    pub participants: Vec<usize>,
    /// Whether they keep the world that they have together.
    pub keeps_world: bool,
    /// `host:port` where their new world's rank 0 listens.
    pub sums: String,
    /// The workers that join, in order.
    pub recovering: Vec<usize>,
    /// `host:port` where the first participant waits for them.
    pub transfer: String,
}

impl Quorum {
    /// The name of the parameters that it results in.
    pub fn base(&self) -> Base {
        Base { step: self.step, quorum: self.id }
    }
}

/// A worker's words: first who it is, then what it does, again and again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Report {
    JoinRequest(WorkerJoinRequest, Base, Status),
    Status(Base, Status),
}

/// The coordinator's answer to each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CoordinatorReply {
    /// Nothing is decided.
    Noted,
    /// Nothing is decided on a request: it waits for workers that have not come yet, which it says in words.
    Expects { expects: String },
    /// To a worker that starts: it has the newest parameters.
    Train,
    /// To a worker that starts: others have newer ones; it should ask for a quorum.
    Join,
    /// To a request.
    Quorum { request: u64, quorum: Quorum },
    /// The others have ended the run, after this many steps.
    Over { step: u64 },
    /// `again`: another try may be accepted.
    Refused { reason: String, again: bool },
}

/// The version of these messages.
pub const VERSION: u32 = 2;
