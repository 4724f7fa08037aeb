//! Separately launched servers and workers: how they find each other.
//!
//! The first server listens where `strategy.listen` says, the others at ports that it names. A worker connects to each of them, and they form a
//! world: the worker, and then all servers. Such a world ends when one of them is lost; the servers go on with the other workers, and a
//! worker connects again.

mod listening;
mod worker;

use std::time::Duration;

use brigade_comm::{Channel, ChannelError};
use brigade_sorted::SortedMap;
use serde::{Deserialize, Serialize};

use crate::run::Session;

pub(super) use listening::{ServedWorkers, check_servers_hosts};
pub(super) use worker::RemoteServers;

/// The version of these messages.
const VERSION: u32 = 2;

/// How long a message may take.
const MESSAGE: Duration = Duration::from_secs(10);

/// How long a worker and the servers may take to form a world: they are all there, or lost.
const FORMING: Duration = Duration::from_secs(30);

/// What a worker says to each server.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ConnectRequest {
    version: u32,
    /// Its number, below `strategy.workers`.
    worker: usize,
    /// What must be the same on all workers and servers.
    configuration: String,
    /// Distinguishes its process from others with its number.
    process: u64,
    /// Distinguishes its connections: the same number for all servers.
    connection: u64,
    /// `host:port` where it waits for the servers, as rank 0.
    endpoint: String,
}

/// A server's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Reply {
    /// It comes. The ports of all servers.
    Welcome { ports: Vec<u16> },
    /// Another process has its number, as far as this server knows.
    Taken,
    /// It never will.
    Refused { reason: String },
}

/// What must be the same on all workers and servers.
fn shared_configuration(session: &Session, facts: &SortedMap<String, String>) -> anyhow::Result<String> {
    let facts: String = facts.iter().map(|(what, text)| format!("{what} = {text}\n")).collect();
    Ok(crate::world::shared_by_workers(&session.config)? + &facts)
}

fn send(channel: &mut Channel, message: &impl Serialize) -> Result<(), ChannelError> {
    // Plain data in memory have a JSON form.
    channel.send(&serde_json::to_string(message).unwrap_or_default(), MESSAGE)
}

fn receive<M: for<'de> Deserialize<'de>>(channel: &mut Channel) -> Result<M, ChannelError> {
    serde_json::from_str(&channel.receive(MESSAGE)?).map_err(|_| {
        let what = "it sent something that cannot be read; is it a different version of Brigade?";
        ChannelError::UnexpectedPeer(what.into())
    })
}
