//! The timeline of some steps of a run.

use brigade_core::{Activation, Span};
use brigade_report::timeline::{TimelineInfo, Track};

use crate::train::trainer::Trainer;

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Before anything is done for the next step.
    pub(crate) fn begin_profiled_step(&mut self) -> anyhow::Result<()> {
        let Some(profile) = &mut self.profile else { return Ok(()) };
        let done = self.progress.step;
        // A round makes several at once.
        let steps = done + 1..=done + self.engine.steps_of_round().unwrap_or(1);
        let records = profile.begin_step(self.session, steps)?;
        self.engine.record_spans(records);
        Ok(())
    }

    /// After a step that was counted; `spans` is what the engine recorded, where the step made an update.
    pub(crate) fn end_profiled_step(&mut self, spans: Option<Vec<Span>>) -> anyhow::Result<()> {
        let Some(mut profile) = self.profile.take() else { return Ok(()) };
        let is_update = !self.is_between_updates();
        if profile.ends_with(self.progress.step, is_update) {
            self.add_threads(&mut profile);
        }
        let info = || self.timeline_info();
        let said = profile.end_step(self.session, self.progress.step, is_update, spans, info)?;
        self.profile = Some(profile);
        said.into_iter().for_each(|text| self.note(&text));
        Ok(())
    }

    /// Where the run ends.
    pub(crate) fn end_profiled_run(&mut self) -> anyhow::Result<()> {
        let Some(mut profile) = self.profile.take() else { return Ok(()) };
        self.add_threads(&mut profile);
        let said = profile.end_run(self.session, self.timeline_info())?;
        said.into_iter().for_each(|text| self.note(&text));
        Ok(())
    }

    fn add_threads(&self, profile: &mut crate::train::trainer::Profile) {
        profile.add_threads(&Track::Checkpoints, &self.saver.threads);
        if let Some(reader) = &self.reader {
            profile.add_threads(&Track::Data, reader.threads());
        }
    }

    fn timeline_info(&self) -> TimelineInfo {
        let plan = &self.session.plan;
        let blocks = self.engine.chain().parameters_by_block();
        TimelineInfo {
            mesh: plan.mesh.axes().iter().map(|axis| (axis.name.to_owned(), axis.size)).collect(),
            blocks: blocks.into_iter().map(|(name, _)| name).collect(),
            split: self.engine.split().to_vec(),
            schedule: plan.engine.schedule.to_string(),
            chunks: plan.engine.chunks,
            micro_batches: plan.gradient_accumulation_steps,
            ..TimelineInfo::default()
        }
    }
}
