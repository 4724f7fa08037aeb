//! From a command line to an exit code.

use std::path::Path;
use std::process::ExitCode;

use brigade_launch::{Detected, interrupt};
use clap::{Args, Command, FromArgMatches};

use super::ending::{rank_failed, report};
use super::program::{Program, Role, usage};
use super::session::Session;
use crate::settings::{Settings, StandardFlags, config_to_toml, merge_config, parse_defaults};

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
        let result = self.detect().map_err(usage).and_then(|detected| match detected {
            _ if self.flags.dry_run => {
                interrupt::exit_on_signal()?;
                self.dry_run(&detected, prepare, body)
            }
            Detected::Node(node) => {
                interrupt::exit_on_signal()?;
                self.launch_ranks(&node, prepare)
            }
            Detected::Rank(ref info) => {
                self.run_rank(info, &detected, prepare, body).or_else(|error| rank_failed(info.rank, error))
            }
        });
        ExitCode::from(result.unwrap_or_else(|error| report(&error)))
    }
}

/// The whole `main` of a program that trains a model of its own: parses the standard flags, starts or joins the ranks, and
/// runs `body` on each. `defaults` is TOML with the sections of [`Settings`]; `--set` and flags override it.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     brigade::launch("train = { steps = 50 }", |session| {
///         println!("rank {} of {}", session.rank(), session.world_size());
///         Ok(())
///     })
/// }
/// ```
pub fn launch(defaults: &str, body: impl FnOnce(&mut Session) -> anyhow::Result<()>) -> ExitCode {
    interrupt::block_signals();
    let file = std::env::current_exe().ok();
    let name = file
        .as_deref()
        .and_then(|path| path.file_stem())
        .map_or("run".into(), |stem| stem.to_string_lossy().into_owned());
    let command = StandardFlags::augment_args(Command::new(name.clone()));
    let matches = command.get_matches();
    let flags = match StandardFlags::from_arg_matches(&matches) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    };
    crate::log::init(flags.quiet);
    let configure = || -> anyhow::Result<(Settings, String)> {
        let resumed = flags.resumed_config()?;
        let files: Vec<&Path> = resumed.as_deref().into_iter().collect();
        let mut settings = merge_config(&parse_defaults::<Settings>(defaults)?, &files, &flags.sets)?;
        flags.apply(&mut settings);
        let config = config_to_toml(&settings)?;
        Ok((settings, config))
    };
    let (settings, config) = match configure() {
        Ok(configured) => configured,
        Err(error) => return ExitCode::from(report(&usage(error))),
    };
    let program = Program {
        name: &name,
        flags: &flags,
        settings: &settings,
        config,
        targets_per_sample: 1,
        costs: Vec::new(),
        boundary_activations: Vec::new(),
        saved_activations: Vec::new(),
    };
    program.run(|_| Ok(()), |session, ()| body(session))
}
