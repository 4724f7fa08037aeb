//! Object stores by URL, through the crate `object_store`.
//!
//! - [`Location`]: a URL that is checked. One that carries a secret is refused: URLs are written into configurations, logs and messages.
//! - [`Client`]: a store, and the thread on which its connections are served. Callers wait in ordinary functions, with a deadline.
//! - [`Object`]: one object in one version. Its [`Reader`] asks for ranges ahead of what is read, several at once, and holds a bounded number.
//!
//! # Invariants
//! - Credentials come from the environment, or from the machine's metadata, by the names that `object_store` reads; none is part of a URL.
//! - Every range says which version of the object it is from. A reader has bytes of one version, or an error.
//! - What a store cannot answer now (503, a connection that is cut or silent) is asked for again from where it ended, with growing pauses,
//!   until no byte has come for the deadline.

mod client;
mod error;
mod fetch;
mod location;
mod object;
mod read;

pub use client::Client;
pub use error::{Error, Result};
pub use location::{Location, Scheme};
pub use object::{Object, find, find_below};
pub use read::{Reader, read_at};
