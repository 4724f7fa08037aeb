//! Outer steps with separately launched workers: with those that are there.

use anyhow::{Context, bail};
use brigade_core::{Activation, StepReport};
use brigade_launch::workers::{Base, Quorum};

use crate::checkpoint::RunProgress;
use crate::train::trainer::Trainer;
use crate::train::workers::{Decision, ElasticWorker, Replica, all_agree, transfer_state};

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Joins the other workers before the first step, and takes over what those that are ahead have.
    pub(crate) fn join_workers(&mut self) -> anyhow::Result<()> {
        let base = Base { step: self.progress.step, quorum: self.progress.quorum };
        let Some(mut worker) = ElasticWorker::start(self.session, base, &self.facts)? else { return Ok(()) };
        if !worker.is_current(self.session)? {
            self.note("other workers are ahead; waiting for their next outer step");
            if self.join_quorum(&mut worker, self.progress.step)?.is_some() {
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
        let met = self.join_quorum(&mut worker, self.progress.step + 1);
        self.elastic = Some(worker);
        met
    }

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
                if all_agree(session, received.is_ok())? {
                    let state = received?.context("received no state from the other workers")?;
                    self.take_over(state, &quorum)?;
                    worker.has_made_outer_step(session, &quorum);
                    return Ok(None);
                }
                self.note_lost("taking over the state of the other workers", received.err());
                continue;
            }
            let world = worker.join_quorum(session, &quorum, &mut listeners);
            let sums = world.and_then(|world| Ok(self.engine.outer_sums(&world.workers())?));
            if !all_agree(session, sums.is_ok())? {
                worker.leave();
                self.note_lost(&format!("step {step}: adding up over the workers"), sums.err());
                continue;
            }
            let report = self.engine.outer_step(sums?)?;
            self.progress.quorum = quorum.id;
            if let Some(change) = worker.has_made_outer_step(session, &quorum) {
                self.note(&change);
            }
            if quorum.participants.first() == Some(&own) && !quorum.recovering.is_empty() {
                let progress = RunProgress { step, loss: report.loss, ..self.progress.clone() };
                let state = Replica::new(progress, self.engine.replica()?);
                if let Err(error) = transfer_state(session, &quorum, &mut listeners, Some(state)) {
                    self.note_lost("giving the state to workers that join", Some(error));
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

    fn note_lost(&mut self, what: &str, error: Option<anyhow::Error>) {
        let why = error
            .map_or_else(|| "another rank of this worker failed".to_owned(), |error| format!("{error:#}"));
        self.note(&format!("{what} failed, and is repeated: {why}"));
    }
}
