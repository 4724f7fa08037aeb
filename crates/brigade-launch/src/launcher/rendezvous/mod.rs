//! The rendezvous of an elastic world: which nodes its next start has.
//!
//! Node 0 listens at the endpoint for as long as it lives ([`Host`]). The launcher of any other node connects to it whenever it has no
//! part in the world ([`join()`]): at the first start, after a loss, and when it comes later. Node 0 checks who that is, keeps the
//! connection, and decides who takes part; from then on the launchers are a node group at a port of its own,
//! in which the nodes are numbered anew, without gaps.

mod admission;
mod host;
mod join;
mod message;

pub use self::{
    host::Host,
    join::join,
    message::{NodeJoinRequest, RendezvousEnd, Start},
};
