//! Strategies beside synchronous training: what they compute, and what their state goes on as.

pub(crate) mod async_server;
mod buckets;
pub(crate) mod coded_gathers;
pub(crate) mod compressed;
pub(crate) mod elastic_workers;
pub(crate) mod local_updates;
mod separate_servers;
pub(crate) mod strategy;
