//! The process that stands for a node: it checks, prepares, starts the ranks, and watches over them.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use brigade_launch::{Detected, Launch, NodeInfo, Outcome, Source};

use super::ending::{announce, said_why};
use super::program::{Program, Role, environment, usage};
use super::run_folder::{Claim, RUN_DIR, RUN_ID};
use crate::device;
use crate::error::tell;
use crate::folder::{self, FLIGHT_FOLDER};
use crate::settings::Settings;
use crate::world::timeouts;

/// How much longer than an operation's deadline a rank may be stopped: ranks that wait for it come first, as they also know
/// in which operation.
const VERDICT: Duration = Duration::from_secs(3);

impl Program<'_> {
    pub(super) fn launch<P>(
        &self,
        node: &NodeInfo,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
    ) -> anyhow::Result<u8> {
        self.settings.check_backend().map_err(|error| usage(error.into()))?;
        let nproc = self.ranks_per_node(node).map_err(usage)?;
        let by_itself = matches!(node.source, Source::Alone | Source::Flags) && node.overridden.is_none();
        if !by_itself && !self.flags.quiet {
            tell(Detected::Node(node.clone()));
        }
        let prepared = || {
            let token = Detected::Node(node.clone()).token(&environment)?;
            self.plan(nproc.saturating_mul(node.nnodes))?;
            device::check(self.settings, nproc, nproc * node.nnodes)?;
            prepare(Role::Launcher)?;
            let Settings { output, .. } = self.settings;
            // Node 0 holds rank 0, which writes the results; the other nodes keep only their logs.
            let claim = match node.node_rank {
                0 => Claim::of(self)?,
                _ => Claim::for_logs(folder::folder(&output.dir, self.name)?),
            };
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            Ok((token, claim, program))
        };
        let (token, claim, program) = prepared().map_err(usage)?;
        let dir = claim.dir.clone();
        let mut launch = Launch::local(program, nproc, token, dir.join("logs"))
            .on_node(node)
            .with_flags(&self.flags.world);
        let timeouts = timeouts(&self.settings.comm);
        (launch.init_timeout, launch.host_timeout) = (timeouts.init, timeouts.host);
        launch.stopped_timeout = timeouts.step + VERDICT;
        launch.holds_signals = true;
        launch.args = std::env::args_os().skip(1).collect();
        launch.env =
            vec![(RUN_DIR.into(), OsString::from(&dir)), (RUN_ID.into(), OsString::from(&claim.run))];
        launch.env.extend(device::environment(self.settings.compute.backend));
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
}
