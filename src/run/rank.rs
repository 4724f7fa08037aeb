//! A process that is a rank: it joins the world, runs the body, and ends with the others.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Context;
use brigade_comm::Group;
use brigade_launch::{Detected, RankInfo, exit, interrupt};

use super::ending::{PANICKED, is_shared, is_unexplained, panic_text, write_flight};
use super::program::{Program, Role, environment, usage};
use super::run_folder::{Claim, beginning, launched_in};
use super::session::Session;
use crate::device::{self, Processor};
use crate::error::explain;
use crate::folder::FLIGHT_FOLDER;
use crate::world::{join, same_configuration, texts};

impl Program<'_> {
    pub(super) fn rank<P>(
        &self,
        info: &RankInfo,
        detected: &Detected,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
        body: impl FnOnce(&mut Session, P) -> anyhow::Result<()>,
    ) -> anyhow::Result<u8> {
        device::prepare(self.settings.compute.backend);
        let interrupt = interrupt::install()?;
        interrupt.prepare();
        let launched = launched_in();
        let role = if launched.is_some() { Role::LaunchedRank } else { Role::JoinedRank { rank: info.rank } };
        let plan = self.plan(info.world_size).map_err(usage)?;
        let prepared = prepare(role).map_err(usage)?;
        let token = detected.token(&environment).map_err(|e| usage(e.into()))?;
        let world = join(info, token, &self.settings.comm)?;
        if let Err(error) = same_configuration(world.group(), &self.config) {
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
        let run = texts(world.group(), &claim.run).context("naming the run")?.swap_remove(0);
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
