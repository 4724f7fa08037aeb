//! The last step for Prometheus, which asks for it over HTTP.

mod server;
mod text;

pub use server::{MetricsServer, metrics_address};
