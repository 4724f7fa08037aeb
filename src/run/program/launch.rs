//! The command line of a program of one's own.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use brigade_launch::{StandardStreams, interrupt};
use clap::builder::{Resettable, StyledStr};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use toml::Table;

use crate::run::auto::{Choice, Chosen};
use crate::run::ending::report;
use crate::run::program::own_flags::OwnFlags;
use crate::run::program::{Program, usage};
use crate::run::session::Session;
use crate::settings::{
    Layer, MicroBatchSize, Settings, StandardFlags, config_to_toml, merge_layers, parse_defaults,
};

/// The whole `main` of a program that trains a model of its own: parses the standard flags, starts or joins the ranks, and
/// runs `body` on each. `defaults` is TOML with the sections of [`Settings`]; `--config`, `--set` and flags override it.
/// A program with a name, a description or flags of its own uses [`Launch`].
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
    Launch::new(defaults).run(|session, ()| body(session))
}

/// [`launch`](crate::launch) with a name, a description and flags of the program's own:
///
/// ```no_run
/// use brigade::{Launch, clap};
///
/// /// What this program takes beside the flags of every program.
/// #[derive(clap::Args)]
/// struct Flags {
///     /// Number of arms of the spiral.
///     #[arg(long, default_value_t = 2)]
///     arms: usize,
/// }
///
/// fn main() -> std::process::ExitCode {
///     Launch::new("train = { steps = 50 }")
///         .name("spirals")
///         .version(env!("CARGO_PKG_VERSION"))
///         .about("Trains a classifier for points on spirals.")
///         .run(|session, flags: Flags| {
///             println!("rank {}: {} arms", session.rank(), flags.arms);
///             Ok(())
///         })
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    defaults: &'a str,
    command: Command,
    about: Resettable<StyledStr>,
}

impl<'a> Launch<'a> {
    /// A program with these defaults, in TOML with the sections of [`Settings`]. It is named after its file.
    pub fn new(defaults: &'a str) -> Self {
        let file = std::env::current_exe().ok();
        let name = file.as_deref().and_then(Path::file_stem);
        let name = name.map_or("run".into(), |stem| stem.to_string_lossy().into_owned());
        Self { defaults, command: Command::new(name).max_term_width(110), about: Resettable::Reset }
    }

