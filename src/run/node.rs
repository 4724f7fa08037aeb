//! The launcher of a node: it checks the settings, prepares the data, starts the ranks and supervises them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use brigade_launch::{Detected, Event, LaunchConfig, LineFormat, NodeInfo, Outcome, Source, exit, interrupt};
use brigade_report::{LogFormat, RunEvent, add_to_history, json_line, log_format, message_of};

use super::elastic::{ElasticRun, NodeChanges};
use super::ending::exhaustion::ExhaustionWatch;
use super::ending::notify::{Ending, check_notify, notify, reason};
use super::ending::{is_mistake, print_event, printed_its_error, report};
use super::program::start::Prepare;
use super::program::{Program, Role, environment, usage};
use super::run_folder::{RUN_CHOICE, RUN_ID, RunFolder};
use crate::device;
use crate::error::{format_error, print_stderr};
use crate::folder::{FLIGHT_FOLDER, LOGS_FOLDER};
use crate::launched::RUN_DIR;
use crate::settings::Settings;
use crate::world::timeouts;

/// How much longer than an operation's deadline a rank may be stopped before the launcher reports it. Ranks that wait for it
/// report first, because they also know in which operation.
const STOPPED_GRACE: Duration = Duration::from_secs(3);

impl Program<'_> {
    /// Starts this node's ranks and waits for them.
    pub(super) fn launch_ranks(&self, node: &NodeInfo, prepare: Prepare<'_>) -> anyhow::Result<u8> {
        brigade_launch::check_nnodes(node.nnodes)?;
        self.settings.check_backend().map_err(|error| usage(error.into()))?;
        let nproc = self.ranks_per_node(node).map_err(usage)?;
        let is_default =
            matches!(node.source, Source::Standalone | Source::Flags) && node.overridden.is_none();
        if !is_default && !self.flags.quiet {
            print_stderr(Detected::Node(node.clone()));
        }
        let args: Vec<OsString> = match self.chosen {
            Some(chosen) => chosen.args.clone(),
            None => std::env::args_os().skip(1).collect(),
        };
        let is_elastic = node.min_nodes < node.nnodes;
        let elastic = is_elastic.then(|| ElasticRun::new(self, node, nproc, &args)).transpose()?;
        let began = brigade_report::now();
        let prepared = || {
            match &elastic {
                Some(elastic) => elastic.check()?,
                None => drop(self.plan(nproc.saturating_mul(node.nnodes))?),
            }
            let token = match self.settings.strategy.has_separate_launches() {
                true => brigade_launch::workers::token(&environment)?,
                false => Detected::Node(node.clone()).token(&environment)?,
            };
            device::check_node(self.settings, nproc, nproc * node.nnodes)?;
            if node.node_rank == 0 {
                check_notify(&self.settings.output.notify)?;
                RunFolder::look(self)?;
                // An earlier launcher may still have the endpoint of a run that resumes.
                if let Some(endpoint) = node.endpoint.as_ref().filter(|_| self.flags.resume.is_none()) {
                    brigade_launch::check_endpoint(endpoint, node.nnodes)?;
                }
            }
            // What it captured, a temporary folder for example, lives as long as the ranks.
            let body = prepare(Role::Launcher)?;
            let Settings { output, .. } = self.settings;
            // Node 0 has rank 0, which writes the results; the other nodes only have logs.
            let folder = match node.node_rank {
                0 => RunFolder::lock(self, &output.notify)?,
                _ => RunFolder::of_node(self)?,
            };
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            Ok((token, folder, program, body))
        };
        let place = |dir: PathBuf| self.settings.output.url().map_or(dir, Into::into);
        let (token, mut folder, program, _body) = match prepared().map_err(usage) {
            Err(error) if node.node_rank == 0 && !is_mistake(&error) => {
                let code = report(&error);
                let ending = Ending::failed(&format_error(&error), code);
                notify(&self.settings.output.notify, &place(self.settings.output.dir.clone()), &ending);
                return Ok(code);
            }
            prepared => prepared?,
        };
        let dir = folder.dir.clone();
        let place = place(dir.clone());
        let timeouts = timeouts(&self.settings.comm);
        let mut launch = LaunchConfig::local(program, nproc, token, dir.join(LOGS_FOLDER)).on_node(node);
        (launch.init_timeout, launch.host_timeout) = (timeouts.init, timeouts.host);
        // A rank may be as long without a word where it waits for others, or runs a hook that they wait for.
        let silence = timeouts.init.max(timeouts.step) + STOPPED_GRACE;
        launch.heartbeat_timeout = launch.heartbeat_timeout.map(|usual| usual.max(silence));
        launch = launch.with_flags(&self.flags.world);
        launch.stopped_timeout = timeouts.step + STOPPED_GRACE;
        (launch.blocks_signals, launch.streams) = (true, self.streams);
        launch.format = (log_format() == LogFormat::Json)
            .then_some(LineFormat { write: |rank, line| json_line(Some(rank), line), read: message_of });
        (launch.args, launch.keeps_logs) = (args, self.flags.resume.is_some());
        launch.env =
            vec![(RUN_DIR.into(), OsString::from(&dir)), (RUN_ID.into(), OsString::from(&folder.run))];
        if let Some(elastic) = elastic {
            elastic.configure(&mut launch);
        } else if let Some(chosen) = self.chosen {
            launch.env.push((RUN_CHOICE.into(), serde_json::to_string_pretty(&chosen.record)?.into()));
        }
        launch.env.extend(device::rank_environment(self.settings.compute.backend));
        // A run that cannot write its history ends as it would have.
        let mut recorded_before = last_flight_record(&dir);
        let note = |event| drop(add_to_history(&dir, began, event));
        let mut exhaustion = ExhaustionWatch::of_node(&dir);
        let mut changes = NodeChanges::default();
        folder.lost.set_has_ranks(true);
        let launched = brigade_launch::launch(&launch, &mut |event| {
            if node.node_rank == 0 {
                changes.of(&event).into_iter().for_each(note);
            }
            let restarted = match &event {
                Event::Restarting { number, failure, .. } => {
                    recorded_before = last_flight_record(&dir);
                    let reason = reason(failure);
                    note(RunEvent::Restarting { restart: *number, reason });
                    Some(failure.clone())
                }
                _ => None,
            };
            print_event(event);
            restarted.iter().for_each(|failure| exhaustion.explain(failure, node.node_rank));
        });
        folder.lost.set_has_ranks(false);
        let lost = Arc::clone(&folder.lost);
        if let Some(reason) = lost.reason() {
            folder.release("failed");
            lost.tell(reason);
            return Ok(exit::FAILED);
        }
        let outcome = match launched {
            Ok(outcome) => outcome,
            Err(error) => {
                let ending = Ending::failed(&error.to_string(), error.exit_code());
                if node.node_rank == 0 {
                    note(RunEvent::Failed { reason: ending.reason.clone() });
                }
                folder.release(ending.event);
                if node.node_rank == 0 {
                    notify(&self.settings.output.notify, &place, &ending);
                }
                return Err(error.into());
            }
        };
        match &outcome {
            // Rank 0 wrote it down.
            Outcome::Done => {}
            // It did so here, too, if it was ready for a step; another node may only have left.
            Outcome::Preempted { .. } if node.node_rank == 0 => note(RunEvent::Preempted),
            Outcome::Preempted { .. } => {}
            Outcome::Interrupted { signal, .. } => note(RunEvent::Interrupted { signal: signal.clone() }),
            Outcome::NodeLost(lost) if lost.start_again => note(RunEvent::Preempted),
            other => note(RunEvent::Failed { reason: reason(other) }),
        }
        let (mut ending, mut code) = (Ending::of(&outcome), outcome.exit_code());
        if folder.has_copies() {
            // The node may be told to end because others have, and its disk may go with it.
            drop(interrupt::exit_on_second_signal());
        }
        if let Err(error) = folder.finish_copies() {
            let error = format_error(&error);
            print_stderr(format_args!("brigade: {error}"));
            // A run whose results are not where they were to be has failed; logs of a node alone are no reason.
            if code == exit::DONE && node.node_rank == 0 {
                ending = Ending::failed(&error, exit::FAILED);
                code = exit::FAILED;
            }
        }
        folder.release(ending.event);
        match &outcome {
            Outcome::Done | Outcome::Preempted { .. } => {}
            Outcome::Failed(failure)
                if node.node_rank == 0
                    && failure.root_cause.rank == 0
                    && failure.panic.is_empty()
                    && printed_its_error(failure) => {}
            other => print_stderr(format_args!("brigade: {other}")),
        }
        exhaustion.explain(&outcome, node.node_rank);
        if node.node_rank == 0 {
            notify(&self.settings.output.notify, &place, &ending);
        }
        if matches!(outcome, Outcome::Failed(_)) && last_flight_record(&dir) != recorded_before {
            print_stderr(format_args!(
                "for what each rank did last: brigade inspect flight {}",
                dir.display()
            ));
        }
        Ok(code)
    }
}

/// When a rank last wrote what it had done; a run that fails before its first step leaves the records of an earlier start.
fn last_flight_record(dir: &Path) -> Option<SystemTime> {
    let files = std::fs::read_dir(dir.join(FLIGHT_FOLDER)).ok()?;
    files.filter_map(|file| file.ok()?.metadata().ok()?.modified().ok()).max()
}
