//! The other subcommands, checkpoints, and the commands that README and book show.

mod book;
#[cfg(feature = "object-store")]
mod bucket_results;
mod checkpoints;
mod consolidate;
mod evaluate;
mod generate;
mod launch;
#[cfg(feature = "object-store")]
mod leases;
mod logs;
#[cfg(feature = "object-store")]
mod object_store;
mod plan;
#[cfg(feature = "object-store")]
mod real_stores;
mod report;
mod scaling;
mod status;
#[cfg(feature = "object-store")]
mod streams;
mod submit;
mod timeline;
mod watch;
