//! The CUDA driver: its library, GPUs, contexts, streams and events.

mod context;
mod event;
mod gpu;
mod gpu_choice;
mod library;
mod stream;

pub use context::Context;
pub use event::Event;
pub use gpu::Gpu;
pub use gpu_choice::{check_gpu_count, gpu_for, shared_gpu};
pub use library::{Driver, driver};
pub use stream::Stream;
