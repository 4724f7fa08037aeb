//! Workers of DiLoCo that are killed, stopped and started again at random moments while the others train on.
//!
//! A worker is a command of its own, and so is their coordinator, to which the same happens. At the end all workers must have the same weights, and a
//! loss near that of the run that nothing happened to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::choices::Choices;
use super::process::{RunningCommand, ranks, send};
use super::run::{RunDir, TEXT, WEIGHTS, remove};

/// Workers of a run, each of one rank.
const WORKERS: usize = 4;
/// Steps of a run, and between outer steps.
const STEPS: u64 = 2400;
const INNER_STEPS: u64 = 10;
/// The most changes of one run.
const MAX_CHANGES: u64 = 25;
/// The longest pause before a change, in milliseconds.
const PAUSE: u64 = 1_500;
/// The longest time that a worker is away, in milliseconds.
const AWAY: u64 = 4_000;
/// How long workers wait for those that still train, and for the silent, in seconds.
const WAIT: u64 = 2;
const HOST_TIMEOUT: u64 = 2;
/// Undisturbed runs, each with another seed.
const UNDISTURBED: u64 = 5;
/// How many of their standard deviations the validation loss of a run may be from their mean.
const DEVIATIONS: f64 = 3.0;
/// The longest time from the last change to the end.
const LIMIT: Duration = Duration::from_secs(240);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// A worker is killed, and started again later.
    Kill,
    /// A worker is stopped, and continued later: as if it had been cut off, or were slow.
    Stop,
    /// The coordinator is killed, and started again later.
    KillCoordinator,
}

/// Counts over all runs. `Display` gives a table.
#[derive(Default)]
pub struct Counts {
    changes: BTreeMap<Change, u32>,
    starts: u32,
    without: u32,
    runs: u32,
    noise: Noise,
    losses: Vec<f64>,
}

/// What the seed alone changes in the validation loss.
#[derive(Default)]
struct Noise {
    mean: f64,
    /// The standard deviation.
    deviation: f64,
}

impl Noise {
    /// Of the losses of several undisturbed runs.
    fn of(losses: &[f64]) -> Self {
        let count = losses.len() as f64;
        let mean = losses.iter().sum::<f64>() / count;
        let squares: f64 = losses.iter().map(|loss| (loss - mean).powi(2)).sum();
        Self { mean, deviation: (squares / (count - 1.0)).sqrt() }
    }

    /// How far from the mean a run's loss may be.
    fn bound(&self) -> f64 {
        DEVIATIONS * self.deviation
    }

    /// How far from the mean that of `runs` runs may be: both are known from a few runs.
    fn bound_of_mean(&self, runs: usize) -> f64 {
        self.bound() * (1.0 / UNDISTURBED as f64 + 1.0 / runs as f64).sqrt()
    }

    /// Checks the loss of a run, or the mean of several.
    fn check(&self, what: &str, loss: f64, bound: f64) -> Result<()> {
        ensure!(
            (loss - self.mean).abs() <= bound,
            "{what} is {loss:.4}, and {:.4} ± {:.4} undisturbed: more than {bound:.4} away",
            self.mean,
            self.deviation
        );
        Ok(())
    }
}

impl Counts {
    fn changes(&self) -> u32 {
        self.changes.values().sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Change::Kill, "workers killed"),
            (Change::Stop, "workers stopped"),
            (Change::KillCoordinator, "coordinator killed"),
        ];
        for (change, name) in names {
            writeln!(f, "{name:<18}{:>4} times", self.changes.get(&change).copied().unwrap_or(0))?;
        }
        writeln!(f, "changes           {}", self.changes())?;
        writeln!(f, "starts            {} of workers", self.starts)?;
        writeln!(f, "without           {} workers that came when the others had ended", self.without)?;
        let losses: Vec<String> = self.losses.iter().map(|loss| format!("{loss:.4}")).collect();
        let Noise { mean, deviation } = self.noise;
        writeln!(f, "undisturbed       validation loss {mean:.4} ± {deviation:.4} over {UNDISTURBED} seeds")?;
        writeln!(f, "validation loss   {:.4} on average; {}", average(&self.losses), losses.join(", "))?;
        writeln!(f, "runs              {} finished", self.runs)
    }
}

