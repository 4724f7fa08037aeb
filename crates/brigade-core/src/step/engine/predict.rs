//! Predictions of a model that is spread over the ranks of a mesh.

use crate::error::Result;
use crate::metrics::Clock;
use crate::model::activation::Activation;
use crate::model::cache::Cache;
use crate::model::predict::restore_output;
use crate::step::engine::Engine;
use crate::step::forward_backward::interpreter::{PassMode, TargetWeight, activation};
use crate::step::forward_backward::micro_batches::InputAlone;

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// The model's output for an input, as an evaluation computes it (nothing is drawn at random for training, no graph is
    /// recorded), with floats in fp32. All ranks call it together, and each gets the output: ranks of the same pipeline
    /// give the same input, of which the first stage uses its own; data-parallel ranks may each give another one.
    ///
    /// Its bits are the same on every mesh, as the losses of evaluations are.
    ///
    /// # Errors
    /// If a collective fails, or a block refuses its input.
    pub fn predict(&mut self, input: I) -> Result<O> {
        self.with_model_values(|engine| engine.predict_as_it_is(input))
    }

    fn predict_as_it_is(&mut self, input: I) -> Result<O> {
        let schedule = self.schedule(1, false)?;
        let (mut found, mut input, mut clock) = (None, InputAlone(Some(input)), Clock::default());
        let (output, total) = (&mut found, TargetWeight::Unasked);
        self.run(&mut input, &schedule, move |_| PassMode::Predict(output), total, 0, &mut clock)?;
        let pp = &self.store.groups.pp;
        let output = match found {
            Some(output) => {
                let message = || output.0.iter().cloned().map(Some).collect();
                let others = (0..pp.size()).filter(|stage| *stage != pp.rank());
                let sent: Vec<_> = others.map(|stage| pp.send(message(), stage)).collect();
                sent.into_iter().try_for_each(|pending| pending.wait())?;
                output
            }
            None => {
                activation(pp.receive(self.stage.holder(self.shapes.len() - 1), &self.store.device).wait()?)?
            }
        };
        restore_output(&self.chain.blocks, output)
    }

    /// The model's output for what follows the inputs that were given before with this cache, as
    /// [`Chain::predict_cached`](crate::Chain::predict_cached) computes it. All ranks call it together, those of the same pipeline with the same input, and each
    /// with a cache of its own, which holds what belongs to the rank's blocks. The ranks that run the last block get the output, the others none.
    ///
    /// # Errors
    /// If a collective fails, or a block refuses its input.
    pub fn predict_cached(&mut self, input: I, cache: &mut Cache) -> Result<Option<O>> {
        self.with_model_values(|engine| engine.predict_cached_as_it_is(input, cache))
    }

    fn predict_cached_as_it_is(&mut self, input: I, cache: &mut Cache) -> Result<Option<O>> {
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
        found.map(|output| restore_output(&self.chain.blocks, output)).transpose()
    }
}
