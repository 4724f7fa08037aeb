//! What a run says of itself: before it begins, and instead of beginning.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use brigade_core::plan::{Configuration, Footprint, ranges};
use brigade_core::{Activation, Chain, EngineSettings, Float, Recompute};
use brigade_data::Sampler;

use crate::dataset::Dataset;
use crate::error::DryRun;
use crate::run::Session;
use crate::settings::{Backend, Plan};

impl Session {
    /// In a dry run, prints the resolved configuration, the mesh and the model's blocks, and fails
    /// with an error that ends the body; else it does nothing. [`Session::train`] begins with it; a
    /// body calls it before work that a dry run is to leave out.
    ///
    /// # Errors
    /// In a dry run.
    pub fn describe<I: Activation, O: Activation>(&self, chain: &Chain<I, O>) -> anyhow::Result<()> {
        if !self.dry {
            return Ok(());
        }
        say(&self.description(&self.config, chain));
        Err(DryRun.into())
    }

    /// Tells what is about to be trained, and how it is spread.
    pub(crate) fn introduce<I: Activation, O: Activation, D: Dataset>(
        &self,
        chain: &Chain<I, O>,
        train: &Arc<D>,
        sampler: &Sampler,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let (plan, settings) = (&self.plan, &self.settings.train);
        lines.push(format!("{}; mesh pp {} x dp {}", self.world, plan.mesh.pp, plan.mesh.dp));
        lines.push(format!(
            "{} parameters in {} blocks; {} samples, {:.2} epochs in {} steps",
            chain.parameters(),
            chain.parameters_by_block().len(),
            train.len(),
            sampler.epochs_after(settings.steps),
            settings.steps
        ));
        lines.push(format!(
            "global batch {} = dp {} x {} micro-batches of {}; learning rate {} ({})",
            settings.global_batch_size,
            plan.mesh.dp,
            plan.accumulation,
            settings.micro_batch_size,
            plan.learning_rate,
            plan.learning_rate_reason
        ));
        if plan.schedule.warmup_steps > settings.steps {
            lines.push(format!(
                "note: the warm-up of {} steps is longer than the run of {}; the peak learning rate is never reached",
                plan.schedule.warmup_steps, settings.steps
            ));
        }
        let on_cpu = self.settings.compute.backend == Backend::Cpu;
        if let Some(why) = same_bits_need(plan).filter(|_| on_cpu) {
            lines.push(format!(
                "note: weights are the same bits on another number of data-parallel ranks only where {why}"
            ));
        }
        lines.extend(self.spread(chain));
        lines
    }

    /// What a rank of each stage keeps and sends, as arithmetic.
    fn footprint<I: Activation, O: Activation>(&self, chain: &Chain<I, O>) -> anyhow::Result<Footprint> {
        let plan = &self.plan;
        let EngineSettings { zero, schedule, chunks, recompute, precision, offload, .. } = &plan.engine;
        Ok(Footprint::of(&Configuration {
            units: chain.units()?,
            cuts: self.cuts.clone(),
            insides: self.insides.clone(),
            pp: plan.mesh.pp,
            dp: plan.mesh.dp,
            split: plan.split(&chain.costs())?,
            schedule: *schedule,
            chunks: *chunks,
            micro_batches: plan.accumulation,
            zero_stage: zero.stage,
            release: zero.release(plan.mesh.pp),
            prefetch: zero.prefetch,
            reduce_each_micro_batch: zero.reduces_each_micro_batch(),
            recompute_every: match recompute {
                Recompute::None => 0,
                Recompute::Every(k) => *k,
            },
            compute_bytes: precision.compute.bytes(),
            reduce_bytes: precision.reduce.bytes(),
            offload: offload.is_some(),
            optimizer_bytes: self.settings.optimizer.state_bytes(),
        })?)
    }

