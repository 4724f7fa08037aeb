//! One behaviour on every transport: threads, shared memory, TCP, and groups that mix them.

mod collectives;
mod failures;
mod processes;
mod rendezvous;
mod worlds;
