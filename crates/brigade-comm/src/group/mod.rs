//! Groups of ranks: what a rank calls, how groups are split, and worlds of threads.

mod calls;
pub(crate) mod handle;
mod number;
mod split;
pub(crate) mod threads;
