//! Where warnings go.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// What is logged, in the directives of [`EnvFilter`]: `BRIGADE_LOG=brigade=debug,wgpu=info`.
const VARIABLE: &str = "BRIGADE_LOG";

/// Brigade's own warnings; the libraries below it have too many.
const DEFAULT: &str = "brigade=warn";

/// What is logged under `--quiet`.
const QUIET: &str = "brigade=error";

/// Writes warnings of Brigade's crates, or only their errors, to standard error, unless the program has a subscriber of its own.
/// The variable `BRIGADE_LOG` can select something else. Colours are for terminals, unless `NO_COLOR` is set.
/// [`launch`](crate::launch) calls this first.
pub fn init(quiet: bool) {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| if quiet { QUIET } else { DEFAULT }.to_owned());
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let filter = EnvFilter::builder().parse_lossy(wanted);
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // A subscriber that is already there stays.
    drop(subscriber.without_time().with_target(false).try_init());
}
