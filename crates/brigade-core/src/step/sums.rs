//! What all ranks learn together from a step's pass: the reduced gradients and their norm, the loss, the metrics.

use std::time::Instant;

use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::{Mesh, PP};
use crate::error::{Error, Result};
use crate::exact_sum::{ExactSum, WORDS};
use crate::metrics::{Activity, Clock};
use crate::model::batch::TargetSum;
use crate::optim::{sum_of_squares, tile};
use crate::step::engine::{Sums, UntypedEngine};
use crate::step::forward_backward::SECOND_HALVES_DIFFER;
use crate::step::forward_backward::micro_batches::MicroBatches;
use crate::step::gradients::accumulation::PairwiseSum;
use crate::step::gradients::hook;
use crate::step::gradients::metric_sums::MetricSums;
use crate::step::window::Window;

impl UntypedEngine {
    /// Forward and backward over this rank's micro-batches, and the sums over all ranks: the first two parts of the current step.
    /// The learning rate is only compared with the others'.
    pub(crate) fn sums(
        &mut self,
        batches: &mut dyn MicroBatches,
        learning_rate: f64,
        clock: &mut Clock,
    ) -> Result<Sums> {
        self.pass(batches, true, clock)?;
        let window = std::mem::take(&mut self.window);
        let began = clock.now();
        let mut gradients = self.reduction.finish(clock)?;
        clock.wait_for_device(&self.store.device)?;
        clock.record(Activity::Phase("reduce gradients"), began);
        self.memory.gradients = self.reduction.bytes();
        let mut is_divided = self.settings.strategy.period() == 1;
        if !self.gradient_hooks.is_empty() {
            self.run_gradient_hooks(&mut gradients, &window, is_divided, clock)?;
            is_divided = true;
        }

        let started = Instant::now();
        let at_once = tile(&self.store.device);
        let found =
            gradients.iter().enumerate().filter_map(|(unit, gradient)| Some((unit, gradient.as_ref()?)));
        let counted: Vec<_> = found.map(|(unit, gradient)| self.counted_once(unit, gradient)).collect();
        let (norm, read) = sum_of_squares(&counted, at_once, window.numbers())?;
        clock.optimizer += started.elapsed();

        let count = self.agreed_count(window.count, clock)?;
        let mut words = window.targets.to_words();
        words.push(learning_rate);
        let (losses, of_metrics) = window.found(&read);
        words.extend(losses);
        words.resize(TargetSum::WORDS + 1 + count, 0.0);
        let mut metrics = MetricSums::new(self.objective.names.len());
        metrics.add(of_metrics);
        words.extend(metrics.words());
        words.push(window.second_halves());
        words.extend(norm.to_words());
        let pending = self.store.groups.world.all_gather_scalars(words);
        let all = clock.waiting("all_gather_scalars", || pending.wait())?;
        clock.record(Activity::Phase("gradient norm"), Some(started));
        let mut norm = ExactSum::default();
        all.iter().for_each(|words| norm.merge(&ExactSum::from_words(&words[words.len() - WORDS..])));
        self.check_learning_rates(&all)?;
        self.check_second_halves(&all)?;
        let (targets, loss) = self.agreed_loss(&all, count);
        let target_weight = targets.weight();
        let last = self.last_stage(self.store.groups.mesh(), &all);
        let metrics = self.agreed_metrics(&last, 1 + count, target_weight);
        let some = |is_divided: bool| (!is_divided && target_weight != 0.0).then_some(target_weight);
        let (divisor, of_loss) = (some(is_divided), some(self.settings.strategy.period() == 1));
        let (grad_norm, loss) = (norm.value().sqrt() / divisor.unwrap_or(1.0), loss / of_loss.unwrap_or(1.0));
        let (targets, in_flight) = (targets.count, window.in_flight);
        let running = window.running.into_values().collect();
        Ok(Sums { gradients, grad_norm, loss, metrics, targets, target_weight, divisor, running, in_flight })
    }

    /// Micro-batches of a rank in this update: servers, which have none, ask the others.
    fn agreed_count(&self, own: usize, clock: &mut Clock) -> Result<usize> {
        if self.store.servers == 0 {
            return Ok(own);
        }
        let pending = self.store.groups.data.all_gather_scalars(vec![own as f64]);
        let all = clock.waiting("all_gather_scalars", || pending.wait())?;
        Ok(all.iter().map(|count| count[0] as usize).max().unwrap_or(own))
    }

    /// The part of a gradient whose squares this rank counts: what other ranks hold as well, one counts.
    fn counted_once(&self, unit: usize, gradient: &Tensor<1>) -> Tensor<1> {
        let stored = &self.store.units[unit];
        let (own, counted) = (&stored.own, &stored.counted);
        gradient.clone().slice(counted.start - own.start..counted.end - own.start)
    }