    /// Its name, in `--help` and for the folders of results.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.command = self.command.bin_name(name.clone()).name(name);
        self
    }

    /// Its version, for `--version`.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.command = self.command.version(version.into());
        self
    }

    /// What it does, for `--help`.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Resettable::Value(about.into().into());
        self
    }

    /// Parses the standard flags and those of `A` (`()` for none), starts or joins the ranks, and runs `body` on each of them. Every
    /// rank gets the same flags.
    ///
    /// The flags of `A` are part of the run's configuration, in a section `[flags]`: all ranks must have the same, `--resume` takes
    /// those that are not given from the run that it resumes and says which have changed, and a file for `--config` may have such a
    /// section. `--set flags.name=value` also sets one, for example to turn off a run's switch (`--set flags.verbose=false`).
    pub fn run<A: Args>(self, body: impl FnOnce(&mut Session, A) -> anyhow::Result<()>) -> ExitCode {
        interrupt::block_signals();
        let body = |session: &mut Session, flags: &ArgMatches| body(session, A::from_arg_matches(flags)?);
        self.run_with(&OwnFlags::of::<A>(), Box::new(body))
    }

    /// [`run`](Self::run), with the program's own flags as they were parsed.
    fn run_with(self, own: &OwnFlags, body: Box<BodyWithFlags<'_>>) -> ExitCode {
        let words = std::env::args_os().collect();
        let (line, chosen) = match self.decided(own, words) {
            Ok(read) => read,
            Err(error) => match error.downcast::<clap::Error>() {
                Ok(error) => error.exit(),
                Err(error) => return ExitCode::from(report(&usage(error))),
            },
        };
        crate::log::init(line.flags.quiet, line.flags.log_format);
        let program = Program { chosen: chosen.as_ref(), ..program(&line, &line.settings) };
        program.run(|_| Ok(()), |session, ()| body(session, &line.matches))
    }

    /// Reads `words`, and finds what they leave open.
    fn decided(&self, own: &OwnFlags, words: Vec<OsString>) -> anyhow::Result<(CommandLine, Option<Chosen>)> {
        let line = self.clone().read(own, words.clone())?;
        if line.flags.micro_batch_size != Some(MicroBatchSize::Auto) {
            return Ok((line, None));
        }
        // How many ranks there are does not depend on the size that is looked for.
        let mut settings = line.settings.clone();
        settings.train.micro_batch_size = 1;
        let ranks = program(&line, &settings).ranks()?;
        let args = words.get(1..).unwrap_or_default().to_vec();
        let open = Chosen { args, record: Choice::default(), elastic_args: None };
        let chosen = line.flags.choose_micro_batch(open, &line.settings, &ranks)?;
        let words = words.into_iter().take(1).chain(chosen.args.iter().cloned()).collect();
        Ok((self.clone().read(own, words)?, Some(chosen)))
    }

    /// Reads `words`, the program's name and its arguments.
    ///
    /// # Errors
    /// [`clap::Error`] for arguments (`--help` is one), others for files.
    fn read(self, own: &OwnFlags, words: Vec<OsString>) -> anyhow::Result<CommandLine> {
        let name = self.command.get_name().to_owned();
        own.check(&StandardFlags::augment_args(Command::new("")))?;
        let command = StandardFlags::augment_args(own.add_to(self.command));
        // Otherwise it would be what the documentation of the flags' types says.
        let command = command.about(self.about).long_about(Resettable::Reset);
        // The files say what flags have that are not given, even those that must have a value.
        let given = command.clone().ignore_errors(true).try_get_matches_from(&words);
        let (mut layers, mut sets, mut saved) = (Vec::new(), Vec::new(), Table::new());
        // Of flags that cannot be read the last parse tells.
        if let Ok(given) = &given
            && let Ok(flags) = StandardFlags::from_arg_matches(given)
        {
            for file in flags.config_files()? {
                let mut layer = Layer::read(&file)?;
                own.take(&mut layer, &mut saved)?;
                layers.push(layer);
            }
            for set in flags.sets {
                let mut layer = Layer::of_set(&set)?;
                own.take(&mut layer, &mut saved)?;
                if !layer.table.is_empty() {
                    sets.push(set);
                }
            }
        }
        let (command, words) = own.with_saved(command, words, &saved);
        let matches: ArgMatches = command.try_get_matches_from(words)?;
        let flags = StandardFlags::from_arg_matches(&matches)?;
        let mut settings = merge_layers(&parse_defaults::<Settings>(self.defaults)?, layers, &sets)?;
        flags.apply(&mut settings)?;
        let config = own.section(&matches)? + &config_to_toml(&settings)?;
        own.check_values(&matches)?;
        Ok(CommandLine { name, flags, matches, settings, config })
    }
}

/// What a program does on each rank, given its own flags among the parsed ones.
type BodyWithFlags<'a> = dyn FnOnce(&mut Session, &ArgMatches) -> anyhow::Result<()> + 'a;

/// What a command line and the files that it names say.
struct CommandLine {
    name: String,
    flags: StandardFlags,
    /// All flags, the program's own among them.
    matches: ArgMatches,
    settings: Settings,
    /// The whole configuration, as TOML.
    config: String,
}

/// The program of a command line; `settings` may be others than its own.
fn program<'a>(line: &'a CommandLine, settings: &'a Settings) -> Program<'a> {
    Program {
        name: &line.name,
        flags: &line.flags,
        settings,
        config: line.config.clone(),
        targets_per_sample: 1,
        costs: Vec::new(),
        streams: StandardStreams::Logged,
        chosen: None,
    }
}
