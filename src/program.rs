//! From a command line to a run: who starts ranks, who is one, and how it all ends.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use brigade_comm::Group;
use brigade_core::plan::{CutTensor, Inside};
use brigade_launch::{Detected, LaunchConfig, NodeInfo, Outcome, RankInfo, Source, interrupt};
use clap::{Args, Command, FromArgMatches};
use serde::Serialize;

use crate::backend::{self, Processor};
use crate::claim::{self, Claim, RUN_ID, beginning};
use crate::config::{embedded, layered};
use crate::ending::{
    PANICKED, announce, failed_rank, is_shared, is_unexplained, panic_text, report, said_why, write_flight,
};
use crate::explain::{explain, tell};
use crate::flags::StandardFlags;
use crate::output;
use crate::rank;
use crate::session::{DryRun, Session};
use crate::settings::{Plan, Settings, automatic};

pub use brigade_launch::exit;

/// Names the run's folder to the ranks that the launcher starts.
const RUN_DIR: &str = "BRIGADE_RUN_DIR";

/// How much longer than an operation's deadline a rank may be stopped: ranks that wait for it come first, as they also know
/// in which operation.
const VERDICT: Duration = Duration::from_secs(3);

/// The folder in a run's folder with what each rank did last, after a failure.
pub const FLIGHT_FOLDER: &str = "flight";

/// A mistake of the user, found before training: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{}", explain(.0))]
pub struct Usage(pub anyhow::Error);

/// What a process is in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It starts the ranks of a node and watches over them.
    Launcher,
    /// It is a rank that Brigade's launcher started: the launcher has prepared everything already.
    LaunchedRank,
    /// It is a rank that somebody else started (torchrun, Slurm, MPI, …).
    JoinedRank {
        /// Its number in the world.
        rank: usize,
    },
}

/// A run as the command line describes it.
pub struct Program<'a> {
    /// Its name, for the folder of results where none is given.
    pub name: &'a str,
    /// The standard flags.
    pub flags: &'a StandardFlags,
    /// The settings, flags laid over.
    pub settings: &'a Settings,
    /// The whole resolved configuration as TOML; all ranks must have the same.
    pub config: String,
    /// Targets in one sample (sequence length), to turn a warm-up in tokens into steps.
    pub targets_per_sample: usize,
    /// Relative costs of the model's blocks, where they are known before a rank starts: whether they can be
    /// cut into stages as the settings say is then checked before, too.
    pub costs: Vec<f64>,
    /// The tensors that go into each block, where they are known, to say what they take.
    pub cuts: Vec<Vec<CutTensor>>,
    /// What each block needs inside, and the loss, where that is known.
    pub insides: Vec<Inside>,
}

