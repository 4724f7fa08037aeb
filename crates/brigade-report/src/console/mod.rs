//! Progress on standard error: of a run's steps, and of a pass over data.

pub mod byte_progress;
pub mod line;
pub mod mode;
pub mod steps;
