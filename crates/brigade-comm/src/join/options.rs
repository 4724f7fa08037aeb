//! What a process joins a world with.

use std::net::TcpListener;

use super::rendezvous::endpoint::parse_endpoint;
use super::wire::message::MAX_TEXT_BYTES;
use crate::Result;
use crate::error::Error;
use crate::join::wire::auth_token::AuthToken;
use crate::limits::{MAX_WORLD_SIZE, allowed_world_size};
use crate::op::algorithm::Algorithm;
use crate::timeouts::Timeouts;
use crate::transport::{Encryption, Transport};

/// What a process needs to become a rank of a world.
#[derive(Debug)]
pub struct Join {
    /// This rank, below `world_size`.
    pub rank: usize,
    /// The number of ranks, from 1 to [`MAX_WORLD_SIZE`].
    pub world_size: usize,
    /// `host:port` where rank 0 listens and the others find it.
    pub endpoint: String,
    /// Rank 0 may be given a socket that already listens at the endpoint.
    pub listener: Option<TcpListener>,
    /// Whether rank 0 listens at the endpoint before any rank joins: if it no longer does, it is gone, and the others do not wait for it.
    pub is_listening: bool,
    /// The world's secret.
    pub token: AuthToken,
    /// How often the world has been started before, 0 at first. A rank of an earlier start is refused and does not
    /// disturb a later one.
    pub restart: u32,
    /// The transport between this rank and the others.
    pub transport: Transport,
    /// Whether traffic with other hosts is encrypted.
    pub encryption: Encryption,
    /// The network interfaces of this host by which its ranks and those of other hosts reach each other over TCP, each by its name, by one
    /// of its addresses, or by a network that one of them is in. The rank's own is number `local_rank` modulo their number: it takes
    /// connections there alone, and makes them from there, or from another one that is in the other rank's network. Empty: the addresses from
    /// which ranks reach rank 0. Each host may have its own, but either all have some or none.
    pub interfaces: Vec<String>,
    /// The rank's number on its host.
    pub local_rank: usize,
    /// The algorithm of collectives. The same on all ranks.
    pub algorithm: Algorithm,
    /// The world's deadlines.
    pub timeouts: Timeouts,
    /// Instead of [`host_identity`](crate::host_identity), to make ranks on one host behave as if they were on several.
    pub host: Option<String>,
}

impl Join {
    /// A rank that has never been started before, with default settings: set others by struct update.
    ///
    /// ```
    /// use brigade_comm::{AuthToken, Join, Transport};
    ///
    /// let join = Join { transport: Transport::Tcp, ..Join::new(0, 2, "127.0.0.1:29400", AuthToken::new("a secret")) };
    /// assert_eq!((join.rank, join.world_size, join.restart), (0, 2, 0));
    /// ```
    pub fn new(rank: usize, world_size: usize, endpoint: impl Into<String>, token: AuthToken) -> Self {
        Self {
            rank,
            world_size,
            endpoint: endpoint.into(),
            listener: None,
            is_listening: false,
            token,
            restart: 0,
            transport: Transport::Auto,
            encryption: Encryption::BetweenHosts,
            interfaces: Vec::new(),
            local_rank: 0,
            algorithm: Algorithm::Auto,
            timeouts: Timeouts::default(),
            host: None,
        }
    }
}

/// Checks what can be checked before anything is started.
pub(super) fn check(join: &Join) -> Result<()> {
    let refuse = |option, given: String, allowed: String| Err(Error::Option { option, given, allowed });
    if !(1..=MAX_WORLD_SIZE).contains(&join.world_size) {
        return refuse("world_size", join.world_size.to_string(), allowed_world_size());
    }
    if join.rank >= join.world_size {
        let allowed = format!("a number below the world size of {} is allowed", join.world_size);
        return refuse("rank", join.rank.to_string(), allowed);
    }
    if parse_endpoint(&join.endpoint).is_none() {
        let allowed = "host:port is allowed, as in 10.0.0.1:29400 or [::1]:29400";
        return refuse("endpoint", format!("\"{}\"", join.endpoint), allowed.into());
    }
    if join.token.expose().is_empty() {
        return refuse("token", "\"\"".into(), "a secret of at least one character is needed".into());
    }
    if join.listener.is_some() && join.rank != 0 {
        let allowed = format!("only rank 0 may be given one, this is rank {}", join.rank);
        return refuse("listener", "a socket".into(), allowed);
    }
    match &join.host {
        Some(host) if host.len() > MAX_TEXT_BYTES => {
            let allowed = format!("at most {MAX_TEXT_BYTES} bytes are allowed");
            refuse("host", format!("{} bytes", host.len()), allowed)
        }
        _ => Ok(()),
    }
}
