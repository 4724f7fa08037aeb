//! Worlds of processes: how their ranks find each other, the control plane, and the connections behind their links.

mod channel;
mod connection_listener;
mod control;
pub(crate) mod fuzz;
mod host_identity;
mod interfaces;
mod network;
mod options;
mod rendezvous;
mod single_rank;
mod start;
mod wire;
mod world;

pub use channel::{Channel, ChannelError};
pub use connection_listener::ConnectionListener;
pub use host_identity::host_identity;
pub use options::Join;
pub use start::join;
pub use wire::auth_token::AuthToken;
pub use world::World;
