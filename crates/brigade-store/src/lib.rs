//! Object stores by URL, through the crate `object_store`.
//!
//! - [`Location`]: a checked URL. One with a secret is refused: URLs are written into configurations, logs and messages.
//! - [`Client`]: a store, and the thread on which its connections are served. Callers block in ordinary functions, with a
//!   deadline.
//! - [`Object`]: one object in one version. Its [`Reader`] prefetches ranges, several at once, and holds a bounded number.
//! - [`Upload`]: an object that is being written.
//! - [`Folder`]: the objects below a location, as the files of a folder.
//!
//! # Invariants
//! - Credentials come from the environment, or from the machine's metadata, by the names that `object_store` reads; none is part of a URL.
//! - Every range is tied to one version of the object. A reader returns bytes of one version, or an error.
//! - Requests that a store cannot answer now (503, a connection that is cut or silent) are retried from where they ended, with growing
//!   pauses, until no byte has arrived for the deadline.
//! - A request may take as long as its answer and what it sends need on a slow line, and no longer: 64 KiB a second on each connection are enough.
//! - Messages repeat the code and the message of a store's answer, and nothing else of it: its pages name keys, and what was signed.

mod access;
mod client;
mod credentials;
mod error;
mod fetch;
mod folder;
mod location;
mod object;
mod read;
mod reason;
mod timeouts;

pub use access::{Access, access};
pub use client::Client;
pub use credentials::are_credentials_set;
pub use error::{Error, Result};
pub use folder::{Folder, FolderFile, Upload};
pub use location::{Location, Scheme};
pub use object::{Object, find, find_below};
pub use read::{Reader, read_at};
