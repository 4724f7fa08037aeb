//! Data, results and checkpoints in object stores.

mod bucket_results;
mod leases;
mod object_store;
mod real_stores;
mod streams;
