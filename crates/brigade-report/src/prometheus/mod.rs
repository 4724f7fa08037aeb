//! The last step for Prometheus, which asks for it over HTTP.

mod server;
mod text;

pub use server::{MetricsServer, check_metrics_address, metrics_address};
