//! A process that is a rank: it joins the world, runs the program's body, and ends together with the other ranks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use brigade_comm::{Group, World};
use brigade_launch::{Detected, RankInfo, exit, interrupt};
use brigade_report::{add_to_history, counted, now, set_log_rank};

use super::ending::exhaustion::ExhaustionWatch;
use super::ending::notify::{Ending, check_notify, notify};
use super::ending::{
    PANIC_EXIT_CODE, is_mistake, is_of_another_rank, is_on_all_ranks, needs_flight_record, panic_text,
    rank_failed, report, write_flight,
};
use super::program::start::Prepare;
use super::program::{Program, Role, usage};
use super::run_folder::{RunFolder, start_from};
use super::session::Session;
use crate::device::{self, RankDevice};
use crate::error::{Preempted, format_error, print_stderr};
use crate::folder::FLIGHT_FOLDER;
use crate::launched::launcher_folder;
use crate::world::{HostEngine, all_gather_text, check_same_configuration, join, timeouts};

impl Program<'_> {
    /// Joins the world and runs `body` as one of its ranks. Rank 0 without a launcher of Brigade's writes down how the run ended, and tells the command of
    /// `output.notify`.
    pub(super) fn run_rank(
        &self,
        info: &RankInfo,
        detected: &Detected,
        prepare: Prepare<'_>,
    ) -> anyhow::Result<u8> {
        let output = &self.settings.output;
        let (began, mut folder) = (now(), None);
        let result = self.as_rank(info, detected, prepare, &mut folder);
        let result = result.or_else(|error| rank_failed(info.rank, error));
        let ending = Ending::of_rank(&result);
        let tells = info.rank == 0 && launcher_folder().is_none();
        let dir = folder.as_ref().map_or_else(|| output.dir.clone(), |folder| folder.dir.clone());
        if let Some(folder) = folder {
            if let Some(event) = ending.record().filter(|_| tells) {
                // A run that cannot write its history ends as it would have.
                drop(add_to_history(&dir, began, event));
            }
            folder.release(ending.event);
        }
        if !tells || result.as_ref().is_err_and(is_mistake) {
            return result;
        }
        // What started the ranks may end this one while the command runs.
        let code = result.unwrap_or_else(|error| report(&error));
        let place: PathBuf = output.url().map_or(dir, Into::into);
        notify(&output.notify, &place, &ending);
        Ok(code)
    }

    /// The same but for the end, for which it leaves the folder of the run.
    fn as_rank(
        &self,
        info: &RankInfo,
        detected: &Detected,
        prepare: Prepare<'_>,
        folder: &mut Option<RunFolder>,
    ) -> anyhow::Result<u8> {
        set_log_rank(info.rank);
        device::prepare_process(self.settings.compute.backend);
        let interrupt = interrupt::install()?;
        interrupt.mark_preparing();
        let received = interrupt.clone();
        let launched = launcher_folder();
        let role = if launched.is_some() { Role::LaunchedRank } else { Role::JoinedRank { rank: info.rank } };
        let limit = timeouts(&self.settings.comm).step;
        let plan = self.plan(info.world_size).map_err(usage)?;
        HostEngine::check_token(&self.settings.comm, detected).map_err(usage)?;
        if launched.is_none() && info.rank == 0 && !self.flags.quiet {
            print_stderr(detected);
        }
        let body = prepare(role).map_err(usage)?;
        let engine = HostEngine::open(&self.settings.comm, info).map_err(usage)?;
        let rendezvous = engine.rendezvous(info, detected).map_err(usage)?;
        let token = rendezvous.token.clone();
        let world = join(info, rendezvous, &self.settings.comm).map_err(|error| match launched {
            None if is_alone(&error) => error.context(format!("{detected} ({STANDALONE})")),
            _ => error,
        })?;
        if let Err(error) = check_same_configuration(world.group(), &self.config) {
            // Not a mistake found here: another rank failed meanwhile, for a reason of its own.
            if error.is::<brigade_comm::Error>() {
                return Err(error);
            }
            // All ranks know of it, and none exits before the last one does.
            leave(world, &engine, limit);
            return Err(usage(error));
        }
        // Rank 0 may wait for a lease.
        world.group().use_init_timeout();
        let folder = folder.insert(match launched {
            Some(dir) => RunFolder::from_launcher(dir),
            None if info.rank == 0 => check_notify(&self.settings.output.notify)
                .map_err(anyhow::Error::from)
                .and_then(|()| RunFolder::lock(self, &self.settings.output.notify))
                .inspect_err(|error| world.group().abort(&format_error(error)))
                .map_err(usage)?,
            None if info.local_rank == 0 && self.settings.output.url().is_some() => RunFolder::of_node(self)
                .inspect_err(|error| world.group().abort(&format_error(error)))
                .map_err(usage)?,
            None => RunFolder::for_logs(self.settings.output.folder().map_err(|error| usage(error.into()))?),
        });
        let run = all_gather_text(world.group(), &folder.run).context("sharing the run's id")?.swap_remove(0);
        world.group().use_step_timeout();
        let out = folder.dir.clone();
        let world_text = match role {
            Role::LaunchedRank => format!("{}, started by Brigade", counted(info.world_size, "rank")),
            _ => detected.to_string(),
        };
        let mut session = RankDevice::open(self.settings, info, engine.clone())
            .and_then(|device| {
                let table = &self.settings.comm.table;
                let group = match table.is_empty() {
                    true => world.group().clone(),
                    false => world.group().with_table(table).context("connecting the mesh")?,
                };
                let session = Session::new(self, device, group, plan, out.clone(), world_text, interrupt);
                session.context("connecting the mesh")
            })
            .inspect_err(|error| world.group().abort(&format_error(error)))?;
        session.local_ranks = Some(info.local_world_size);
        session.local_rank = info.local_rank;
        session.restart = brigade_launch::restart_count()?;
        session.start_from = start_from(self, session.restart);
        session.run = run;
        session.token = token;
        let flight = session.out.join(FLIGHT_FOLDER).join(format!("rank-{}.json", info.rank));
        // What the body draws while it makes a model is the same on all ranks, and in each run.
        session.device().seed(session.seed());
        // From here on a signal may lose work of the body; `train` narrows this down.
        session.mark_started();
        let joined = matches!(role, Role::JoinedRank { .. });
        let mut exhaustion = joined.then(|| ExhaustionWatch::of_rank(&out, info.rank));
        // A panic in Burn must not leave the other ranks waiting.
        let result = catch_unwind(AssertUnwindSafe(|| body(&mut session)));
        if needs_flight_record(&result) {
            // The failure itself is reported, not that its record could not be written.
            drop(write_flight(world.group(), &flight));
        }
        let result = finish_together(world.group(), result);
        if let Some(exhaustion) = exhaustion.as_mut().filter(|_| needs_flight_record(&result)) {
            // One of the first two is left to say that another rank was killed.
            exhaustion.explain_failure(info.rank, own_failure(&result).as_deref(), info.local_rank < 2);
        }
        // After a failure the session does not wait for pending operations, so the other ranks had to be told first.
        drop(session);
        if matches!(&result, Ok(Err(error)) if error.is::<Preempted>()) {
            // It is saved: what is still to be copied is no reason to end as a failure.
            received.mark_preparing();
        }
        match result {
            Ok(Ok(())) => {
                let closed = world.shutdown().map_err(Into::into).and_then(|()| engine.close(limit));
                // The others do not wait for copies.
                let copied = folder.finish_copies();
                match (closed.context("at the end of the run"), copied) {
                    (Ok(()), copied) => copied.map(|()| exit::DONE),
                    (Err(error), Ok(())) => Err(error),
                    (Err(error), Err(other)) => Err(error.context(format_error(&other))),
                }
            }
            Ok(Err(error)) => {
                if is_on_all_ranks(&error) {
                    // All ranks end here for the same reason, and none exits before the last one knows.
                    leave(world, &engine, limit);
                }
                Err(error.context(format!("rank {}", info.rank)))
            }
            Err(panic) => {
                report(&anyhow::anyhow!("rank {}: panic: {}", info.rank, panic_text(panic.as_ref())));
                Ok(PANIC_EXIT_CODE)
            }
        }
    }
}

