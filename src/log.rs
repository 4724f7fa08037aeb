//! Where warnings go.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// What is logged, in the directives of [`EnvFilter`]: `BRIGADE_LOG=brigade=debug,wgpu=info`.
const VARIABLE: &str = "BRIGADE_LOG";

/// Brigade's own warnings; those of what it is built on are many.
const DEFAULT: &str = "brigade=warn";

/// What is logged where nothing but errors is to be printed.
const QUIET: &str = "brigade=error";

/// Writes what Brigade's crates warn of, or only their errors, to standard error, if the program has no subscriber of its own;
/// the variable `BRIGADE_LOG` says what is written instead. Colours are for terminals, unless `NO_COLOR` is set.
/// [`launch`](crate::launch) begins with it.
pub fn init(quiet: bool) {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| if quiet { QUIET } else { DEFAULT }.to_owned());
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let filter = EnvFilter::builder().parse_lossy(wanted);
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // Where there is a subscriber, it stays.
    drop(subscriber.without_time().with_target(false).try_init());
}
