//! Where warnings go.

use std::io::{IsTerminal, stderr};

use brigade_report::{log_format, log_output, set_log_format};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

/// What is logged: levels, each for the targets that begin with a name, as in `BRIGADE_LOG=brigade=debug,wgpu=info`.
const VARIABLE: &str = "BRIGADE_LOG";

/// Brigade's own warnings; the libraries below it have too many.
const DEFAULT: &str = "brigade=warn";

pub use brigade_report::LogFormat;

/// What is logged under `--quiet`.
const QUIET: &str = "brigade=error";

/// Writes warnings of Brigade's crates, or only their errors, to standard error, unless the program has a subscriber of its own.
/// The variable `BRIGADE_LOG` can select something else: `brigade=debug,wgpu=info`. Colours are for terminals, unless `NO_COLOR` is set.
/// From now on, what this process writes there has the `format`. [`launch`](crate::launch) calls this first.
pub fn init(quiet: bool, format: LogFormat) {
    set_log_format(format);
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| if quiet { QUIET } else { DEFAULT }.to_owned());
    let colours = log_format() == LogFormat::Text
        && stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let lines = fmt::layer().with_writer(log_output).with_ansi(colours).without_time().with_target(false);
    // A subscriber that is already there stays.
    drop(registry().with(filter(&wanted)).with(lines).try_init());
}

/// The directives that make sense; errors where there is none.
fn filter(wanted: &str) -> Targets {
    let makes_sense = |directive: &&str| !directive.is_empty() && directive.parse::<Targets>().is_ok();
    let directives: Vec<&str> = wanted.split(',').map(str::trim).filter(makes_sense).collect();
    let directives = if directives.is_empty() { "error".to_owned() } else { directives.join(",") };
    directives.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn a_directive_is_for_all_targets_that_begin_with_its_name() {
        let enables = |wanted: &str, target: &str| {
            let filter = filter(wanted);
            let levels = [LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG];
            let level = |level: &LevelFilter| level.into_level();
            levels.iter().filter_map(level).filter(|level| filter.would_enable(target, level)).count()
        };
        assert_eq!(
            ["brigade", "brigade_comm::link", "wgpu"].map(|target| enables(DEFAULT, target)),
            [2, 2, 0]
        );
        assert_eq!(enables(QUIET, "brigade_launch"), 1);
        let wanted = "brigade=debug, wgpu=info,wgpu==,brigade_comm=loud";
        assert_eq!(["brigade_comm", "wgpu::hal", "other"].map(|target| enables(wanted, target)), [4, 3, 0]);
        assert_eq!(["info", "", "a=b=c"].map(|wanted| enables(wanted, "other")), [3, 1, 1]);
    }
}
