//! One pass of all ranks over validation data: losses and metrics only.

use crate::error::Result;
use crate::metrics::Clock;
use crate::model::batch::TargetSum;
use crate::optim::sum_of_squares;
use crate::step::engine::UntypedEngine;
use crate::step::forward_backward::interpreter::{PassMode, TargetWeight};
use crate::step::forward_backward::micro_batches::{Load, Loaded, MicroBatches};
use crate::step::gradients::accumulation::PairwiseSum;
use crate::step::gradients::metric_sums::MetricSums;
use crate::step::report::Evaluation;
use crate::step::window::Window;

impl UntypedEngine {
    /// [`Engine::evaluate`](super::Engine::evaluate) of micro-batches of any type.
    pub(crate) fn evaluate(&mut self, count: usize, load: &mut Load<'_>) -> Result<Evaluation> {
        self.check_synced()?;
        self.with_model_values(|engine| engine.evaluate_as_it_is(count, load))
    }

    fn evaluate_as_it_is(&mut self, count: usize, load: &mut Load<'_>) -> Result<Evaluation> {
        let everyone = self.store.groups.all().clone();
        let counts = everyone.world().all_gather_scalars(vec![count as f64]).wait()?;
        let most = counts.iter().map(|count| count[0] as usize).max().unwrap_or(0);
        let schedule = self.schedule(most, false)?;
        let mut clock = Clock::default();
        let mut batches = Loaded::new(count, self.stage.is_last(), load);
        let state =
            self.run(&mut batches, &schedule, |_| PassMode::Evaluate, TargetWeight::Unasked, 0, &mut clock)?;
        let mut words = batches.targets().to_words();
        let found = Window::of(most, state.losses, state.metrics);
        let (_, read) = sum_of_squares(&[], 1, found.numbers())?;
        let (losses, of_metrics) = found.found(&read);
        words.extend(losses);
        let mut metrics = MetricSums::new(self.objective.names.len());
        metrics.add(of_metrics);
        words.extend(metrics.words());
        let all = everyone.world().all_gather_scalars(words).wait()?;
        let last = self.last_stage(everyone.mesh(), &all);
        let mut sum = PairwiseSum::new();
        for k in 0..most {
            last.iter().for_each(|(_, words)| sum.push(words[TargetSum::WORDS + k], |a, b| a + b));
        }
        let targets = TargetSum::over_ranks(last.iter().map(|(_, words)| *words));
        let (targets, target_weight) = (targets.count, targets.weight());
        let metrics = self.agreed_metrics(&last, most, target_weight);
        let loss = sum.finish(|a, b| a + b).unwrap_or(0.0) / target_weight;
        Ok(Evaluation { loss, metrics, targets, target_weight })
    }
}
