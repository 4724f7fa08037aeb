//! The messages of the rendezvous, as JSON over a [`Channel`].

use std::time::Duration;

use brigade_comm::{Channel, ChannelError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// How a launcher describes its node when it asks to take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeJoinRequest {
    pub version: u32,
    /// Its `--node-rank`.
    pub node: usize,
    pub host: String,
    pub nproc: usize,
    /// MIN and MAX.
    pub nodes: (usize, usize),
    pub configuration: String,
    /// How often the ranks were started again before, as far as it knows.
    pub restart_count: u32,
    /// And how often because of failures.
    pub failures: u32,
}

/// A start of the ranks in which a node takes part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// `--node-rank` and host of each node; a node's place here is its number in this start.
    pub nodes: Vec<(usize, String)>,
    /// Where their launchers form a group: a port of node 0.
    pub port: u16,
    pub restart_count: u32,
    pub failures: u32,
    /// Node 0's.
    pub max_restarts: u32,
    /// Further arguments of the ranks.
    pub args: Vec<String>,
}

/// What node 0 answers a launcher that waits for a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RendezvousReply {
    /// Nothing is decided yet; node 0 is alive.
    Wait,
    Start(Start),
    /// `again`: another try may be accepted.
    Refused {
        reason: String,
        again: bool,
    },
    /// The run is over.
    Over {
        is_done: bool,
    },
}

/// What a launcher sends to node 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RendezvousRequest {
    Join(NodeJoinRequest),
    /// The answer to [`RendezvousReply::Wait`]: the launcher is alive.
    KeepAlive,
}

/// How a rendezvous ended without a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousEnd {
    /// Node 0 does not answer.
    Unreachable(String),
    /// Node 0 refused this node; the reason.
    Refused(String),
    /// The run ended; whether it is done.
    Over { is_done: bool },
}

/// Sends a value.
pub fn send(channel: &mut Channel, value: &impl Serialize, wait: Duration) -> Result<(), ChannelError> {
    // Plain data in memory have a JSON form.
    channel.send(&serde_json::to_string(value).unwrap_or_default(), wait)
}

/// Receives a value.
pub fn receive<T: DeserializeOwned>(channel: &mut Channel, wait: Duration) -> Result<T, ChannelError> {
    let unreadable =
        "it sent something that this launcher cannot read; is it a different version of Brigade?";
    serde_json::from_str(&channel.receive(wait)?)
        .map_err(|_| ChannelError::UnexpectedPeer(unreadable.to_owned()))
}
