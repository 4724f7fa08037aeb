//! Progress on standard error: of a run's steps, and of a pass over data. Numbers in words.

pub mod byte_progress;
pub mod counted;
pub mod line;
pub mod mode;
pub mod steps;