/// Does one run after another until there were enough changes.
pub fn run(brigade: &Path, folder: &Path, seed: u64, enough: u32) -> Result<Counts> {
    let undisturbed = |seed: u64| -> Result<f64> {
        let name = format!("undisturbed-{seed}");
        let line = format!("train {} --nproc-per-node {WORKERS} --seed {seed} --out {name}", settings());
        let end = RunningCommand::start(brigade, folder, &line)?.finish()?;
        ensure!(end.status.success(), "`brigade {line}` ended with {}:\n{}", end.status, end.text);
        validation_loss(&folder.join(name))
    };
    let losses = (0..UNDISTURBED).map(undisturbed).collect::<Result<Vec<_>>>()?;
    let mut counts = Counts { noise: Noise::of(&losses), ..Counts::default() };
    while counts.changes() < enough {
        let number = counts.runs;
        let name = format!("workers-{number}");
        let folder = folder.join(&name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let most = u64::from(enough - counts.changes()).min(MAX_CHANGES);
        let run =
            Run { brigade, folder: &folder, port: super::free_port()?, choices: Choices::new(seed, number) };
        run.complete(most, &mut counts)
            .with_context(|| format!("{name} of --seed {seed}; its folder is {}", folder.display()))?;
        remove(&folder)?;
        counts.runs += 1;
        eprintln!("{name} ended as it should; {} of {enough} changes", counts.changes());
    }
    let (mean, bound) = (average(&counts.losses), counts.noise.bound_of_mean(counts.losses.len()));
    counts.noise.check("the mean validation loss of all runs", mean, bound)?;
    Ok(counts)
}

fn average(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

fn settings() -> String {
    format!(
        "--data {TEXT} --set data.tokenizer=bytes --set model.layers=2 --set model.width=32 --set model.heads=2 \
         --set model.sequence_length=32 --steps {STEPS} --micro-batch-size 2 --global-batch-size 8 \
         --set train.validate_every=0 --set train.validation_samples=32 --checkpoint-every 100 --keep 1 \
         --strategy diloco --workers {WORKERS} --inner-steps {INNER_STEPS}"
    )
}

/// The validation loss at the end of a run.
fn validation_loss(run: &Path) -> Result<f64> {
    let text = String::from_utf8_lossy(&RunDir(run.to_owned()).metrics()).into_owned();
    let found = text.lines().rev().find_map(|line| {
        let record: serde_json::Value = serde_json::from_str(line).ok()?;
        record.get("validation_loss")?.as_f64()
    });
    found.with_context(|| format!("{} has no validation loss", run.display()))
}

struct Run<'a> {
    brigade: &'a Path,
    folder: &'a Path,
    port: u16,
    choices: Choices,
}

/// A worker, and what is to happen to it next.
struct Worker {
    command: Option<RunningCommand>,
    /// When it starts again, or continues.
    returns: Option<Instant>,
    is_done: bool,
}

impl Run<'_> {
    fn complete(mut self, most: u64, counts: &mut Counts) -> Result<()> {
        let mut coordinator = Some(self.coordinator()?);
        let mut coordinator_returns = None;
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            counts.starts += 1;
            workers.push(Worker { command: Some(self.worker(number)?), returns: None, is_done: false });
        }
        let (mut changes, mut next) = (0, Instant::now() + self.pause());
        let mut last_change = Instant::now();
        while workers.iter().any(|worker| !worker.is_done) {
            std::thread::sleep(Duration::from_millis(5));
            let now = Instant::now();
            ensure!(
                now < last_change + LIMIT,
                "it has not ended {} s after the last change",
                LIMIT.as_secs()
            );
            for (number, worker) in workers.iter_mut().enumerate() {
                self.attend(number, worker, now, counts)?;
            }
            if coordinator_returns.is_some_and(|at| at <= now) {
                (coordinator, coordinator_returns) = (Some(self.coordinator()?), None);
            }
            let is_ending = workers.iter().any(|worker| worker.is_done);
            if changes < most && now >= next && !is_ending {
                next = now + self.pause();
                last_change = now;
                let back = now + Duration::from_millis(self.choices.below(AWAY));
                let change = match self.choices.below(8) {
                    0 => Change::KillCoordinator,
                    1..=5 => Change::Kill,
                    _ => Change::Stop,
                };
                if change == Change::KillCoordinator {
                    if coordinator.take().is_none() {
                        continue;
                    }
                    coordinator_returns = Some(back);
                } else {
                    let here: Vec<usize> = (0..WORKERS)
                        .filter(|number| {
                            workers[*number].returns.is_none() && workers[*number].command.is_some()
                        })
                        .collect();
                    // One is left to train, so that the run goes on.
                    let Some(number) = self.choices.one(&here).filter(|_| here.len() > 1) else { continue };
                    let worker = &mut workers[number];
                    worker.returns = Some(back);
                    match change {
                        // Dropping a command kills it, and its ranks die with it.
                        Change::Kill => worker.command = None,
                        _ => signal(worker, Signal::STOP),
                    }
                }
                changes += 1;
                *counts.changes.entry(change).or_default() += 1;
            }
        }
        drop(coordinator);
        self.check(counts)
    }

    /// Starts or continues a worker whose time has come, and looks how one has ended.
    fn attend(&self, number: usize, worker: &mut Worker, now: Instant, counts: &mut Counts) -> Result<()> {
        if worker.returns.is_some_and(|at| at <= now) {
            worker.returns = None;
            match worker.command {
                Some(_) => signal(worker, Signal::CONT),
                None => {
                    counts.starts += 1;
                    worker.command = Some(self.worker(number)?);
                }
            }
        }
        let Some(command) = &mut worker.command else { return Ok(()) };
        if worker.returns.is_some() || command.ended()?.is_none() {
            return Ok(());
        }
        let Some(command) = worker.command.take() else { return Ok(()) };
        let end = command.finish()?;
        worker.is_done = true;
        match end.status.code() {
            Some(0) => Ok(()),
            Some(1) if end.text.contains("without this one") || end.text.contains("has not been reached") => {
                counts.without += 1;
                Ok(())
            }
            _ => bail!("worker {number} ended with {}:\n{}", end.status, end.text),
        }
    }

    /// Compares the weights of those that have finished, and their loss with the undisturbed run's.
    fn check(&self, counts: &mut Counts) -> Result<()> {
        let finished: Vec<_> = (0..WORKERS)
            .map(|number| self.folder.join(format!("worker-{number}")))
            .filter(|folder| folder.join(WEIGHTS).exists())
            .collect();
        let first = finished.first().context("no worker has finished")?;
        let weights = std::fs::read(first.join(WEIGHTS))?;
        for other in &finished[1..] {
            let same = std::fs::read(other.join(WEIGHTS))? == weights;
            ensure!(same, "{} and {} have different weights", first.display(), other.display());
        }
        let loss = validation_loss(first)?;
        counts.losses.push(loss);
        counts.noise.check("the validation loss", loss, counts.noise.bound())
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(300 + self.choices.below(PAUSE))
    }

    fn coordinator(&self) -> Result<RunningCommand> {
        let port = self.port;
        let line = format!(
            "coordinate --workers {WORKERS} --host 127.0.0.1 --port {port} --wait-seconds {WAIT} --host-timeout {HOST_TIMEOUT}"
        );
        RunningCommand::start_with(Command::new(self.brigade), self.folder, &line, token())
    }

    fn worker(&self, number: usize) -> Result<RunningCommand> {
        let (settings, port) = (settings().replace(TEXT, &format!("../{TEXT}")), self.port);
        let line = format!(
            "train {settings} --nproc-per-node 1 --worker {number} --coordinator 127.0.0.1:{port} --host-timeout {HOST_TIMEOUT} \
             --resume auto --out worker-{number}"
        );
        RunningCommand::start_with(Command::new(self.brigade), self.folder, &line, token())
    }
}

fn token() -> [(&'static str, String); 1] {
    [("BRIGADE_TOKEN", "the-token-of-these-workers".into())]
}

/// Sends a signal to the processes of a worker.
fn signal(worker: &Worker, kind: Signal) {
    if let Some(command) = &worker.command {
        let ranks = ranks(command.pid());
        for pid in ranks.into_iter().chain([command.pid()]) {
            // A rank may end meanwhile.
            let _ = send(pid, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_what_the_seed_changes() {
        let noise = Noise::of(&[1.0, 2.0, 3.0]);
        assert_eq!((noise.mean, noise.deviation, noise.bound()), (2.0, 1.0, 3.0));
        assert!(
            noise.check("a", 4.9, noise.bound()).is_ok() && noise.check("a", 5.1, noise.bound()).is_err()
        );
        assert!(noise.bound_of_mean(5) < noise.bound_of_mean(1));
        assert!(noise.check("a", f64::NAN, noise.bound()).is_err());
    }
}
