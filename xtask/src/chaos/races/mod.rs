//! Commands that race for one folder.
//!
//! A round starts two or four commands in one folder within 300 ms, and sometimes kills one of them. Afterwards each command's
//! exit code must agree with the state of the folder, no checkpoint and no finished run may be lost, every checkpoint must be
//! whole, and every file of weights must be that of a step. A folder is used until its run has finished, and for some rounds
//! after that.

mod check;
mod command;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::choices::Choices;
use super::process::{Ended, RunningCommand, kill, ranks, wait_until_gone};
use super::run::mesh::{self, Mesh};
use super::run::{EVERY, KEEP, RACE_STEPS, REFERENCE, Reference, RunDir, remove, settings};
use command::UserCommand;
use state::State;

/// The folder that all commands of a round share.
const RUN: &str = "run";
/// The longest time between the first and the last start of a round, in microseconds.
const APART: u64 = 300_000;
/// The longest time after the last start until one is killed, in microseconds.
const KILL_AFTER: u64 = 200_000;
/// Most rounds in the folder of a finished run.
const AFTER_END: u64 = 4;

/// Counts over all rounds. `Display` gives a table.
#[derive(Default)]
pub struct Counts {
    commands: BTreeMap<(&'static str, String), u32>,
    rounds: u32,
    kills: u32,
    finished: u32,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((name, end), count) in &self.commands {
            writeln!(f, "{name:<24}{end:<10}{count:>8}")?;
        }
        writeln!(f, "rounds            {}, {} with a kill", self.rounds, self.kills)?;
        writeln!(f, "finished          {} runs, all with the same bytes", self.finished)
    }
}

/// A command that was started, and how it ended.
struct Outcome {
    command: UserCommand,
    killed: bool,
    end: Ended,
}

/// What all rounds have in common.
struct Races<'a> {
    brigade: &'a Path,
    folder: &'a Path,
    reference: Reference,
    /// The bytes of weights after each step that is saved.
    steps: BTreeMap<u64, Vec<u8>>,
    meshes: Vec<Mesh>,
}

/// Runs this number of rounds.
pub fn run(brigade: &Path, folder: &Path, seed: u64, rounds: u32) -> Result<Counts> {
    let reference = Reference::train(brigade, folder, RACE_STEPS)?;
    let mut races = Races { brigade, folder, reference, steps: BTreeMap::new(), meshes: mesh::up_to(2) };
    for step in (EVERY..=RACE_STEPS).step_by(EVERY as usize) {
        let file = format!("step-{step}");
        races.expect_success(&format!("checkpoint consolidate {REFERENCE} --step {step} --to {file}"))?;
        races.steps.insert(step, std::fs::read(folder.join(file))?);
    }
    let mut counts = Counts::default();
    let mut after_end = 0;
    for number in 0..rounds {
        let mut choices = Choices::new(seed, number);
        let is_finished = races.round(&mut choices, &mut counts).with_context(|| {
            format!("round {number}; to repeat it: cargo xtask chaos --seed {seed} --races {}", number + 1)
        })?;
        counts.rounds += 1;
        after_end += u64::from(is_finished);
        if after_end > choices.below(AFTER_END) {
            races.end(&mut counts).with_context(|| format!("after round {number}"))?;
            after_end = 0;
        }
        if number % 20 == 19 {
            eprintln!("{} of {rounds} rounds ended as they should", number + 1);
        }
    }
    races.end(&mut counts)?;
    Ok(counts)
}

impl Races<'_> {
    fn expect_success(&self, line: &str) -> Result<()> {
        let end = RunningCommand::start(self.brigade, self.folder, line)?.finish()?;
        ensure!(end.status.success(), "`brigade {line}` ended with {}:\n{}", end.status, end.text);
        Ok(())
    }

    fn run(&self) -> RunDir {
        RunDir(self.folder.join(RUN))
    }

    fn state(&self) -> Result<State> {
        State::of(self.folder, &self.run())
    }

    /// Starts commands at once and checks how they ended. Whether the run has finished.
    fn round(&self, choices: &mut Choices, counts: &mut Counts) -> Result<bool> {
        let before = self.state()?;
        let mut started = Vec::new();
        let many = if choices.below(2) == 0 { 2 } else { 4 };
        for _ in 0..many {
            let command = UserCommand::choose(choices);
            let mesh = choices.one(&self.meshes).context("there is no mesh")?;
            let line = command.line(RUN, &format!("{} {}", settings(RACE_STEPS, KEEP), mesh.flags));
            started.push((command, RunningCommand::start(self.brigade, self.folder, &line)?));
            std::thread::sleep(Duration::from_micros(choices.below(APART / many)));
        }
        let mut victim = None;
        if choices.below(3) == 0 {
            std::thread::sleep(Duration::from_micros(choices.below(KILL_AFTER)));
            let mut running = Vec::new();
            for (index, (_, start)) in started.iter_mut().enumerate() {
                running.extend(start.ended()?.is_none().then_some(index));
            }
            if let Some(index) = choices.one(&running) {
                let (command, start) = &started[index];
                let ranks =
                    if command.trains() && choices.below(2) == 0 { ranks(start.pid()) } else { Vec::new() };
                if kill(choices.one(&ranks).unwrap_or(start.pid())) {
                    victim = Some(index);
                    counts.kills += 1;
                }
            }
        }
        let mut outcomes = Vec::new();
        for (index, (command, start)) in started.into_iter().enumerate() {
            let end = start.finish()?;
            *counts.commands.entry((command.name(), end.status.to_string())).or_default() += 1;
            outcomes.push(Outcome { command, killed: victim == Some(index), end });
        }
        wait_until_gone(self.folder, Instant::now())?;
        let after = self.state()?;
        check::round(&outcomes, &before, &after, &self.reference, &self.steps).with_context(|| {
            let listed = outcomes.iter().map(|outcome| {
                let killed = if outcome.killed { ", killed" } else { "" };
                format!("{:?}{killed}: {}\n{}", outcome.command, outcome.end.status, outcome.end.text)
            });
            listed.collect::<String>()
        })?;
        if after.newest.is_some() {
            self.expect_success(&format!("checkpoint verify {RUN}"))?;
        }
        Ok(after.is_finished(&self.reference))
    }

    /// Lets the run finish, compares it, and removes everything.
    fn end(&self, counts: &mut Counts) -> Result<()> {
        self.expect_success(&format!(
            "train {} {} --resume auto --out {RUN}",
            settings(RACE_STEPS, KEEP),
            mesh::SINGLE.flags
        ))?;
        self.reference.compare(&self.run())?;
        counts.finished += 1;
        remove(&self.run().0)?;
        for file in state::files(self.folder)? {
            remove_file(self.folder.join(file))?;
        }
        Ok(())
    }
}

fn remove_file(path: PathBuf) -> Result<()> {
    match std::fs::remove_file(&path) {
        Err(error) => bail!("cannot remove {}: {error}", path.display()),
        Ok(()) => Ok(()),
    }
}
