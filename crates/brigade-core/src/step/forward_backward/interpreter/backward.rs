//! Backwards, at once or in two halves: the message to the stage before, and the gradients of the parameters.

use std::time::Instant;

use brigade_kernels::cast;
use brigade_plan::{Action, Pass, StageSchedule, StageTask};
use brigade_sorted::SortedMap;
use burn::tensor::{FloatDType, Tensor};

use super::{Interpreter, PassMode};
use crate::dist::Message;
use crate::error::{Error, Result};
use crate::metrics::Activity;
use crate::model::activation::{Part, Parts};
use crate::nn::with_data_group;
use crate::sharding::zero::ReduceEvery;
use crate::step::forward_backward::SECOND_HALVES_DIFFER;
use crate::step::forward_backward::second_half::BlockGradients;
use crate::step::forward_backward::tape::Upstream;
use crate::step::forward_backward::tied_gradients::TiedGradients;

/// What of a backward is done now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Halves {
    Both,
    Input,
}

/// A block between the halves of its backward.
pub(super) struct Deferred {
    block: usize,
    pub found: BlockGradients,
}

impl Interpreter<'_> {
    /// Runs a chunk backward and makes the message to the stage before ready. With [`Halves::Input`] the second halves of
    /// blocks that have them wait for [`backward_weights`](Self::backward_weights), and what comes after one that waits does as well, because gradients are
    /// added in the order of micro-batches. The last block's graph may continue into the loss, so only what that block offers waits.
    pub(super) fn backward(
        &mut self,
        task: StageTask,
        halves: Halves,
        schedule: &StageSchedule,
    ) -> Result<()> {
        let place = self.stage.virtual_stage(task.chunk);
        let Some(mut tape) = self.state.tapes.remove(&task) else {
            return Err(Error::Model(format!("{task:?} has no forward before its backward")));
        };
        let (mut upstream, mut tied) = match place == self.stage.last_virtual_stage() {
            true => (Upstream::new(), TiedGradients::new()),
            false => {
                let message = self.incoming((Pass::Backward, place, task.micro_batch))?;
                let end = self.stage.blocks(task.chunk).end;
                self.check_gradients(&message, &tape.output_shapes, end - 1)?;
                TiedGradients::receive(gradients(message), self.store.shared_across(end))
            }
        };
        let divisor = self.state.total.divisor(self.clock)?;
        let mut deferred = Vec::new();
        for index in self.stage.blocks(task.chunk).rev() {
            self.before_block(index, schedule)?;
            let (started, waited) = (Instant::now(), self.clock.comm_wait());
            let may_wait = halves == Halves::Input && index >= self.first_trained && !self.is_tied(index);
            let defers = may_wait && index + 1 < self.blocks.len() && !self.state.mixed.contains(&index);
            let (block, data) = (&self.blocks[index], &self.store.groups.data);
            let run = || match index < self.first_trained {
                true => {
                    tape.skip(block);
                    Ok(BlockGradients::default())
                }
                false => tape.backward(block, divisor, defers, &mut upstream),
            };
            let found = with_data_group(data, self.clock, run)??;
            if found.was_mixed {
                self.state.mixed.insert(index);
            }
            if may_wait {
                self.check_leaves(index, found.later.is_some())?;
            }
            let earlier_waits = self.state.deferred.values().flatten().any(|earlier| earlier.block == index);
            if may_wait && (found.later.is_some() || earlier_waits) {
                deferred.push(Deferred { block: index, found });
            } else {
                // A micro-batch of another rank may leave something where this one leaves nothing: sums over ranks begin at the same place.
                self.add_gradients(task, index, found, &mut tied, !may_wait)?;
            }
            self.clock.wait_for_device(&self.store.device)?;
            let waited = self.clock.comm_wait() - waited;
            self.clock.backward += started.elapsed().saturating_sub(waited);
            let action = match halves {
                Halves::Both => Action::Backward(task),
                Halves::Input => Action::BackwardInput(task),
            };
            self.clock.record(Activity::Block { block: index, action }, Some(started));
            self.after_block(schedule)?;
        }
        if place > 0 {
            let start = self.stage.blocks(task.chunk).start;
            if self.tied_gradients == ReduceEvery::Step {
                let sums = self.state.tied.entry(task.chunk).or_default();
                tied = sums.add(tied, task.micro_batch + 1 == self.batches.count());
            }
            let relayed = tied.send(self.store.shared_across(start));
            upstream.resize(tape.input_shapes.len(), None);
            let upstream = upstream.into_iter().zip(tape.input_shapes).map(gradient_part);
            let message = upstream.chain(relayed).collect();
            self.state.to_send.insert((Pass::Backward, place - 1, task.micro_batch), message);
        }
        if halves == Halves::Input {
            *self.state.second_halves.get_or_insert_default() |= !deferred.is_empty();
            self.state.deferred.insert(task, deferred);
        }
        self.count();
        Ok(())
    }

    /// Where each micro-batch's gradients are summed over ranks when they are added, checks that a block leaves something for its second half always or
    /// never: ranks with other micro-batches would sum in another order. Whether other ranks do the same is checked at the end of the step.
    fn check_leaves(&mut self, block: usize, leaves: bool) -> Result<()> {
        let sums_each = self.store.is_sharded() && self.store.zero.reduces_each_micro_batch();
        if !sums_each || *self.state.leaves.entry(block).or_insert(leaves) == leaves {
            return Ok(());
        }
        Err(Error::Model(format!(
            "block `{}` leaves products for the second half of its backward in some micro-batches and none in others, so {SECOND_HALVES_DIFFER}",
            self.blocks[block].name
        )))
    }

    /// Runs the second halves that a chunk's [`backward`](Self::backward) has left.
    pub(super) fn backward_weights(&mut self, task: StageTask) -> Result<()> {
        let Some(deferred) = self.state.deferred.remove(&task) else {
            return Err(Error::Model(format!(
                "{task:?} has no first half before the second of its backward"
            )));
        };
        let (started, waited) = (Instant::now(), self.clock.comm_wait());
        for Deferred { block, found } in deferred {
            let began = self.clock.now();
            self.add_gradients(task, block, found, &mut TiedGradients::new(), false)?;
            self.clock.wait_for_device(&self.store.device)?;
            self.clock.record(Activity::Block { block, action: Action::BackwardWeights(task) }, began);
        }
        if task.micro_batch + 1 == self.batches.count() {
            self.reduce(task.chunk);
        }
        let waited = self.clock.comm_wait() - waited;
        self.clock.backward += started.elapsed().saturating_sub(waited);
        self.count();
        Ok(())
    }

    /// Whether a block shares a parameter with another one: the gradients of tied weights are sent with the message to the
    /// previous stage, so its second half cannot wait.
    fn is_tied(&self, block: usize) -> bool {
        self.store.by_block[block].iter().any(|unit| self.store.units[*unit].unit.users.len() > 1)
    }

    /// Adds a block's gradients of one micro-batch, all of them, and runs its second half for that. If it `completes` them, the sums over the ranks
    /// begin with the last micro-batch.
    fn add_gradients(
        &mut self,
        task: StageTask,
        block: usize,
        found: BlockGradients,
        tied: &mut TiedGradients,
        completes: bool,
    ) -> Result<()> {
        let BlockGradients { now: mut found, later, .. } = found;
        if let Some(later) = later {
            for (path, (flat, shape)) in later.run(&self.blocks[block].name)?.0 {
                let flat = cast(flat, self.dtype_of(block, &path, &shape)?);
                let sum = match found.remove(&path) {
                    Some(before) => before + flat,
                    None => flat,
                };
                found.insert(path, sum);
            }
        }
        if let PassMode::CheckFinite(check) = &mut self.mode {
            check.gradient(task.micro_batch, block, found.values())?;
        }
        if let PassMode::Train { reduction, completes: is_update } = &mut self.mode {
            let is_last = completes && *is_update && task.micro_batch + 1 == self.batches.count();
            for unit in &self.store.by_block[block] {
                let stored = &self.store.units[*unit];
                if !stored.unit.trainable {
                    continue;
                }
                let sum = tied.accumulate(stored, block, &mut found, &self.store.device);
                if let Some(sum) = sum {
                    reduction.add(*unit, sum, self.clock)?;
                    if is_last {
                        reduction.complete(*unit);
                    }
                }
            }
        }
        Ok(())
    }

    /// The number type that a block's parameter of this path and shape has in forward and backward.
    fn dtype_of(&self, block: usize, path: &str, given: &[usize]) -> Result<FloatDType> {
        let units = self.store.by_block[block].iter().map(|unit| &self.store.units[*unit].unit);
        let known: SortedMap<&str, (&[usize], FloatDType)> = units
            .flat_map(|unit| {
                let users = unit.users.iter().filter(|user| user.block == block);
                users.flat_map(|user| &user.params).filter_map(|(path, target)| {
                    let shape = unit.layout.param(target)?.shape.as_slice();
                    Some((path.as_str(), (shape, self.store.compute(unit).dtype())))
                })
            })
            .collect();
        if let Some((_, dtype)) = known.get(path).filter(|(shape, _)| *shape == given) {
            return Ok(*dtype);
        }
        let known: SortedMap<&str, &[usize]> =
            known.into_iter().map(|(path, (shape, _))| (path, shape)).collect();
        Err(Error::Model(format!(
            "block `{}` gives a gradient {given:?} for `{path}` in the second half of its backward; its parameters are {known:?}",
            self.blocks[block].name
        )))
    }

    /// Checks that the gradients of a block's output have the output's shapes.
    fn check_gradients(&self, message: &Message, shapes: &[Vec<usize>], block: usize) -> Result<()> {
        let fits = |(part, shape): (&Option<Part>, &Vec<usize>)| match part {
            Some(Part::Float(_, given)) => given == shape,
            Some(Part::Int(..)) => false,
            None => true,
        };
        if message.len() >= shapes.len() && message.iter().zip(shapes).all(fits) {
            return Ok(());
        }
        let given = Parts(message.iter().flatten().cloned().collect()).describe();
        Err(Error::Activation {
            block: format!("{}, going backward", self.blocks[block].name),
            expected: format!("the gradient of its output of shapes {shapes:?}"),
            given,
        })
    }

    /// Starts the sums over the ranks that did not begin within the chunk's last backward.
    pub(super) fn reduce(&mut self, chunk: usize) {
        if let PassMode::Train { reduction, completes: true } = &mut self.mode {
            for block in self.stage.blocks(chunk).rev() {
                let owned = |unit: &&usize| self.store.units[**unit].unit.owner_block == block;
                for unit in self.store.by_block[block].iter().filter(owned) {
                    reduction.complete(*unit);
                }
            }
        }
    }
}

fn gradients(message: Message) -> Upstream {
    let gradient = |part| match part {
        Some(Part::Float(flat, _)) => Some(flat),
        _ => None,
    };
    message.into_iter().map(gradient).collect()
}

fn gradient_part((gradient, shape): (Option<Tensor<1>>, Vec<usize>)) -> Option<Part> {
    gradient.map(|flat| Part::Float(flat, shape))
}
