//! Models that are run as they are.

use anyhow::bail;
use brigade_core::{Activation, Engine, Model};
use brigade_report::counted;

use crate::dataset::Dataset;
use crate::run::Session;
use crate::training_setup::ValidationReport;
use crate::world::check_same;

impl Session {
    /// Loss and metrics of a model over data, without training it: all ranks call it, and each gets them. They have the same bits on every mesh, for the same
    /// `train.micro_batch_size`. At most `train.validation_samples` samples are read, or all if that is 0.
    ///
    /// # Errors
    /// If the model cannot be spread over the ranks as the settings say, data cannot be read or there is none, or a rank failed.
    pub fn evaluate<I, O, T, V>(&self, model: Model<I, O, T>, data: &V) -> anyhow::Result<ValidationReport>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone + 'static,
        V: Dataset<Input = I, Target = T>,
    {
        check_same(self.group(), "dataset", &counted(data.len(), "sample"))?;
        if data.len() == 0 {
            bail!("there are no samples to evaluate on");
        }
        if !self.has_run.get() {
            self.check_memory_of_parameters(&self.plan, model.chain());
        }
        let mut engine = self.engine(model)?;
        self.validate(&mut engine, data, 0)
    }

    /// The engine of a model that is not trained.
    pub(crate) fn engine<I, O, T>(&self, model: Model<I, O, T>) -> anyhow::Result<Engine<I, O, T>>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone + 'static,
    {
        // During a run there is something to lose.
        if !self.has_run.get() {
            self.mark_preparing();
        }
        self.heartbeat.send("making the model");
        let mut settings = self.plan.engine.clone();
        let (mut plan, costs) = (self.plan.clone(), model.chain().costs());
        if self.has_run.get() && plan.engine.split.iter().sum::<usize>() != costs.len() {
            // They are those of the model that is trained.
            plan.engine.split.clear();
        }
        settings.split = plan.split(&costs)?;
        settings.inference = true;
        Ok(Engine::new(model, self.seed(), &self.plan.optimizer, self.groups(), settings)?)
    }
}
