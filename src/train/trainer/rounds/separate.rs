//! Rounds of servers with separately launched workers, and the work of such a worker.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use brigade_core::{Activation, Collectives, Error, StepReport};
use brigade_report::counted;

use crate::error::Preempted;
use crate::train::servers::{RemoteServers, ServedWorkers};
use crate::train::trainer::Trainer;
use crate::train::trainer::rounds::shares::{Failure, ShareReader};

/// How long a server that is preempted waits for a worker to come back, without which its round does not end.
const ALONE: Duration = Duration::from_secs(3);

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// With separately launched servers and workers: begins to listen for workers, or finds out where the servers are.
    pub(crate) fn set_up_servers(&mut self) -> anyhow::Result<()> {
        self.served = ServedWorkers::start(self.session, &self.facts)?;
        self.works_for = RemoteServers::of(self.session, &self.facts)?;
        Ok(())
    }

    /// Makes a round of this many steps as a server, with the workers that are there.
    pub(crate) fn serve_round(&mut self, steps: u64) -> anyhow::Result<StepReport> {
        let mut served = self.served.take().context("this rank has no workers")?;
        let (session, done) = (self.session, self.progress.step);
        let ahead = (self.progress.position - steps).saturating_sub(done);
        let workers = self.engine.workers() as u64;
        let (failure, reporter) = (Failure::default(), &mut self.reporter);
        let report = self.engine.serve_round(&mut served.links, ahead, &mut |progress| {
            if let Some(reporter) = reporter.as_mut() {
                progress.notes.iter().for_each(|note| reporter.note(note));
            }
            if session.is_preempted() && progress.alone > ALONE {
                return Err(failure.keep(Preempted.into()));
            }
            session.go_on(done + progress.updates / workers + 1).map_err(|error| failure.keep(error))
        });
        self.served = Some(served);
        let report = failure.or(report);
        if report.as_ref().is_err_and(|error| error.is::<Preempted>()) {
            let from = self.continues_from();
            self.report_preempted(&format!("preempted within a round, with no worker connected; {from}"))?;
        }
        report
    }

    /// Tells workers that the run is over.
    pub(crate) fn disconnect_workers(&mut self) -> anyhow::Result<()> {
        if let Some(mut served) = self.served.take() {
            self.send_heartbeat("waiting for the workers to disconnect");
            let wait = Duration::from_secs_f64(self.session.settings.comm.host_timeout_seconds);
            self.engine.disconnect_workers(&mut served.links, wait)?;
        }
        Ok(())
    }

    /// Works for servers elsewhere to the end of the run. If they are lost, it waits for them to come back.
    pub(crate) fn work_for_servers(&mut self) -> anyhow::Result<()> {
        let servers = self.works_for.take().context("this worker has no servers")?;
        let (mut shares, mut lost) = (0, 0);
        loop {
            let link = servers.connect(self.session)?;
            self.note("connected to the servers");
            let (computed, ended) = match self.work_over(&link.group) {
                Err(error) if error.is::<Preempted>() => {
                    self.report_preempted("preempted; this worker's share goes to another one")?;
                    return Err(error);
                }
                worked => worked?,
            };
            shares += computed;
            let Err(error) = ended else {
                link.leave();
                break;
            };
            lost += 1;
            let text = error.to_string();
            let why = text.lines().next().unwrap_or_default();
            self.note(&format!("lost connection to the servers, reconnecting: {why}"));
        }
        self.works_for = Some(servers);
        self.progress.step = self.total_steps;
        let (shares, times) = (counted(shares, "share"), counted(lost, "time"));
        self.note(&format!("run finished: this worker computed {shares}; reconnected {times}"));
        Ok(())
    }

    /// Works over one connection; gives the number of shares, and the error of a connection that broke.
    fn work_over(&mut self, group: &Arc<dyn Collectives>) -> anyhow::Result<(usize, Result<(), Error>)> {
        let session = self.session;
        let reader = ShareReader::new(session, &self.training, &self.schedule, self.sampler.as_ref())?;
        let worked = self.engine.work_for(group, &|step| reader.learning_rate(step), &mut |share| {
            if session.is_preempted() {
                return Err(reader.failure.keep(Preempted.into()));
            }
            reader.read(share, share.step - 1 + share.ahead)
        });
        self.data_wait += reader.waited.get();
        let shares = reader.count.get();
        match worked {
            Err(error @ Error::Collective(_)) => Ok((shares, Err(error))),
            other => reader.failure.or(other).map(|()| (shares, Ok(()))),
        }
    }
}
