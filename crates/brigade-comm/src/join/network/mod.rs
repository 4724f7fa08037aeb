//! The connections behind the links of groups: accepted from other ranks, or dialed.

pub(super) mod acceptor;
pub(super) mod connector;
mod descriptors;
pub(super) mod dialer;
pub(super) mod pending_links;