impl Program<'_> {
    /// Starts the ranks, or is one, until the run is over. Messages have been printed when it returns.
    ///
    /// `prepare` runs before ranks are started, and again in each of them, where it should find its
    /// results (a cache of tokens); its errors are mistakes of the user. `body` runs on each rank.
    ///
    /// A `main` that calls [`interrupt::block_signals`](brigade_launch::interrupt::block_signals) before anything else leaves no moment in
    /// which a signal ends the process otherwise than with one of the [exit codes](exit).
    pub fn run<P>(
        &self,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
        body: impl FnOnce(&mut Session, P) -> anyhow::Result<()>,
    ) -> ExitCode {
        let result = self.detected().map_err(usage).and_then(|detected| match detected {
            _ if self.flags.dry_run => {
                interrupt::exit_on_signal()?;
                self.dry_run(&detected, prepare, body)
            }
            Detected::Node(node) => {
                interrupt::exit_on_signal()?;
                self.launch(&node, prepare)
            }
            Detected::Rank(ref info) => {
                self.rank(info, &detected, prepare, body).or_else(|error| failed_rank(info.rank, error))
            }
        });
        ExitCode::from(result.unwrap_or_else(|error| report(&error)))
    }

    fn detected(&self) -> anyhow::Result<Detected> {
        Ok(brigade_launch::detect(&self.flags.world, &environment)?)
    }

    /// Ranks on each node: as told, or to fill the mesh, or one per core or GPU as far as stages and batch divide, but enough
    /// for one rank a stage.
    fn ranks_per_node(&self, node: &NodeInfo) -> anyhow::Result<usize> {
        let Settings { mesh, train, .. } = self.settings;
        if let Some(ranks) = node.nproc_per_node {
            return Ok(ranks);
        }
        let pp = mesh.pp.max(1);
        let fits = |ranks: &usize| {
            let world = ranks * node.nnodes;
            let samples = (world / pp).saturating_mul(train.micro_batch_size);
            world.is_multiple_of(pp) && samples > 0 && train.global_batch_size.is_multiple_of(samples)
        };
        Ok(match mesh.dp.saturating_mul(mesh.pp) {
            0 => {
                let room = backend::room(self.settings.compute.backend)?;
                (1..=room).rev().find(fits).unwrap_or(pp.div_ceil(node.nnodes))
            }
            ranks => ranks.div_ceil(node.nnodes),
        })
    }

    fn plan(&self, world: usize) -> anyhow::Result<Plan> {
        let plan = self.settings.plan(world, self.targets_per_sample)?;
        if !self.costs.is_empty() {
            plan.split(&self.costs)?;
        }
        Ok(plan)
    }

    fn launch<P>(
        &self,
        node: &NodeInfo,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
    ) -> anyhow::Result<u8> {
        self.settings.check_backend().map_err(|error| usage(error.into()))?;
        let nproc = self.ranks_per_node(node).map_err(usage)?;
        let by_itself =
            matches!(node.source, Source::Standalone | Source::Flags) && node.overridden.is_none();
        if !by_itself && !self.flags.quiet {
            tell(Detected::Node(node.clone()));
        }
        let prepared = || {
            let token = Detected::Node(node.clone()).token(&environment)?;
            self.plan(nproc.saturating_mul(node.nnodes))?;
            backend::check(self.settings, nproc, nproc * node.nnodes)?;
            prepare(Role::Launcher)?;
            let Settings { output, .. } = self.settings;
            // Node 0 holds rank 0, which writes the results; the other nodes keep only their logs.
            let claim = match node.node_rank {
                0 => Claim::of(self)?,
                _ => Claim::for_logs(output::folder(&output.dir, self.name)?),
            };
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            Ok((token, claim, program))
        };
        let (token, claim, program) = prepared().map_err(usage)?;
        let dir = claim.dir.clone();
        let mut launch = LaunchConfig::local(program, nproc, token, dir.join("logs"))
            .on_node(node)
            .with_flags(&self.flags.world);
        let timeouts = rank::timeouts(&self.settings.comm);
        (launch.init_timeout, launch.host_timeout) = (timeouts.init, timeouts.host);
        launch.stopped_timeout = timeouts.step + VERDICT;
        launch.blocks_signals = true;
        launch.args = std::env::args_os().skip(1).collect();
        launch.env =
            vec![(RUN_DIR.into(), OsString::from(&dir)), (RUN_ID.into(), OsString::from(&claim.run))];
        launch.env.extend(backend::environment(self.settings.compute.backend));
        let outcome = brigade_launch::launch(&launch, &mut announce)?;
        drop(claim);
        match &outcome {
            Outcome::Done | Outcome::Preempted { .. } => {}
            Outcome::Failed(failure)
                if node.node_rank == 0
                    && failure.root.rank == 0
                    && failure.panic.is_empty()
                    && said_why(failure) => {}
            other => tell(format_args!("brigade: {other}")),
        }
        if matches!(outcome, Outcome::Failed(_)) && dir.join(FLIGHT_FOLDER).exists() {
            tell(format_args!("what each rank did last: brigade inspect flight {}", dir.display()));
        }
        Ok(outcome.exit_code())
    }

    fn rank<P>(
        &self,
        info: &RankInfo,
        detected: &Detected,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
        body: impl FnOnce(&mut Session, P) -> anyhow::Result<()>,
    ) -> anyhow::Result<u8> {
        backend::prepare(self.settings.compute.backend);
        let interrupt = interrupt::install()?;
        interrupt.mark_preparing();
        let launched = launched_in();
        let role = if launched.is_some() { Role::LaunchedRank } else { Role::JoinedRank { rank: info.rank } };
        let plan = self.plan(info.world_size).map_err(usage)?;
        let prepared = prepare(role).map_err(usage)?;
        let token = detected.token(&environment).map_err(|e| usage(e.into()))?;
        let world = rank::join(info, token, &self.settings.comm)?;
        if let Err(error) = rank::same_configuration(world.group(), &self.config) {
            // A rank that compared sooner may have failed by now, for a reason of its own.
            if error.is::<brigade_comm::Error>() {
                return Err(error);
            }
            // All ranks know it; none leaves before the last one does.
            drop(world.shutdown());
            return Err(usage(error));
        }
        let claim = match launched {
            Some(dir) => Claim::given(dir),
            None if info.rank == 0 => {
                Claim::of(self).inspect_err(|error| world.group().abort(&explain(error))).map_err(usage)?
            }
            None => Claim::for_logs(self.settings.output.dir.clone()),
        };
        let run = rank::texts(world.group(), &claim.run).context("naming the run")?.swap_remove(0);
        let out = claim.dir.clone();
        let world_text = match role {
            Role::LaunchedRank => format!("{} ranks, started by Brigade", info.world_size),
            _ => detected.to_string(),
        };
        let mut session = Processor::open(self.settings, info)
            .and_then(|processor| {
                let session =
                    Session::new(self, processor, world.group().clone(), plan, out, world_text, interrupt);
                session.context("connecting the mesh")
            })
            .inspect_err(|error| world.group().abort(&explain(error)))?;
        session.restart = brigade_launch::restart_count()?;
        session.beginning = beginning(self, session.restart);
        session.run = run;
        let flight = session.out.join(FLIGHT_FOLDER).join(format!("rank-{}.json", info.rank));
        // Work that a body does by itself may be lost; `train` knows better.
        session.begins();
        // A panic of Burn must not leave the other ranks waiting.
        let result = catch_unwind(AssertUnwindSafe(|| body(&mut session, prepared)));
        if is_unexplained(&result) {
            // What failed is what must be heard of, not that it could not be recorded, too.
            drop(write_flight(world.group(), &flight));
        }
        let result = end(world.group(), result);
        // What is under way is not waited for after a failure, so the others had to hear of that first.
        drop(session);
        match result {
            Ok(Ok(())) => {
                world.shutdown().context("at the end of the run")?;
                Ok(exit::DONE)
            }
            Ok(Err(error)) => {
                if is_shared(&error) {
                    // All ranks end here and for this reason; none leaves before the last one knows.
                    drop(world.shutdown());
                }
                Err(error.context(format!("rank {}", info.rank)))
            }
            Err(_) => Ok(PANICKED),
        }
    }

    /// Runs the body with a session that describes the run instead of training.
    fn dry_run<P>(
        &self,
        detected: &Detected,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
        body: impl FnOnce(&mut Session, P) -> anyhow::Result<()>,
    ) -> anyhow::Result<u8> {
        let world = match detected {
            Detected::Rank(info) if info.rank != 0 => return Ok(exit::DONE),
            Detected::Rank(info) => info.world_size,
            Detected::Node(node) => self.ranks_per_node(node).map_err(usage)?.saturating_mul(node.nnodes),
        };
        let plan = self.plan(world).map_err(usage)?;
        let prepared = prepare(Role::Launcher).map_err(usage)?;
        let group = brigade_comm::threads(1, rank::timeouts(&self.settings.comm)).pop();
        let group: Group = group.context("a group of one rank")?;
        let out = self.settings.output.dir.clone();
        let interrupt = interrupt::Interrupt::detached();
        let processor = Processor::cpu();
        let mut session = Session::new(self, processor, group, plan, out, detected.to_string(), interrupt)?;
        session.describe_only();
        if let Some(step) = claim::goes_on(self).map_err(usage)? {
            tell(format_args!("goes on from the checkpoint of step {step}"));
        }
        match body(&mut session, prepared) {
            Err(error) if error.is::<DryRun>() => Ok(exit::DONE),
            Err(error) => Err(error),
            Ok(()) => Ok(exit::DONE),
        }
    }
}

