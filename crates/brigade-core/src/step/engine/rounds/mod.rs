//! Rounds of steps in which workers push gradients to servers as they come: the parameter server that does not wait.
//!
//! `shares` is who works on what, and the bound; `message` what is sent; `worker` and `server` are the two sides. Where workers are
//! worlds of their own, which may come and go, `links` has the servers' connections to them, and `separate` serves over these;
//! `held_pushes` is what keeps several servers from applying different pushes.

mod batch_seed;
mod held_pushes;
mod links;
mod message;
mod separate;
mod server;
mod shares;
mod worker;

use std::time::{Duration, Instant};

use crate::error::{BoxError, Error, Result};
use crate::metrics::{Activity, Clock};
use crate::step::engine::rounds::batch_seed::seed_of_batch;
use crate::step::engine::{UntypedEngine, difference};
use crate::step::report::{RoundReport, StepReport};

pub use links::{WorkerLink, WorkerLinkSender, WorkerLinks};
pub use separate::RoundProgress;
use server::Serving;
use shares::{Shares, Staleness};
use worker::{ReadShare, Servers};

/// A share of a step's global batch, which a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The step, counted from 1.
    pub step: u64,
    /// Its number among the step's shares, one for each worker, in the order of the global batch.
    pub number: usize,
    /// Where workers are worlds of their own: by how much the position in the data is ahead of the step, on the servers.
    pub ahead: u64,
    pub(crate) seed: u64,
}

impl Share {
    /// As [`UntypedEngine::batch_seed`], of the `k`-th of its `count` micro-batches.
    pub fn batch_seed(&self, k: usize, count: usize) -> u64 {
        seed_of_batch(self.seed, self.step, self.number * count + k)
    }
}

/// Numbers about staleness among those that ranks tell each other after a round.
const STALENESS: usize = 4;

impl UntypedEngine {
    /// Whether this rank is a server, which runs no micro-batches in training.
    pub fn is_server(&self) -> bool {
        self.store.server().is_some()
    }

    /// Ranks that run micro-batches in training, of those that hold the same blocks.
    pub fn workers(&self) -> usize {
        self.store.workers()
    }

    /// Steps of the next [`round`](crate::Engine::round), if the strategy trains in [rounds](crate::Rounds).
    pub fn steps_of_round(&self) -> Option<u64> {
        self.settings.strategy.rounds().map(|rounds| rounds.steps)
    }

    pub(super) fn round(
        &mut self,
        learning_rate: &dyn Fn(u64) -> f64,
        read: &mut ReadShare<'_>,
        watch: &mut dyn FnMut(u64) -> Result<(), BoxError>,
    ) -> Result<StepReport> {
        let Some(rounds) = self.settings.strategy.rounds() else {
            return Err(Error::Model("this strategy has no rounds; call `Engine::step`".into()));
        };
        if !self.gradient_hooks.is_empty() {
            let why =
                "gradient hooks see the gradients of a step, and servers apply those of each share at once";
            return Err(Error::Model(why.into()));
        }
        let before = self.step;
        let (mut clock, traffic) = self.begin_step();
        let workers = self.store.workers();
        let mut staleness = Staleness::default();
        let worked = match self.is_server() {
            true => {
                let shares = Shares::new(workers, rounds.steps, rounds.staleness);
                let mut serving = Serving::new(rounds, shares, workers, &mut clock);
                let served = self.serve(&mut serving, watch);
                staleness = serving.shares.found;
                served
            }
            false => {
                let servers = Servers::in_this_world(&self.store);
                self.work(&servers, before, learning_rate, read, &mut clock)
            }
        };
        self.step = before;
        self.first_micro_batch = None;
        worked?;
        self.step = before + rounds.steps;
        let report = self.end_round(before, staleness, (workers, 0), &mut clock)?;
        let traffic = difference(self.store.groups.traffic(), &traffic);
        Ok(StepReport { clock, traffic, memory: self.memory(), ..report })
    }

    /// Gives all ranks the parameters of the servers, and what all ranks found.
    fn end_round(
        &mut self,
        before: u64,
        staleness: Staleness,
        (workers, lost): (usize, u64),
        clock: &mut Clock,
    ) -> Result<StepReport> {
        let began = Instant::now();
        for unit in 0..self.store.units.len() {
            if self.store.is_served(&self.store.units[unit].unit) {
                self.store.gather_served(unit);
            }
        }
        self.give_new_values(Vec::new(), &|_| true, clock)?;
        self.memory.optimizer.set(self.update.state_bytes());
        let own = std::mem::take(&mut self.inner_steps);
        let mut words = own.to_words(self.objective.names.len());
        let Staleness { mean, most, waits, waited } = staleness;
        // The first server knows; the others count nothing.
        let own_words: [f64; STALENESS] = [mean, most, waits as f64, waited.as_secs_f64()];
        words.extend(own_words.map(|word| if self.store.server() == Some(0) { word } else { 0.0 }));
        let pending = self.store.groups.data.all_gather_scalars(words);
        let all = clock.waiting("all_gather_scalars", || pending.wait())?;
        clock.record(Activity::Phase("end of the round"), Some(began));
        let sum = |word: usize| all.iter().map(|words| words[word]).sum::<f64>();
        let (made, skipped, targets, weight) = (sum(0), sum(1), sum(2), sum(3));
        let mut names = self.objective.names.clone();
        names.sort();
        let last = 6 + names.len();
        let round = RoundReport {
            steps: self.step - before,
            staleness_mean: sum(last),
            staleness_most: sum(last + 1),
            waits: sum(last + 2) as u64,
            waited: Duration::from_secs_f64(sum(last + 3)),
            skipped: skipped as u64,
            workers,
            lost,
        };
        Ok(StepReport {
            step: self.step,
            loss: sum(4) / weight,
            metrics: names.into_iter().enumerate().map(|(k, name)| (name, sum(6 + k) / weight)).collect(),
            grad_norm: sum(5) / made,
            targets: targets as u64,
            target_weight: weight,
            skipped: made == 0.0,
            outer: None,
            round: Some(round),
            bubble: Duration::ZERO,
            in_flight: own.in_flight,
            memory: Default::default(),
            clock: Clock::default(),
            traffic: Default::default(),
        })
    }
}