    /// Gives what the reduction made to the gradient hooks, divided by the weight of the targets.
    fn run_gradient_hooks(
        &self,
        gradients: &mut [Option<Tensor<1>>],
        window: &Window,
        is_divided: bool,
        clock: &mut Clock,
    ) -> Result<()> {
        let weight = match is_divided {
            true => 1.0,
            false => {
                let pending = self.store.groups.world.all_gather_scalars(window.targets.to_words());
                let all = clock.waiting("all_gather_scalars", || pending.wait())?;
                let last = self.last_stage(self.store.groups.mesh(), &all);
                TargetSum::over_ranks(last.into_iter().map(|(_, words)| words)).weight()
            }
        };
        let started = Instant::now();
        for (stored, gradient) in self.store.units.iter().zip(gradients) {
            let Some(found) = gradient.take() else { continue };
            let found = if weight == 1.0 || weight == 0.0 { found } else { found.div_scalar(weight) };
            let block = self.chain.blocks[stored.unit.owner_block].name.as_str();
            *gradient = Some(hook::run(
                &self.gradient_hooks,
                (self.worker_seed(), self.step),
                (stored, block),
                found,
            )?);
        }
        clock.optimizer += started.elapsed();
        Ok(())
    }

    /// Checks that all ranks were given the same learning rate.
    fn check_learning_rates(&self, all: &[Vec<f64>]) -> Result<()> {
        let rates = || all.iter().map(|words| words[TargetSum::WORDS]);
        let (first, is_allowed) = (all[0][TargetSum::WORDS], |rate: f64| rate.is_finite() && rate >= 0.0);
        match rates().enumerate().find(|(_, rate)| rate.to_bits() != first.to_bits() || !is_allowed(*rate)) {
            None => Ok(()),
            Some((place, rate)) => {
                let [rank, of_first] = [place, 0].map(|place| self.store.groups.rank_of_all(place));
                let first = if place == 0 { String::new() } else { format!("; rank {of_first} has {first}") };
                Err(Error::Setting {
                    option: "the learning rate",
                    given: format!("{rate} (step {}, rank {rank})", self.step),
                    allowed: format!("it must be a number of at least 0, and the same on all ranks{first}"),
                })
            }
        }
    }

    /// Checks that ranks of a stage began the sums of their gradients in the same order, which what they left for second halves decides.
    fn check_second_halves(&self, all: &[Vec<f64>]) -> Result<()> {
        let mesh = self.store.groups.mesh();
        let mut first_of_stage = SortedMap::new();
        for (rank, words) in all.iter().enumerate() {
            let left = words[words.len() - WORDS - 1].to_bits();
            let (first, of_first) = *first_of_stage.entry(mesh.coordinate(rank, PP)).or_insert((rank, left));
            if left != of_first {
                let [first, rank] = [first, rank].map(|place| self.store.groups.rank_of_all(place));
                return Err(Error::Model(format!(
                    "ranks {first} and {rank}, which have the same stage, differ in which blocks leave products for the second half of their backward, so \
                     {SECOND_HALVES_DIFFER}"
                )));
            }
        }
        Ok(())
    }

    /// The valid targets and the sum of the losses of the global batch, from what each rank of the last stage has.
    fn agreed_loss(&self, all: &[Vec<f64>], count: usize) -> (TargetSum, f64) {
        let (mesh, mut numbered) = (self.store.groups.mesh(), Vec::new());
        let last = self.last_stage(mesh, all);
        for (rank, words) in &last {
            for k in 0..count {
                let number = self.settings.zero.micro_batch_number(mesh, *rank, k, count);
                numbered.push((number, words[TargetSum::WORDS + 1 + k] as f32));
            }
        }
        numbered.sort_by_key(|(number, _)| *number);
        let mut loss = PairwiseSum::new();
        numbered.into_iter().for_each(|(_, share)| loss.push(share, |a, b| a + b));
        let targets = TargetSum::over_ranks(last.into_iter().map(|(_, words)| words));
        (targets, f64::from(loss.finish(|a, b| a + b).unwrap_or(0.0)))
    }

    /// The means of the model's metrics, from what each rank of the last stage has behind its targets and `count` other numbers.
    pub(super) fn agreed_metrics(
        &self,
        last: &[(usize, &Vec<f64>)],
        count: usize,
        target_weight: f64,
    ) -> SortedMap<String, f64> {
        let mut sums = MetricSums::new(self.objective.names.len());
        let start = TargetSum::WORDS + count;
        let range = start..start + MetricSums::words_of(self.objective.names.len());
        last.iter().for_each(|(_, words)| sums.merge(&words[range.clone()]));
        sums.means(self.objective.names.iter().map(String::as_str), target_weight)
    }

    /// The ranks of a mesh that hold the model's last block, with their words, in the order of their place along the data axes.
    pub(super) fn last_stage<'w>(&self, mesh: &Mesh, all: &'w [Vec<f64>]) -> Vec<(usize, &'w Vec<f64>)> {
        let stage = self.stage.holder(self.shapes.len() - 1);
        all.iter().enumerate().filter(|(rank, _)| mesh.coordinate(*rank, PP) == stage).collect()
    }
}
