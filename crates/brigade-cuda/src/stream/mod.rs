//! Communication streams: a communicator with a CUDA stream of its own, whose operations are ordered against what the rank
//! computes.

mod comm_stream;
mod nccl_work;
mod order;
mod rank;
mod receive_queue;

pub use comm_stream::CommStream;
pub use nccl_work::NcclWork;
pub use order::StreamOrder;
pub use rank::RankState;
pub use receive_queue::ReceiveQueue;
