//! A dry run: the run is described instead of trained.

use anyhow::Context;
use brigade_comm::Group;
use brigade_launch::{Detected, exit, interrupt};

use super::ending::catch_panic;
use super::program::start::Prepare;
use super::program::{Program, Role, usage};
use super::run_folder::resume_step;
use super::session::Session;
use crate::device::RankDevice;
use crate::error::{DryRun, print_stderr};
use crate::world::timeouts;

impl Program<'_> {
    /// Runs the body with a session that describes the run and stops.
    pub(super) fn dry_run(&self, detected: &Detected, prepare: Prepare<'_>) -> anyhow::Result<u8> {
        let (world, local_ranks) = match detected {
            Detected::Rank(info) if info.rank != 0 => return Ok(exit::DONE),
            Detected::Rank(info) => (info.world_size, info.local_world_size),
            Detected::Node(node) => {
                let ranks = self.ranks_per_node(node).map_err(usage)?;
                (ranks.saturating_mul(node.nnodes), ranks)
            }
        };
        let plan = self.plan(world).map_err(usage)?;
        let body = prepare(Role::Launcher).map_err(usage)?;
        let group = brigade_comm::threads(1, timeouts(&self.settings.comm)).pop();
        let group: Group = group.context("a group of one rank")?;
        let out = self.settings.output.folder().map_err(|error| usage(error.into()))?;
        let interrupt = interrupt::Interrupt::detached();
        let device = RankDevice::cpu();
        let mut session = Session::new(self, device, group, plan, out, detected.to_string(), interrupt)?;
        session.is_dry_run = true;
        session.local_ranks = Some(local_ranks);
        if let Some(step) = resume_step(self).map_err(usage)? {
            print_stderr(format_args!("would resume from the checkpoint of step {step}"));
        }
        match catch_panic(|| body(&mut session)) {
            Err(error) if error.is::<DryRun>() => Ok(exit::DONE),
            Err(error) => Err(error),
            Ok(()) => Ok(exit::DONE),
        }
    }
}
