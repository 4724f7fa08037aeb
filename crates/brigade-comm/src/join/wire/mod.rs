//! What processes send each other outside of operations: who they are, and messages in JSON.

pub(super) mod auth_token;
pub(super) mod handshake;
pub(super) mod message;
pub(super) mod reach;
