//! One run: started, killed and started again until it finishes.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Setup;
use super::count::Counts;
use super::kill::{Killed, kill_as_planned};
use super::plan::{KillPlan, Victim};
use crate::chaos::choices::Choices;
use crate::chaos::process::{Ended, RunningCommand, ranks, wait_until_gone};
use crate::chaos::run::{KEEP, Mesh, RunDir, STEPS, settings};

/// In every fourth run the launcher restarts killed ranks, and is not killed itself.
const SUPERVISED: u32 = 4;
/// The most kills of one run, which must finish in the end.
const MAX_KILLS: u64 = 7;

/// The name of a run, for its folder.
pub fn name(number: u32) -> String {
    format!("run-{number}")
}

/// A run and the kills that are planned for it.
pub struct Run<'a> {
    setup: &'a Setup,
    name: String,
    folder: RunDir,
    choices: Choices,
    supervised: bool,
    /// Kills that are still to be made.
    kills: u64,
    /// After this many kills in all runs no more are made.
    enough: u32,
    mesh: Mesh,
}

impl<'a> Run<'a> {
    pub fn new(setup: &'a Setup, number: u32, enough: u32) -> Self {
        let mut choices = Choices::new(setup.seed, number);
        let kills = 2 + choices.below(MAX_KILLS - 1);
        let mesh = setup.meshes[number as usize % setup.meshes.len()];
        let name = name(number);
        let folder = RunDir(setup.folder.join(&name));
        Self {
            setup,
            name,
            folder,
            choices,
            supervised: number % SUPERVISED == SUPERVISED - 1,
            kills,
            enough,
            mesh,
        }
    }

    /// Kills the run as often as chosen, lets it finish, and compares it with the reference.
    pub fn complete(mut self, counts: &mut Counts) -> Result<()> {
        while !self.start(counts)? {}
        self.setup.reference.compare(&self.folder)?;
        self.verify(counts)?;
        counts.runs += 1;
        Ok(())
    }

    /// Starts or resumes the run and kills some of its processes. Whether it has finished.
    fn start(&mut self, counts: &mut Counts) -> Result<bool> {
        let line = self.line(counts)?;
        let mut command = RunningCommand::start(&self.setup.brigade, &self.setup.folder, &line)?;
        let mut last = None;
        while self.kills > 0 && counts.kills() < self.enough {
            let plan = KillPlan::choose(&mut self.choices, self.supervised);
            let Some(killed) =
                self.kill(plan, &mut command, counts).with_context(|| describe(&line, &plan))?
            else {
                break;
            };
            let restarted = self.supervised && wait_for_restart(&mut command, &killed)?;
            last = Some((plan, killed));
            if !restarted {
                break;
            }
            counts.restarts += 1;
        }
        let end = command.finish()?;
        match last {
            None => {
                ensure!(
                    end.status.success(),
                    "`brigade {line}`, which was not killed, ended with {}:\n{}",
                    end.status,
                    end.text
                );
                Ok(true)
            }
            Some((plan, killed)) => self.check_after_kill(plan, &killed, &end, counts).with_context(|| {
                format!("{}, during {:?}; its output:\n{}", describe(&line, &plan), killed.during, end.text)
            }),
        }
    }

    fn kill(
        &mut self,
        plan: KillPlan,
        command: &mut RunningCommand,
        counts: &mut Counts,
    ) -> Result<Option<Killed>> {
        let before = self.folder.before();
        let killed = kill_as_planned(plan, command, &self.folder, &before, &mut self.choices)?;
        if let Some(killed) = &killed {
            self.kills -= 1;
            counts.killed(plan.victim, killed.during);
        }
        Ok(killed)
    }

    /// The command that starts or resumes the run: mostly on another mesh, but with the same configuration as long as it has
    /// no checkpoint.
    fn line(&mut self, counts: &mut Counts) -> Result<String> {
        let name = &self.name;
        let saved = self.folder.names().newest().is_some();
        if saved {
            counts.resumes += 1;
            self.mesh = self.choices.one(&self.setup.meshes).context("there is no mesh")?;
        }
        counts.starts += 1;
        let flags = self.mesh.flags;
        let restarts = if self.supervised { format!("--max-restarts {MAX_KILLS}") } else { String::new() };
        Ok(match saved && self.choices.below(2) == 0 {
            true => format!("train --resume {name} {flags} {restarts}"),
            false => format!("train {} {flags} {restarts} --resume auto --out {name}", settings(STEPS, KEEP)),
        })
    }

    /// Checks that nothing was lost. Whether the run has finished in spite of the kill.
    fn check_after_kill(
        &self,
        plan: KillPlan,
        killed: &Killed,
        end: &Ended,
        counts: &mut Counts,
    ) -> Result<bool> {
        // If the launcher restarts ranks, only its own end counts.
        wait_until_gone(&self.setup.folder, if self.supervised { Instant::now() } else { killed.at })?;
        let newest = self.folder.names().newest();
        ensure!(
            newest >= killed.newest,
            "the checkpoint of step {:?} is lost, the newest is {newest:?}",
            killed.newest
        );
        if newest.is_some() {
            self.verify(counts)?;
        }
        match (plan.victim, end.status.code(), end.status.signal()) {
            (_, Some(0), _) => Ok(true),
            (Victim::Rank, Some(1), _) if !self.supervised => Ok(false),
            (Victim::Launcher | Victim::Both, _, Some(9)) => Ok(false),
            _ => bail!("it ended with {}", end.status),
        }
    }

    /// Lets the command read every byte of all checkpoints.
    fn verify(&self, counts: &mut Counts) -> Result<()> {
        let line = format!("checkpoint verify {}", self.name);
        let end = RunningCommand::start(&self.setup.brigade, &self.setup.folder, &line)?.finish()?;
        ensure!(end.status.success(), "`brigade {line}` ended with {}:\n{}", end.status, end.text);
        counts.verified += end.text.lines().filter(|line| line.ends_with("whole")).count();
        Ok(())
    }
}

/// Waits until the launcher has restarted all ranks, or has ended.
fn wait_for_restart(command: &mut RunningCommand, killed: &Killed) -> Result<bool> {
    while command.ended()?.is_none() {
        let now = ranks(command.pid());
        if now.len() >= killed.ranks.len() && !now.iter().any(|rank| killed.ranks.contains(rank)) {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(false)
}

fn describe(line: &str, plan: &KillPlan) -> String {
    format!(
        "`brigade {line}`, killed {:?} {} µs after {:?}",
        plan.victim,
        plan.delay.as_micros(),
        plan.moment
    )
}