/// Lets all ranks come to the end of a good run together, and tells them of a bad one's.
fn end(group: &Group, result: Ended) -> Ended {
    match &result {
        Ok(Ok(())) => return Ok(group.barrier().context("at the end of the run")),
        Ok(Err(error)) if is_shared(error) => drop(group.barrier()),
        Ok(Err(error)) => group.abort(&explain(error)),
        Err(panic) => group.abort(&format!("panic: {}", panic_text(panic.as_ref()))),
    }
    result
}

/// How a rank's part ended: well, with an error, or with a panic.
type Ended = std::thread::Result<anyhow::Result<()>>;

/// The folder of results, in a rank that Brigade's launcher started.
pub(crate) fn launched_in() -> Option<PathBuf> {
    std::env::var_os(RUN_DIR).map(PathBuf::from)
}

fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(error).into()
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
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

/// A configuration as TOML, with comments that say what each `auto` in it stands for.
///
/// # Errors
/// If it cannot be written as TOML.
pub fn resolved<C: Serialize>(config: &C) -> anyhow::Result<String> {
    let mut text = toml::to_string(config).context("the configuration cannot be written as TOML")?;
    let table: toml::Table = text.parse().unwrap_or_default();
    let backend = table.get("compute").and_then(|section| section.get("backend")?.as_str());
    for (section, key, value) in automatic(&table) {
        text += &format!("# {section}.{key}: auto is {value} on {}\n", backend.unwrap_or_default());
    }
    Ok(text)
}
