//! A rank's measurements of itself: where its time went, and what its memory is for.

mod clock;
mod memory;
mod span;

pub use clock::{Clock, WAITS};
pub use memory::{Bytes, Memory};
pub use span::{Activity, Span};
