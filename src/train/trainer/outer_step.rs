//! Outer steps with workers that are launches of their own: with those that are there.

use anyhow::{Context, bail};
use brigade_core::{Activation, StepReport};
use brigade_launch::workers::{Base, Meeting};

use super::Trainer;
use crate::checkpoint::RunProgress;
use crate::train::workers::{Decision, ElasticWorker, Replica, all_agree, exchange};

impl<I: Activation + Clone, O: Activation, T: Clone> Trainer<'_, I, O, T> {
    /// Joins the other workers before the first step, and takes over what those that are ahead have.
    pub(super) fn join_workers(&mut self) -> anyhow::Result<()> {
        let base = Base { step: self.progress.step, meeting: self.progress.meeting };
        let Some(mut worker) = ElasticWorker::start(self.session, base, &self.facts)? else { return Ok(()) };
        if !worker.is_current(self.session)? {
            self.note("other workers are ahead; waiting for their next outer step");
            if self.meet(&mut worker, self.progress.step)?.is_some() {
                bail!("a worker without inner steps has made an outer step");
            }
        }
        self.elastic = Some(worker);
        Ok(())
    }

    /// Ends the inner steps: makes an outer step with the workers that are there. If they have made it without this one, it takes over what
    /// they have, and there is no report.
    pub(super) fn meet_workers(&mut self) -> anyhow::Result<Option<StepReport>> {
        let mut worker = self.elastic.take().context("this world is no worker of its own")?;
        let met = self.meet(&mut worker, self.progress.step + 1);
        self.elastic = Some(worker);
        met
    }

    fn meet(&mut self, worker: &mut ElasticWorker, step: u64) -> anyhow::Result<Option<StepReport>> {
        let session = self.session;
        let own = session.settings.strategy.worker;
        loop {
            let (decision, mut listeners) = worker.ask(session, step)?;
            let Decision::Meet(meeting) = decision else { return Ok(None) };
            if meeting.joiners.contains(&own) {
                worker.leave();
                let received = exchange(session, &meeting, &mut listeners, None);
                if all_agree(session, received.is_ok())? {
                    let state = received?.context("this worker was given no state")?;
                    self.take_over(state, &meeting)?;
                    worker.has_met(session, &meeting);
                    return Ok(None);
                }
                self.note_lost("taking over the state of the other workers", received.err());
                continue;
            }
            let world = worker.meet(session, &meeting, &mut listeners);
            let sums = world.and_then(|world| Ok(self.engine.outer_sums(&world.workers())?));
            if !all_agree(session, sums.is_ok())? {
                worker.leave();
                self.note_lost(&format!("step {step}: adding up over the workers"), sums.err());
                continue;
            }
            let report = self.engine.outer_step(sums?)?;
            self.progress.meeting = meeting.id;
            if let Some(change) = worker.has_met(session, &meeting) {
                self.note(&change);
            }
            if meeting.contributors.first() == Some(&own) && !meeting.joiners.is_empty() {
                let progress = RunProgress { step, loss: report.loss, ..self.progress.clone() };
                let state = Replica::new(progress, self.engine.replica()?);
                if let Err(error) = exchange(session, &meeting, &mut listeners, Some(state)) {
                    self.note_lost("giving the state to workers that join", Some(error));
                }
            }
            return Ok(Some(report));
        }
    }

    /// Continues as the worker whose state this is.
    fn take_over(&mut self, mut state: Replica, meeting: &Meeting) -> anyhow::Result<()> {
        let from = self.progress.step;
        self.engine.restore_replica(meeting.step, &mut state)?;
        self.progress =
            RunProgress { meeting: meeting.id, nonfinite: self.progress.nonfinite, ..state.progress };
        self.update_position = self.progress.position;
        self.next_learning_rate.set(self.learning_rate());
        self.reader = None;
        (self.is_read, self.is_unvalidated) = (false, true);
        self.note(&format!(
            "step {from}: taken over what the other workers have after step {}",
            self.progress.step
        ));
        Ok(())
    }

    fn note_lost(&mut self, what: &str, error: Option<anyhow::Error>) {
        let why = error
            .map_or_else(|| "another rank of this worker failed".to_owned(), |error| format!("{error:#}"));
        self.note(&format!("{what} failed, and is repeated: {why}"));
    }
}
