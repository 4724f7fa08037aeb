//! Predictions of a model that is spread over the ranks of a mesh.

use crate::error::Result;
use crate::metrics::Clock;
use crate::model::activation::Parts;
use crate::model::cache::Cache;
use crate::step::engine::UntypedEngine;
use crate::step::forward_backward::interpreter::{PassMode, TargetWeight, activation};
use crate::step::forward_backward::micro_batches::InputAlone;

impl UntypedEngine {
    /// [`Engine::predict`](super::Engine::predict) with the parameters as they are.
    pub(super) fn predict_as_it_is(&mut self, input: Parts) -> Result<Parts> {
        let schedule = self.schedule(1, false)?;
        let (mut found, mut input, mut clock) = (None, InputAlone(Some(input)), Clock::default());
        let (output, total) = (&mut found, TargetWeight::Unasked);
        self.run(&mut input, &schedule, move |_| PassMode::Predict(output), total, 0, &mut clock)?;
        let pp = &self.store.groups.pp;
        match found {
            Some(output) => {
                let message = || output.0.iter().cloned().map(Some).collect();
                let others = (0..pp.size()).filter(|stage| *stage != pp.rank());
                let sent: Vec<_> = others.map(|stage| pp.send(message(), stage)).collect();
                sent.into_iter().try_for_each(|pending| pending.wait())?;
                Ok(output)
            }
            None => {
                activation(pp.receive(self.stage.holder(self.shapes.len() - 1), &self.store.device).wait()?)
            }
        }
    }

    /// [`Engine::predict_cached`](super::Engine::predict_cached) with the parameters as they are.
    pub(super) fn predict_cached_as_it_is(
        &mut self,
        input: Parts,
        cache: &mut Cache,
    ) -> Result<Option<Parts>> {
        let schedule = self.schedule(1, false)?;
        let (mut found, mut input, mut clock) = (None, InputAlone(Some(input)), Clock::default());
        let (output, total) = (&mut found, TargetWeight::Unasked);
        self.run(
            &mut input,
            &schedule,
            move |_| PassMode::PredictCached(output, cache),
            total,
            0,
            &mut clock,
        )?;
        Ok(found)
    }
}
