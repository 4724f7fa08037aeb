//! Where warnings go.

use tracing_subscriber::EnvFilter;

/// What is logged, in the directives of [`EnvFilter`]: `BRIGADE_LOG=brigade=debug,wgpu=info`.
const VARIABLE: &str = "BRIGADE_LOG";

/// Brigade's own warnings; those of what it is built on are many.
const DEFAULT: &str = "brigade=warn";

/// Writes what Brigade's crates warn of to standard error, if the program has no subscriber of its own; the variable
/// `BRIGADE_LOG` says what is written instead. [`launch`](crate::launch) begins with it.
pub fn init() {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| DEFAULT.to_owned());
    let filter = EnvFilter::builder().parse_lossy(wanted);
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Where there is a subscriber, it stays.
    drop(subscriber.without_time().with_target(false).try_init());
}
