//! From a command line to a run: who starts ranks, who is one, and how it all ends.

use std::path::Path;
use std::process::ExitCode;

use brigade_launch::{Detected, interrupt};
use clap::{Args, Command, FromArgMatches};

use super::ending::{failed_rank, report};
use super::program::{Program, Role, usage};
use super::session::Session;
use crate::settings::{Settings, StandardFlags, embedded, layered, resolved};

impl Program<'_> {
    /// Starts the ranks, or is one, until the run is over. Messages have been printed when it returns.
    ///
    /// `prepare` runs before ranks are started, and again in each of them, where it should find its
    /// results (a cache of tokens); its errors are mistakes of the user. `body` runs on each rank.
    ///
    /// A `main` that calls [`interrupt::hold`](brigade_launch::interrupt::hold) before anything else leaves no moment in
    /// which a signal ends the process otherwise than with one of the [exit codes](exit).
    pub fn run<P>(
        &self,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
        body: impl FnOnce(&mut Session, P) -> anyhow::Result<()>,
    ) -> ExitCode {
        let result = self.detected().map_err(usage).and_then(|detected| match detected {
            _ if self.flags.dry_run => {
                interrupt::leave_at_once()?;
                self.dry_run(&detected, prepare, body)
            }
            Detected::Node(node) => {
                interrupt::leave_at_once()?;
                self.launch(&node, prepare)
            }
            Detected::Rank(ref info) => {
                self.rank(info, &detected, prepare, body).or_else(|error| failed_rank(info.rank, error))
            }
        });
        ExitCode::from(result.unwrap_or_else(|error| report(&error)))
    }
}

/// The whole `main` of a program that trains a model of its own: takes the standard flags, starts
/// or joins the ranks, and runs `body` on each. `defaults` is TOML, with the sections of
/// [`Settings`]; `--set` and flags win over it.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     brigade::launch("train = { steps = 50 }", |session| {
///         println!("rank {} of {}", session.rank(), session.size());
///         Ok(())
///     })
/// }
/// ```
pub fn launch(defaults: &str, body: impl FnOnce(&mut Session) -> anyhow::Result<()>) -> ExitCode {
    interrupt::hold();
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
        let mut settings = layered(&embedded::<Settings>(defaults)?, &files, &flags.sets)?;
        flags.apply(&mut settings);
        let config = resolved(&settings)?;
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
        cuts: Vec::new(),
        insides: Vec::new(),
    };
    program.run(|_| Ok(()), |session, ()| body(session))
}
