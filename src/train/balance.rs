//! Balancing pipeline stages by the time that each block takes.

use brigade_core::PP;
use brigade_sorted::SortedMap;

use crate::checkpoint::newest;
use crate::memory::Measurable;
use crate::run::{Session, StartFrom};
use crate::settings::{Balance, RunPlan};

/// Seconds that blocks take for a micro-batch, by name.
pub(super) type BlockSeconds = SortedMap<String, f64>;

impl Session {
    /// The time of each block, where stages are balanced by it: what the run's checkpoint says, if it was measured in the same way, or else the mean over the ranks, which all
    /// measure. All ranks call it, and get the same numbers. Empty where stages are not balanced by time.
    ///
    /// # Errors
    /// If the blocks cannot be run, or a rank failed.
    pub(super) fn block_seconds(
        &self,
        plan: &RunPlan,
        model: &dyn Measurable,
    ) -> anyhow::Result<BlockSeconds> {
        let (group, engine) = (self.group(), &plan.engine);
        if self.settings.pipeline.balance == Balance::Cost || plan.mesh.size(PP) * engine.chunks == 1 {
            return Ok(BlockSeconds::new());
        }
        let blocks = model.blocks().parameters_by_block();
        let names = blocks.iter().map(|(name, _)| name.clone());
        let mut known = vec![f64::NAN; blocks.len()];
        if let Some(saved) = self.saved_block_seconds(plan) {
            known = names.clone().map(|name| saved.get(&name).copied().unwrap_or(f64::NAN)).collect();
        }
        group.broadcast_in_place(&mut known, 0)?;
        if known.iter().any(|seconds| seconds.is_nan()) {
            self.heartbeat.send("measuring the blocks' times");
            let size = self.settings.train.micro_batch_size;
            let own = model.seconds(size, engine.precision.compute, engine.recompute)?;
            let mut all = vec![0.0; own.len() * group.size()];
            all[group.rank() * own.len()..][..own.len()].copy_from_slice(&own);
            group.all_gather_in_place(&mut all)?;
            let ranks = group.size() as f64;
            let mean = |block| all.iter().skip(block).step_by(own.len()).sum::<f64>() / ranks;
            known = (0..own.len()).map(mean).collect();
        }
        Ok(names.zip(known).collect())
    }

    /// On rank 0 of a run that resumes, the times in its newest checkpoint. A checkpoint that cannot be read is reported where
    /// the run is restored from it.
    fn saved_block_seconds(&self, plan: &RunPlan) -> Option<BlockSeconds> {
        if self.rank() != 0 || self.start_from == StartFrom::Scratch {
            return None;
        }
        let (_, description) = newest(&self.settings.checkpoint_location(&self.out)).ok()?.ok()?;
        let is_same = description.block_seconds_of == self.how_blocks_are_measured(plan);
        is_same.then_some(description.block_seconds)
    }

    /// What changes the times of blocks.
    pub(super) fn how_blocks_are_measured(&self, plan: &RunPlan) -> String {
        let (engine, size) = (&plan.engine, self.settings.train.micro_batch_size);
        let frozen = engine.groups.iter().filter(|group| group.frozen).map(|group| group.pattern.as_str());
        let frozen: Vec<&str> = frozen.collect();
        let plain = if self.settings.compute.fused { "" } else { ", by Burn's own operations" };
        format!(
            "{size} samples, {:?}, {:?}, frozen {frozen:?}{plain}",
            engine.precision.compute, engine.recompute
        )
    }
}