/// What to do where nobody starts the other ranks.
const STANDALONE: &str = "--standalone is a world on this machine alone";

/// Whether a rank found not all of its world.
fn is_alone(error: &anyhow::Error) -> bool {
    use brigade_comm::Error::{Missing, Unreachable};
    matches!(error.downcast_ref(), Some(Missing { .. } | Unreachable { .. }))
}

/// Leaves the world together with all others, where the run has failed on all of them: that is what is reported.
fn leave(world: World, engine: &HostEngine, limit: Duration) {
    if world.shutdown().is_ok() {
        drop(engine.close(limit));
    }
}

/// Waits for the other ranks at the end of a good run, which may still work on what was trained; after a failure, aborts them.
fn finish_together(group: &Group, result: Ended) -> Ended {
    group.use_init_timeout();
    match &result {
        Ok(Ok(())) => return Ok(group.barrier().context("at the end of the run")),
        Ok(Err(error)) if is_on_all_ranks(error) => drop(group.barrier()),
        Ok(Err(error)) => group.abort(&format_error(error)),
        Err(panic) => group.abort(&format!("panic: {}", panic_text(panic.as_ref()))),
    }
    result
}

/// The text of a failure that was not that of another rank.
fn own_failure(result: &Ended) -> Option<String> {
    match result {
        Ok(Ok(())) => None,
        Ok(Err(error)) => (!is_of_another_rank(error)).then(|| format_error(error)),
        Err(panic) => Some(panic_text(panic.as_ref())),
    }
}

/// How the body ended: well, with an error, or with a panic.
type Ended = std::thread::Result<anyhow::Result<()>>;
