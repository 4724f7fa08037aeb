//! Groups of ranks: what a rank calls, how groups are split, and worlds of threads.

mod calls;
pub(crate) mod handle;
mod split;
pub(crate) mod threads;
