//! Outer steps with separately launched workers: with those that are there.

use anyhow::{Context, bail};
use brigade_core::{Activation, StepReport};
use brigade_launch::workers::{Base, Quorum};

use crate::checkpoint::RunProgress;
use crate::error::Preempted;
use crate::train::trainer::Trainer;
use crate::train::workers::{Decision, ElasticWorker, Replica, agreed, transfer_state};

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Joins the other workers before the first step, and takes over what those that are ahead have.
    pub(crate) fn join_workers(&mut self) -> anyhow::Result<()> {
        let base = Base { step: self.progress.step, quorum: self.progress.quorum };
        let Some(mut worker) = ElasticWorker::start(self.session, base, &self.facts)? else { return Ok(()) };
        if !worker.is_current(self.session)? {
            self.note("other workers are ahead; waiting for their next outer step");
            if self.synchronise(&mut worker, self.progress.step)?.is_some() {
                bail!("internal error: outer step without inner steps");
            }
        }
        self.elastic = Some(worker);
        Ok(())
    }

    /// Ends the inner steps: makes an outer step with the workers that are there. If they have made it without this one, it takes over what
    /// they have, and there is no report.
    pub(crate) fn sync_workers(&mut self) -> anyhow::Result<Option<StepReport>> {
        let mut worker = self.elastic.take().context("this run has no coordinator")?;
        let synchronised = self.synchronise(&mut worker, self.progress.step + 1);
        self.elastic = Some(worker);
        synchronised
    }

    fn synchronise(&mut self, worker: &mut ElasticWorker, step: u64) -> anyhow::Result<Option<StepReport>> {
        let synchronised = self.join_quorum(worker, step);
        if synchronised.as_ref().is_err_and(|error| error.is::<Preempted>()) {
            let from = self.continues_from();
            self.report_preempted(&format!("preempted while the workers could not synchronise; {from}"))?;
        }
        synchronised
    }

    /// Asks for quorums until one succeeds.
    fn join_quorum(&mut self, worker: &mut ElasticWorker, step: u64) -> anyhow::Result<Option<StepReport>> {
        let session = self.session;
        let own = session.settings.strategy.worker;
        loop {
            let reporter = &mut self.reporter;
            let (decision, mut listeners) = worker.ask(session, step, &mut |what| {
                if let Some(reporter) = reporter {
                    reporter.note(what);
                }
            })?;
            let Decision::Quorum(quorum) = decision else { return Ok(None) };
            if quorum.recovering.contains(&own) {
                worker.leave();
                let received = transfer_state(session, &quorum, &mut listeners, None);
                match agreed(session, received)? {
                    Ok(state) => {
                        let state = state.context("received no state from the other workers")?;
                        self.take_over(state, &quorum)?;
                        worker.has_made_outer_step(session, &quorum);
                        return Ok(None);
                    }
                    Err(why) => {
                        self.note_failed("taking over the state of the other workers", &why);
                        worker.has_failed(session, quorum, &why)?;
                        continue;
                    }
                }
            }
            let world = worker.join_quorum(session, &quorum, &mut listeners);
            let sums = world.and_then(|world| Ok(self.engine.outer_sums(&world.workers())?));
            let sums = match agreed(session, sums)? {
                Ok(sums) => sums,
                Err(why) => {
                    self.note_failed(&format!("step {step}: adding up over the workers"), &why);
                    worker.has_failed(session, quorum, &why)?;
                    continue;
                }
            };
            let report = self.engine.outer_step(sums)?;
            self.progress.quorum = quorum.id;
            if let Some(change) = worker.has_made_outer_step(session, &quorum) {
                self.note(&change);
            }
            if quorum.participants.first() == Some(&own) && !quorum.recovering.is_empty() {
                let progress = RunProgress { step, loss: report.loss, ..self.progress.clone() };
                let state = Replica::new(progress, self.engine.replica()?);
                if let Err(error) = transfer_state(session, &quorum, &mut listeners, Some(state)) {
                    self.note_failed("giving the state to workers that join", &format!("{error:#}"));
                }
            }
            return Ok(Some(report));
        }
    }

    /// Continues as the worker whose state this is.
    fn take_over(&mut self, mut state: Replica, quorum: &Quorum) -> anyhow::Result<()> {
        let from = self.progress.step;
        self.engine.restore_replica(quorum.step, &mut state)?;
        self.progress =
            RunProgress { quorum: quorum.id, nonfinite: self.progress.nonfinite, ..state.progress };
        self.update_position = self.progress.position;
        self.reader = None;
        (self.is_read, self.is_unvalidated) = (false, true);
        self.note(&format!("step {from}: loaded the other workers' state after step {}", self.progress.step));
        Ok(())
    }

    fn note_failed(&mut self, what: &str, why: &str) {
        self.note(&format!("{what} failed, and is repeated: {why}"));
    }
}
