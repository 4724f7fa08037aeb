//! From a program to an exit code.

use std::process::ExitCode;

use brigade_launch::{Detected, interrupt};

use crate::run::ending::report;
use crate::run::program::{Program, Role, usage};
use crate::run::session::Session;

/// What a program prepares before ranks are started, and again in each of them: its [`Body`].
pub(crate) type Prepare<'a> = Box<dyn FnOnce(Role) -> anyhow::Result<Body<'a>> + 'a>;

/// What a program does on each rank.
pub(crate) type Body<'a> = Box<dyn FnOnce(&mut Session) -> anyhow::Result<()> + 'a>;

impl Program<'_> {
    /// Starts the ranks, or runs as one of them, until the run is over. All messages have been printed when it returns.
    ///
    /// `prepare` runs before ranks are started and again in each of them, where it should find its results in a cache (of
    /// tokens, say); its errors count as mistakes of the user. `body` runs on each rank.
    ///
    /// Call [`interrupt::block_signals`](brigade_launch::interrupt::block_signals) first thing in `main`, so that a signal at any moment ends the
    /// process with one of the [exit codes](crate::exit).
    pub fn run<P>(
        &self,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
        body: impl FnOnce(&mut Session, P) -> anyhow::Result<()>,
    ) -> ExitCode {
        self.start(Box::new(|role| {
            let prepared = prepare(role)?;
            Ok(Box::new(|session: &mut Session| body(session, prepared)))
        }))
    }

    fn start(&self, prepare: Prepare<'_>) -> ExitCode {
        let result = self.detect().map_err(usage).and_then(|detected| match detected {
            _ if self.flags.dry_run => {
                interrupt::exit_on_signal()?;
                self.dry_run(&detected, prepare)
            }
            Detected::Node(node) => {
                interrupt::exit_on_signal()?;
                self.launch_ranks(&node, prepare)
            }
            Detected::Rank(ref info) => self.run_rank(info, &detected, prepare),
        });
        ExitCode::from(result.unwrap_or_else(|error| report(&error)))
    }
}
