//! One run: started, killed and started again until it has finished.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Chaos;
use super::count::Counts;
use super::draw::{Draw, Plan, Victim};
use super::folder::Folder;
use super::kill::{Killed, carry_out};
use super::mesh::Mesh;
use super::processes::{all_gone, ranks};
use super::reference::{KEEP, STEPS, settings};
use super::start::{End, Start};

/// Every so many runs the launcher is to start killed ranks again, and is not killed itself.
const SUPERVISED: u32 = 4;
/// The most kills of one run, which must finish at last.
const MOST: u64 = 7;

/// The name of a run, for its folder.
pub fn name(number: u32) -> String {
    format!("run-{number}")
}

/// A run and what is to happen to it.
pub struct Run<'a> {
    chaos: &'a Chaos,
    name: String,
    folder: Folder,
    draw: Draw,
    supervised: bool,
    /// Kills that are left.
    kills: u64,
    /// Kills of all runs that are enough.
    enough: u32,
    mesh: Mesh,
}

impl<'a> Run<'a> {
    pub fn new(chaos: &'a Chaos, number: u32, enough: u32) -> Self {
        let mut draw = Draw::new(chaos.seed, number);
        let kills = 2 + draw.below(MOST - 1);
        let mesh = chaos.meshes[number as usize % chaos.meshes.len()];
        let name = name(number);
        let folder = Folder(chaos.folder.join(&name));
        Self {
            chaos,
            name,
            folder,
            draw,
            supervised: number % SUPERVISED == SUPERVISED - 1,
            kills,
            enough,
            mesh,
        }
    }

    /// Kills the run as often as was drawn, lets it finish, and compares it with the one that was never killed.
    pub fn complete(mut self, counts: &mut Counts) -> Result<()> {
        while !self.start(counts)? {}
        self.chaos.reference.compare(&self.folder)?;
        self.verify(counts)?;
        counts.runs += 1;
        Ok(())
    }

    /// Starts the run, and kills some of it. Whether it has finished.
    fn start(&mut self, counts: &mut Counts) -> Result<bool> {
        let line = self.line(counts)?;
        let mut start = Start::new(&self.chaos.brigade, &self.chaos.folder, &line)?;
        let mut last = None;
        while self.kills > 0 && counts.kills() < self.enough {
            let plan = self.draw.kill(self.supervised);
            let Some(killed) = self.kill(plan, &mut start, counts).with_context(|| describe(&line, &plan))?
            else {
                break;
            };
            let again = self.supervised && started_again(&mut start, &killed)?;
            last = Some((plan, killed));
            if !again {
                break;
            }
            counts.restarts += 1;
        }
        let end = start.finish()?;
        match last {
            None => {
                ensure!(
                    end.status.success(),
                    "`brigade {line}`, which nobody killed, ended with {}:\n{}",
                    end.status,
                    end.text
                );
                Ok(true)
            }
            Some((plan, killed)) => self.judge(plan, &killed, &end, counts).with_context(|| {
                format!("{}, while {:?}; it said:\n{}", describe(&line, &plan), killed.during, end.text)
            }),
        }
    }

    fn kill(&mut self, plan: Plan, start: &mut Start, counts: &mut Counts) -> Result<Option<Killed>> {
        let before = self.folder.before();
        let killed = carry_out(plan, start, &self.folder, &before, &mut self.draw)?;
        if let Some(killed) = &killed {
            self.kills -= 1;
            counts.killed(plan.victim, killed.during);
        }
        Ok(killed)
    }

    /// The command that starts the run or goes on with it: mostly on another mesh, but only with its own configuration
    /// as long as it has no checkpoint.
    fn line(&mut self, counts: &mut Counts) -> Result<String> {
        let name = &self.name;
        let saved = self.folder.names().newest().is_some();
        if saved {
            counts.resumes += 1;
            self.mesh = self.draw.one(&self.chaos.meshes).context("there is no mesh")?;
        }
        counts.starts += 1;
        let flags = self.mesh.flags;
        let restarts = if self.supervised { format!("--max-restarts {MOST}") } else { String::new() };
        Ok(match saved && self.draw.below(2) == 0 {
            true => format!("train --resume {name} {flags} {restarts}"),
            false => format!("train {} {flags} {restarts} --resume auto --out {name}", settings(STEPS, KEEP)),
        })
    }

    /// Whether a run that was killed has finished nevertheless; that it left everything in order.
    fn judge(&self, plan: Plan, killed: &Killed, end: &End, counts: &mut Counts) -> Result<bool> {
        // Where the launcher is to go on, only its own end counts.
        all_gone(&self.chaos.folder, if self.supervised { Instant::now() } else { killed.at })?;
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

    /// Has the command read every byte of all checkpoints.
    fn verify(&self, counts: &mut Counts) -> Result<()> {
        let line = format!("checkpoint verify {}", self.name);
        let end = Start::new(&self.chaos.brigade, &self.chaos.folder, &line)?.finish()?;
        ensure!(end.status.success(), "`brigade {line}` ended with {}:\n{}", end.status, end.text);
        counts.verified += end.text.lines().filter(|line| line.ends_with("whole")).count();
        Ok(())
    }
}

/// Waits until the launcher has started all ranks again, or is over.
fn started_again(start: &mut Start, killed: &Killed) -> Result<bool> {
    while start.ended()?.is_none() {
        let now = ranks(start.pid());
        if now.len() >= killed.ranks.len() && !now.iter().any(|rank| killed.ranks.contains(rank)) {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(false)
}

fn describe(line: &str, plan: &Plan) -> String {
    format!("`brigade {line}`, killed {:?} {} µs after {:?}", plan.victim, plan.delay.as_micros(), plan.aim)
}