    /// How the model is spread: which blocks each stage holds, and what is sharded.
    fn spread<I: Activation, O: Activation>(&self, chain: &Chain<I, O>) -> Vec<String> {
        let plan = &self.plan;
        let mut lines = Vec::new();
        if let (true, Ok(split)) = (plan.mesh.pp * plan.engine.chunks > 1, plan.split(&chain.costs())) {
            let blocks = chain.parameters_by_block();
            let names = ranges(&split).into_iter().map(|range| match range.len() {
                1 => blocks[range.start].0.clone(),
                _ => format!("{} to {}", blocks[range.start].0, blocks[range.end - 1].0),
            });
            let names: Vec<_> = names.collect();
            lines.push(format!(
                "pipeline {}: {} stages, blocks {split:?}: {}",
                plan.engine.schedule,
                plan.mesh.pp,
                names.join(" | ")
            ));
        }
        if plan.engine.zero.stage > 0 {
            let what = [
                "",
                "optimizer state",
                "optimizer state and gradients",
                "optimizer state, gradients and parameters",
            ];
            let what = what[usize::from(plan.engine.zero.stage.min(3))];
            lines.push(format!("ZeRO-{}: {what} in {} shards", plan.engine.zero.stage, plan.mesh.dp));
        }
        lines
    }

    /// The resolved configuration, the mesh, and the parameters of each block.
    fn description<I: Activation, O: Activation>(&self, config: &str, chain: &Chain<I, O>) -> String {
        let plan = &self.plan;
        let mut text = format!("{}\n", config.trim_end());
        let _ = writeln!(text, "\n# world: {}", self.world);
        let _ =
            writeln!(text, "# mesh: pp {} x dp {} = {} ranks", plan.mesh.pp, plan.mesh.dp, plan.mesh.world());
        let _ = writeln!(text, "# each rank adds up {} micro-batches a step", plan.accumulation);
        let _ = writeln!(text, "# learning rate: {} ({})", plan.learning_rate, plan.learning_rate_reason);
        for line in self.spread(chain) {
            let _ = writeln!(text, "# {line}");
        }
        match self.footprint(chain) {
            Ok(footprint) => {
                let _ = writeln!(
                    text,
                    "# bytes of each rank at most (activations are those between blocks), and what it sends in a step:"
                );
                for line in footprint.render().lines() {
                    let _ = writeln!(text, "#   {line}");
                }
            }
            Err(error) => {
                let _ = writeln!(text, "# bytes of each rank: unknown, {error}");
            }
        }
        for (name, parameters) in chain.parameters_by_block() {
            let _ = writeln!(text, "# block {name:<16} {parameters:>12} parameters");
        }
        let _ = writeln!(text, "# all   {:<16} {:>12} parameters", "", chain.parameters());
        text
    }
}

/// What must be for the weights to be the same on another number of data-parallel ranks; none if it is.
fn same_bits_need(plan: &Plan) -> Option<&'static str> {
    let (dp, each) = (plan.mesh.dp, plan.engine.zero.reduces_each_micro_batch());
    match () {
        () if dp == 1 => None,
        () if plan.engine.precision.reduce != Float::F32 => {
            Some("sums between ranks are fp32 (compute.reduce_dtype = \"f32\")")
        }
        () if each && !dp.is_power_of_two() && plan.accumulation > 1 => {
            Some("the number of data-parallel ranks is a power of two")
        }
        () if !each && !plan.accumulation.is_power_of_two() => {
            Some("each rank's micro-batches are a power of two")
        }
        () => None,
    }
}

/// Prints; a reader that has gone away, as `head` does, is no reason to end a run.
pub(crate) fn say(text: &str) {
    drop(std::io::stdout().write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn what_gives_other_bits_is_said() {
        let need = |dp: usize, batch: usize, stage: u8, reduce_dtype: Float| {
            let mut settings = Settings::default();
            (settings.train.micro_batch_size, settings.train.global_batch_size) = (1, batch);
            settings.zero.stage = stage;
            settings.compute.reduce_dtype = reduce_dtype;
            same_bits_need(&settings.plan(dp, 1).unwrap())
        };
        for stage in 0..4 {
            assert_eq!(need(1, 3, stage, Float::Bf16), None, "nothing is summed between ranks");
            assert_eq!(need(2, 8, stage, Float::F32), None);
            assert!(need(2, 8, stage, Float::Bf16).unwrap().contains("compute.reduce_dtype"));
        }
        assert!(need(2, 6, 0, Float::F32).unwrap().contains("each rank's micro-batches"));
        assert!(need(3, 6, 3, Float::F32).unwrap().contains("number of data-parallel ranks"));
        assert_eq!(need(2, 6, 3, Float::F32), None);
    }
}
