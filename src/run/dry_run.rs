//! A dry run: it describes the run instead of training.

use anyhow::Context;
use brigade_comm::Group;
use brigade_launch::{Detected, exit, interrupt};

use super::program::{Program, Role, usage};
use super::run_folder::goes_on;
use super::session::Session;
use crate::device::Processor;
use crate::error::{DryRun, tell};
use crate::world::timeouts;

impl Program<'_> {
    /// Runs the body with a session that describes the run instead of training.
    pub(super) fn dry_run<P>(
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
        let group = brigade_comm::threads(1, timeouts(&self.settings.comm)).pop();
        let group: Group = group.context("a group of one rank")?;
        let out = self.settings.output.dir.clone();
        let interrupt = interrupt::Interrupt::detached();
        let processor = Processor::cpu();
        let mut session = Session::new(self, processor, group, plan, out, detected.to_string(), interrupt)?;
        session.describe_only();
        if let Some(step) = goes_on(self).map_err(usage)? {
            tell(format_args!("goes on from the checkpoint of step {step}"));
        }
        match body(&mut session, prepared) {
            Err(error) if error.is::<DryRun>() => Ok(exit::DONE),
            Err(error) => Err(error),
            Ok(()) => Ok(exit::DONE),
        }
    }
}
