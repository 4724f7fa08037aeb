//! One operation in flight: how far it has come on each link.

pub(crate) mod collective;
pub(crate) mod in_flight_op;
mod incoming;
mod outgoing;
pub(crate) mod stop;
mod stream_state;
pub(crate) mod transfer;

#[cfg(test)]
mod tests;
