//! Whether all ranks train the same model in the same way.

use brigade_core::Blocks;
use brigade_report::counted;

use crate::run::Session;
use crate::settings::RunPlan;
use crate::training::OwnUpdate;
use crate::world::check_same;

impl Session {
    /// Checks that all ranks have made the same model, and bring the same optimizer, groups and learning rates, before they exchange anything of
    /// it. What functions compute, such as a block's forward, is not compared.
    ///
    /// # Errors
    /// On every rank, with the first thing that differs; or if a rank failed.
    pub(super) fn check_same_model(
        &self,
        name: &str,
        plan: &RunPlan,
        blocks: &Blocks,
        update: &OwnUpdate,
        total_steps: u64,
    ) -> anyhow::Result<()> {
        if self.world_size() == 1 {
            return Ok(());
        }
        let mut lines = blocks.describe();
        for group in &plan.engine.groups {
            let kind = if group.frozen {
                "frozen".to_owned()
            } else {
                format!("learning rate x {}", group.learning_rate_factor)
            };
            lines.push(format!("group {}: {kind}, weight decay {:?}", group.pattern, group.weight_decay));
        }
        let trial = plan.optimizer.trial(&brigade_cpu::device())?;
        lines.push(format!("an optimizer that makes {trial:?} of the same values"));
        for step in [0, 1, total_steps / 2, total_steps.saturating_sub(1)] {
            if let Some(factor) = update.learning_rate_factor(step) {
                lines.push(format!("learning rate x {factor} after {}", counted(step as usize, "step")));
            }
        }
        check_same(self.group(), name, &lines.join("\n"))
    }
}
