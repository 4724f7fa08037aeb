//! Rounds of servers whose workers are launches of their own, and the work of such a worker.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_core::{Activation, Batch, BoxError, Error, Share, StepReport};
use brigade_report::counted;

use super::Trainer;
use super::round::Failure;
use crate::train::servers::{RemoteServers, ServedWorkers};

impl<I: Activation + Clone, O: Activation, T: Clone> Trainer<'_, I, O, T> {
    /// Begins to listen for workers, or finds out where servers are, where they are launches of their own.
    pub(super) fn meet_servers(&mut self) -> anyhow::Result<()> {
        self.served = ServedWorkers::start(self.session, &self.facts)?;
        self.works_for = RemoteServers::of(self.session, &self.facts)?;
        Ok(())
    }

    /// Makes a round of this many steps as a server, with the workers that are there.
    pub(super) fn serve_round(&mut self, steps: u64) -> anyhow::Result<StepReport> {
        let mut served = self.served.take().context("this rank has no workers")?;
        let (session, done) = (self.session, self.progress.step);
        let ahead = (self.progress.position - steps).saturating_sub(done);
        let workers = self.engine.workers() as u64;
        let (failure, reporter) = (Failure::default(), &mut self.reporter);
        let report = self.engine.serve_round(&mut served.links, ahead, &mut |updates, notes| {
            if let Some(reporter) = reporter.as_mut() {
                notes.iter().for_each(|note| reporter.note(note));
            }
            session.go_on(done + updates / workers + 1).map_err(|error| failure.keep(error))
        });
        self.served = Some(served);
        failure.or(report)
    }

    /// Tells workers that the run is over.
    pub(super) fn dismiss_workers(&mut self) -> anyhow::Result<()> {
        if let Some(mut served) = self.served.take() {
            self.send_heartbeat("waiting for the workers to leave");
            let wait = Duration::from_secs_f64(self.session.settings.comm.host_timeout_seconds);
            self.engine.dismiss_workers(&mut served.links, wait)?;
        }
        Ok(())
    }

    /// Works for servers elsewhere to the end of the run. If they are lost, it waits for them to come back.
    pub(super) fn work_for_servers(&mut self) -> anyhow::Result<()> {
        let servers = self.works_for.take().context("this worker has no servers")?;
        let (shares, mut lost) = (Cell::new(0), 0);
        loop {
            let link = servers.connect(self.session)?;
            self.note("connected to the servers");
            let Err(error) = self.work_over(&link.group, &shares)? else {
                link.leave();
                break;
            };
            lost += 1;
            let text = error.to_string();
            let why = text.lines().next().unwrap_or_default();
            self.note(&format!("the servers are lost, and waited for: {why}"));
        }
        self.works_for = Some(servers);
        self.progress.step = self.total_steps;
        let shares = counted(shares.get(), "share");
        self.note(&format!("the run is over: computed {shares} here; lost the servers {lost} times"));
        Ok(())
    }

    /// Works over one connection; the inner error is of a connection that broke.
    fn work_over(
        &mut self,
        group: &std::sync::Arc<dyn brigade_core::Collectives>,
        shares: &Cell<usize>,
    ) -> anyhow::Result<Result<(), Error>> {
        let session = self.session;
        let (training, schedule, peak) = (&self.training, &self.schedule, session.plan.learning_rate);
        let learning_rate = |step: u64| {
            let own = training.update.learning_rate_factor(step - 1);
            peak * own.unwrap_or_else(|| schedule.factor(step - 1))
        };
        let (sampler, data) = self
            .sampler
            .as_ref()
            .zip(training.train.as_ref())
            .context("this run has no data of its own (`Training::without_data`)")?;
        let (count, device) = (session.plan.gradient_accumulation_steps, session.device());
        let waited = RefCell::new(Duration::ZERO);
        let read = |share: Share| -> anyhow::Result<Vec<Batch<I, T>>> {
            session.go_on(share.step)?;
            let (began, position) = (Instant::now(), share.step - 1 + share.ahead);
            let micro_batch = |k: usize| {
                let samples = sampler.global_micro_batch(position, share.number * count + k)?;
                data.read(samples, &device, share.batch_seed(k, count))
            };
            let batches = (0..count).map(micro_batch).collect();
            *waited.borrow_mut() += began.elapsed();
            shares.set(shares.get() + 1);
            batches
        };
        let failure = Failure::default();
        let worked = self.engine.work_for(group, &learning_rate, &mut |share| {
            read(share).map_err(|error| -> BoxError { failure.keep(error) })
        });
        self.data_wait += waited.into_inner();
        match worked {
            Err(error @ Error::Collective(_)) => Ok(Err(error)),
            other => failure.or(other).map(Ok),
        }
    }
}
