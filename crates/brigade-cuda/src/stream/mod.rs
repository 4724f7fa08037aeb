//! Communication streams: a communicator with a CUDA stream of its own, whose operations are ordered against what the rank
//! computes.

mod comm_stream;
mod order;
mod rank;
mod receive_queue;
mod work;

pub use comm_stream::CommStream;
pub use order::StreamOrder;
pub use rank::RankState;
pub use receive_queue::ReceiveQueue;
pub use work::Work;
