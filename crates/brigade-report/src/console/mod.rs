//! Progress on standard error: of a run's steps, and of a pass over data. Counts and durations in words.

pub mod byte_progress;
pub mod counted;
pub mod duration;
pub mod line;
pub mod mode;
pub mod steps;
