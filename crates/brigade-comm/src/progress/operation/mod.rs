//! One operation in flight: its handle, its buffer, and how far it has come on each link.

pub(crate) mod collective;
pub(crate) mod in_flight_op;
mod incoming;
mod outgoing;
mod stage;
pub(crate) mod stop;
pub(crate) mod transfer;
pub(crate) mod work;
