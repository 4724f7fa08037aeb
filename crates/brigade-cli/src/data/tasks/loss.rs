//! What is added to the loss of a language model.

use anyhow::bail;
use brigade::models::LossOptions;

use super::{TaskName, TaskSection};

impl TaskSection {
    /// What is added to the loss in training.
    pub fn loss(&self) -> LossOptions {
        LossOptions { label_smoothing: self.label_smoothing, z_loss: self.z_loss }
    }

    /// Checks what is added to the loss.
    pub fn check_loss(&self) -> anyhow::Result<()> {
        let LossOptions { label_smoothing, z_loss } = self.loss();
        if !(0.0..1.0).contains(&label_smoothing) {
            bail!(
                "task.label_smoothing = {label_smoothing} is not possible: it must be at least 0 and below 1"
            );
        }
        if !(z_loss.is_finite() && z_loss >= 0.0) {
            bail!("task.z_loss = {z_loss} is not possible: it must be a number of at least 0");
        }
        let given = [("task.label_smoothing", label_smoothing), ("task.z_loss", z_loss)];
        let given = given.into_iter().find(|(_, value)| *value != 0.0);
        if let Some((setting, value)) = given
            && !matches!(self.name, TaskName::Auto | TaskName::CausalLm)
        {
            bail!(
                "{setting} = {value} is not possible for task.name (--task) = {:?}: it is for \"causal-lm\"; leave it at 0",
                self.name.as_str()
            );
        }
        Ok(())
    }
}
