//! Rounds of steps in which workers do not wait for each other.

use anyhow::bail;
use brigade_core::{Activation, Batch, StepReport};

use crate::train::trainer::Trainer;
use crate::train::trainer::rounds::shares::ShareReader;

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Makes the steps of a round, from the data of the run; none if this worker has worked for servers elsewhere, to the end of the run.
    pub(crate) fn round(
        &mut self,
        batches: Vec<Batch<I, T>>,
        steps: u64,
    ) -> anyhow::Result<Option<StepReport>> {
        if !batches.is_empty() {
            bail!(
                "with strategy.staleness (--staleness) above 0 workers take shares of the data as they become free, so a loop cannot give \
                batches of its own; pass on those of `Trainer::next_batches`, or set --staleness 0"
            );
        }
        match () {
            () if self.works_for.is_some() => self.work_for_servers().map(|()| None),
            () if self.served.is_some() => self.serve_round(steps).map(Some),
            () => self.round_in_one_world(steps).map(Some),
        }
    }

    fn round_in_one_world(&mut self, steps: u64) -> anyhow::Result<StepReport> {
        let (session, done) = (self.session, self.progress.step);
        let first_position = self.progress.position - steps;
        let reader = ShareReader::new(session, &self.training, &self.schedule, self.sampler.as_ref())?;
        let workers = self.engine.workers() as u64;
        let report = self.engine.round(
            &|step| reader.learning_rate(step),
            &mut |share| reader.read(share, first_position + share.step - 1 - done),
            &mut |updates| {
                let step = done + updates / workers + 1;
                session.go_on(step).map_err(|error| reader.failure.keep(error))
            },
        );
        self.data_wait += reader.waited.get();
        reader.failure.or(report)
    }
}
