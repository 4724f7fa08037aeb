//! Feeds damaged input to everything that reads bytes from outside the process: messages between ranks, checkpoints, flight
//! records, configuration, the launch environment, text to train on, tokenizers and weights.
//!
//! `cargo xtask fuzz` runs every [target](target::Target); `--target`, `--inputs` and `--seed` choose. It needs no
//! nightly compiler and no instrumentation: it starts from valid [inputs](input) and changes them in the ways that break
//! parsers.
//!
//! # Why a runner of its own
//! `bolero` and `cargo fuzz` find more with coverage, but their engines need instrumentation from a nightly compiler, libFuzzer
//! in C++ and a program to install. On the stable compiler, which is all that CI has, `bolero` generates random bytes and
//! replays a corpus; it neither mutates valid examples, without which a frame, a Parquet file or a tokenizer is refused at its
//! first bytes, nor bounds the memory of a single input, which is what most of our targets check. The
//! [`targets`] are plain functions of bytes, so that such an engine can call them, too.
//!
//! # Invariants
//! - **An input is a function of seed, target and number.** Nothing that an earlier input did changes a later one, so that a
//!   number is enough to repeat a failure.
//! - **The parsers are the real ones.** No target has a copy of what it tests.
//! - **Three things are failures:** a panic (or the end of the process), more memory than the target's
//!   [bound](target::Bound) allows for an input of its length, and no result within [`run::watch::TIME_LIMIT`].
//! - **A failure is saved.** Its input is [made smaller](input::minimise) and written to `fuzz/failures`, with the command that
//!   repeats it. To run it in every later test, move its payload to `fuzz/corpus/<target>/`.
//! - **Targets leave nothing behind:** no thread, no port, and no file but a temporary one.
//!
//! Memory is counted on the thread that runs the target, by an allocator ([`run::memory::Counting`]) that the program or test
//! must install; `main` and `tests/` do.

pub mod input;
pub mod run;
pub mod target;
pub mod targets;
