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
        let is_usual = self.loss() == LossOptions::default();
        if !is_usual && !matches!(self.name, TaskName::Auto | TaskName::CausalLm) {
            bail!(
                "task.label_smoothing = {label_smoothing} with task.z_loss = {z_loss} is not possible for task.name (--task) = {:?}: they are for \
                \"causal-lm\"; leave them at 0",
                self.name.as_str()
            );
        }
        Ok(())
    }
}
