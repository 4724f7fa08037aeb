//! Feeds what nobody would send to everything that reads bytes of others: messages between ranks, checkpoints, flight
//! records, configuration, the launch environment, text to train on, tokenizers and weights.
//!
//! `cargo xtask fuzz` runs every [target](target::Target); `--target`, `--inputs` and `--seed` choose. It needs no
//! nightly compiler and no instrumentation: it starts from valid examples ([`corpus`]), and changes them in the ways
//! that break parsers ([`mutate`]).
//!
//! # Invariants
//! - **An input is a function of seed, target and number** ([`input`]). Nothing that an earlier input did changes a later
//!   one, so that a number is enough to see a failure again.
//! - **The parsers are the real ones.** No target has a copy of what it tests.
//! - **Three things are failures:** a panic (or the end of the process), more memory than the target's
//!   [bound](target::Bound) allows for an input of its length, and no answer in [`watch::PATIENCE`].
//! - **A failure is kept.** Its input is made smaller ([`minimise`]) and written to `fuzz/failures`, with the command that
//!   runs it again. To have it run from then on, move its payload to `fuzz/corpus/<target>/`.
//! - **The targets own nothing that lasts:** no thread, no port, and no file but a temporary one.
//!
//! Memory is counted on the thread that runs the target, by an allocator ([`memory::Counting`]) that the program or test
//! must install; `main` and `tests/` do.

pub mod corpus;
pub mod input;
pub mod memory;
pub mod minimise;
pub mod mutate;
pub mod report;
pub mod run;
pub mod target;
pub mod targets;
pub mod trial;
pub mod watch;
