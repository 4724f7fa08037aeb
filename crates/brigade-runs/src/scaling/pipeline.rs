//! What a pipeline's schedule leaves idle.

use brigade_plan::PipelineScheduleKind;
use brigade_plan::formula::bubble_fraction;

use crate::run::Run;

/// The schedule of a run's pipeline, as the configuration and the mesh say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunPipeline {
    pub kind: PipelineScheduleKind,
    pub stages: usize,
    /// Parts of the model on each rank.
    pub chunks: usize,
    /// Micro-batches of a rank in a step.
    pub micro_batches: usize,
    /// Samples of each.
    pub micro_batch_size: usize,
}

impl RunPipeline {
    /// Of a run of several stages.
    pub fn of(run: &Run) -> Option<Self> {
        let number = |name: &str| run.setting(name)?.parse::<usize>().ok();
        let mesh = run.mesh();
        let stages = mesh.iter().find(|(axis, _)| axis == "pp").map_or(1, |(_, size)| *size);
        let kind = run.setting("pipeline.schedule").and_then(|name| name.trim_matches('"').parse().ok());
        (stages > 1).then_some(())?;
        Some(Self {
            kind: kind.unwrap_or_default(),
            stages,
            chunks: number("pipeline.chunks").unwrap_or(1).max(1),
            micro_batches: micro_batches(run)? as usize,
            micro_batch_size: number("train.micro_batch_size")?,
        })
    }

    /// What a rank is idle while the pipeline fills and drains, over what it computes, with as many times the micro-batches. All stages compute as long.
    pub fn idle_over_busy(&self, times: usize) -> f64 {
        let idle = bubble_fraction(self.kind, self.stages, self.chunks, times * self.micro_batches);
        idle / (1.0 - idle)
    }
}

/// Micro-batches of a rank in a step, as the configuration and the mesh say.
pub fn micro_batches(run: &Run) -> Option<f64> {
    let number = |name: &str| run.setting(name)?.parse::<f64>().ok();
    let data_ranks: usize =
        run.mesh().iter().filter(|(axis, _)| axis != "pp").map(|(_, size)| size).product();
    let each = number("train.global_batch_size")? / number("train.micro_batch_size")?;
    Some((each / data_ranks.max(1) as f64).max(1.0))
}
