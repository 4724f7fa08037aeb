//! Workers that train in worlds of their own and meet for outer steps: who takes part in which quorum.
//!
//! Each worker is launched separately, with a number below the number of workers. A [`Coordinator`] knows which of them are there. A worker
//! ([`Member`]) reports to it all the time, and asks it for a [`Quorum`] after its inner steps. The coordinator waits for the others, up to a
//! limit, and then tells all who wait who takes part: those that *contribute* trained from the newest parameters; those that *join*
//! have older ones, or none yet, and are given the newest after the outer step. No tensor passes through the coordinator.
//!
//! # Invariants
//! - Parameters have a name, the [`Base`]: the number of steps, and the quorum that they come from. Only workers with the same base contribute to one
//!   quorum, so what they add up belongs together, whoever died, was late, or was cut off.
//! - A new quorum is only decided once it is known what became of the one before: a worker has its result, or all that could have it are gone
//!   or ask again.
//! - The coordinator keeps nothing on disk. One that is started again learns from the workers' reports what it has to know.

#[cfg(feature = "clusters")]
mod coordinator;
mod member;
mod message;
#[cfg(feature = "clusters")]
mod quorum;
#[cfg(test)]
#[cfg(feature = "clusters")]
mod tests;

#[cfg(feature = "clusters")]
pub use coordinator::Coordinator;
pub use member::{CoordinatorDecision, Member};
pub use message::{Base, Quorum, Request, Status, VERSION, WorkerJoinRequest};

use brigade_comm::AuthToken;

use crate::auth_token::token_from_env;
use crate::error::{Error, Result};

/// The token of the workers and their coordinator, from `BRIGADE_TOKEN` or the file of `BRIGADE_TOKEN_FILE`.
///
/// # Errors
/// If there is none, or it cannot be one.
pub fn token(env: &dyn Fn(&str) -> Option<String>) -> Result<AuthToken> {
    token_from_env(env)?.ok_or_else(|| Error::NoToken { why: "the workers are launched separately".into() })
}
