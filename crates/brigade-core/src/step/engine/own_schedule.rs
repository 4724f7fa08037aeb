//! A training schedule that is given as a list of actions.

use std::sync::Arc;

use brigade_plan::Pipeline;

use crate::error::{Error, Result};
use crate::step::engine::UntypedEngine;

impl UntypedEngine {
    /// Trains by a schedule of one's own from now on, in steps of as many micro-batches a rank as it has; steps of another number
    /// go by [`EngineSettings::schedule`](crate::EngineSettings::schedule). All ranks are given the same one. Weights, losses and
    /// norms have the same bits under any schedule.
    ///
    /// # Errors
    /// If it has not the stages, the chunks and the placement of this engine, does not pass [`Pipeline::check`], or has no backward.
    pub fn use_schedule(&mut self, pipeline: &Pipeline) -> Result<()> {
        let wrong = |given: String, allowed: String| {
            Err(Error::Setting { option: "the schedule given to Engine::use_schedule", given, allowed })
        };
        let shape = |(stages, chunks, placement)| {
            format!("stages: {stages}, chunks of blocks on each: {chunks}, placed as {placement:?}")
        };
        let own = (self.stage.stages, self.stage.chunks(), self.stage.placement);
        let given = (pipeline.stages, pipeline.chunks, pipeline.placement());
        if given != own {
            return wrong(shape(given), format!("the engine has {}", shape(own)));
        }
        let given = || match pipeline.micro_batches {
            1 => "1 micro-batch".to_owned(),
            many => format!("{many} micro-batches"),
        };
        if let Err(error) = pipeline.check() {
            return wrong(given(), error.to_string());
        }
        if !pipeline.trains() {
            return wrong(given(), "a schedule of training runs them backward as well".into());
        }
        let schedule = Arc::new(self.stage_schedule(pipeline));
        self.schedules.insert((pipeline.micro_batches, true), schedule);
        Ok(())
    }
}
