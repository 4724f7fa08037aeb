//! Forwards: the blocks of a chunk, and the loss behind the last one.

use std::time::Instant;

use brigade_kernels::cast;
use brigade_plan::{Action, Pass, StageSchedule, StageTask};
use burn::tensor::Tensor;

use super::{Interpreter, PassMode, activation};
use crate::error::Result;
use crate::metrics::Activity;
use crate::model::Dtype;
use crate::model::activation::{Part, Parts};
use crate::model::objective::widened;
use crate::model::random_state::with_seed;
use crate::sharding::store::compact;
use crate::step::forward_backward::tape::{Tape, graph_input, inner, predict, predict_cached};

/// What stands for the name of a block where the loss draws random numbers.
const LOSS: &str = "(loss)";

/// After the first blocks of a pass, whose device has nothing else to do, it is told to begin with what it was given.
const FLUSHED: usize = 2;

impl Interpreter<'_> {
    /// Runs a chunk forward, with the loss behind the last block, and makes the message to the next stage ready.
    pub(super) fn forward(&mut self, task: StageTask, schedule: &StageSchedule) -> Result<()> {
        let place = self.stage.virtual_stage(task.chunk);
        let takes_part = self.takes_part(task);
        let mut parts = match place {
            _ if !takes_part => Parts::default(),
            0 => self.model_input(task.micro_batch)?,
            _ => activation(self.incoming((Pass::Forward, place, task.micro_batch))?)?,
        };
        let mut tape = Tape::default();
        let at = self.place_of(task.micro_batch);
        for index in self.stage.blocks(task.chunk) {
            self.before_block(index, schedule)?;
            if takes_part {
                let (started, waited) = (Instant::now(), self.clock.comm_wait());
                parts = match &mut self.mode {
                    PassMode::Evaluate | PassMode::Predict(_) => predict(&self.blocks[index], parts, at)?,
                    PassMode::PredictCached(_, cache) => {
                        predict_cached(&self.blocks[index], parts, cache.of(index))?
                    }
                    PassMode::Train { .. } | PassMode::CheckFinite(_) => {
                        let input = graph_input(&parts, index > self.first_trained);
                        self.train_block(index, input, task.micro_batch, at, &mut tape)?
                    }
                };
                if index + 1 < self.blocks.len() || !self.is_read_at_once(&tape) {
                    parts = self.apart_from_buffers(index, parts)?;
                }
                if self.state.flushed < FLUSHED {
                    self.state.flushed += 1;
                    self.store.flush()?;
                }
                if let PassMode::CheckFinite(check) = &mut self.mode {
                    check.output(task.micro_batch, index, &parts)?;
                }
                self.clock.wait_for_device(&self.store.device)?;
                let waited = self.clock.comm_wait() - waited;
                self.clock.forward += started.elapsed().saturating_sub(waited);
                if index + 1 == self.blocks.len() {
                    self.compute_loss(task, &mut tape, &parts)?;
                }
                let action = Action::Forward(task);
                self.clock.record(Activity::Block { block: index, action }, Some(started));
            }
            self.after_block(schedule)?;
        }
        if !takes_part {
            return Ok(());
        }
        if place < self.stage.last_virtual_stage() {
            let message = parts.0.into_iter().map(Some).collect();
            self.state.to_send.insert((Pass::Forward, place + 1, task.micro_batch), message);
        }
        if self.mode.has_backward() {
            self.state.tapes.insert(task, tape);
            let in_flight = self.state.tapes.len() + self.state.deferred.len();
            self.state.most_in_flight = self.state.most_in_flight.max(in_flight);
            self.count();
        }
        Ok(())
    }

    /// Computes the loss, in fp32, from the model's output, where the pass is not for that output alone.
    fn compute_loss(&mut self, task: StageTask, tape: &mut Tape, output: &Parts) -> Result<()> {
        let started = Instant::now();
        let (input, leaves) = match self.mode.has_backward() {
            true => tape.loss_input(output),
            false => (output.clone(), None),
        };
        if let PassMode::Predict(found) = &mut self.mode {
            **found = Some(widened(&input));
            return Ok(());
        }
        let input = self.objective.input(&input);
        if let PassMode::PredictCached(found, _) = &mut self.mode {
            **found = Some(input);
            return Ok(());
        }
        let target = self.batches.target(task.micro_batch)?;
        // A metric's own pass over the output has no graph.
        let apart = self.objective.has_metrics_of_their_own().then(|| (inner(&input), target.clone()));
        let seed = self.place_of(task.micro_batch).context(LOSS).random_seed();
        let last = self.blocks.last().map_or("", |named| &named.name);
        let compute = || self.objective.loss(last, input, target);
        let (loss, mut sums) = with_seed(&self.store.device, seed, compute)?;
        if !matches!(self.mode, PassMode::CheckFinite(_)) {
            if let Some((output, target)) = apart {
                sums.extend(self.objective.metrics(last, &output, &target)?);
            }
            let sums = sums.into_iter().map(|sum| self.number_apart(sum.inner())).collect::<Result<_>>()?;
            self.state.metrics.insert(task.micro_batch, sums);
        }
        self.clock.forward += started.elapsed();
        if let PassMode::Evaluate = self.mode {
            let loss = self.number_apart(loss.inner())?;
            self.state.losses.insert(task.micro_batch, loss);
            return Ok(());
        }
        if let PassMode::CheckFinite(check) = &mut self.mode {
            check.loss(task.micro_batch, self.blocks.len() - 1, &loss)?;
        }
        tape.set_loss(loss.clone(), leaves);
        let divisor = self.state.total.divisor(self.clock)?;
        self.state.losses.insert(task.micro_batch, loss.inner().div_scalar(divisor));
        Ok(())
    }

    fn model_input(&mut self, micro_batch: usize) -> Result<Parts> {
        let parts = self.batches.input(micro_batch)?;
        Ok(match self.store.precision.compute {
            Dtype::F32 => parts,
            compute => parts.map_floats(|flat| cast(flat, compute.dtype())),
        })
    }

    /// Whether the last block's output is read only while that block's parameters are there: by the loss in the forward pass, and by its backward.
    fn is_read_at_once(&self, tape: &Tape) -> bool {
        match self.mode {
            PassMode::Evaluate => true,
            PassMode::Predict(_) | PassMode::PredictCached(..) => false,
            PassMode::Train { .. } | PassMode::CheckFinite(_) => tape.continues_into_loss(),
        }
    }

    /// Copies an output that may view parameters which are about to be emptied in their place.
    fn apart_from_buffers(&self, block: usize, parts: Parts) -> Result<Parts> {
        if !self.store.reshards_block_in_place(block) {
            return Ok(parts);
        }
        let part = |part| match part {
            Part::Float(flat, shape) => Ok(Part::Float(compact(flat)?, shape)),
            int => Ok(int),
        };
        parts.0.into_iter().map(part).collect::<Result<_>>().map(Parts)
    }

    /// The same of a loss or a metric, which may be a parameter itself.
    fn number_apart(&self, number: Tensor<1>) -> Result<Tensor<1>> {
        match self.store.reshards_block_in_place(self.blocks.len() - 1) {
            true => compact(number),
            false => Ok(number),
        }
    }
}
