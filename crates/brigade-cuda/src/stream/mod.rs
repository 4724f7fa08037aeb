//! Communication streams: a communicator each, whose operations are ordered among what the rank computes.

mod comm_stream;
mod order;
mod receive_queue;
mod work;

pub use comm_stream::{Lane, Rank};
pub use order::Order;
pub use receive_queue::Inbox;
pub use work::InFlight;
