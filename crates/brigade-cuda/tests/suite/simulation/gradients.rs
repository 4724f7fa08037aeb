//! Collectives between data-parallel ranks: sums of gradients, and parameters that are gathered ahead of their use.

use brigade_comm::{DType, OpType, ReduceOp};
use brigade_cuda::{GroupCall, NcclWork};
use brigade_plan::{StageSchedule, StageTask, UnshardStep};

use super::compute_stream::Numbers;
use super::memory_pool::Buffer;
use super::step::{Checked, GRADIENT, Sharding, Step, text};

impl Step<'_> {
    /// Accumulates the gradient of a backward, and starts the reduction when it is due.
    pub fn add(&mut self, block: usize, found: Checked, task: StageTask) -> Result<(), String> {
        if self.replicas > 1 && self.plan.sharding == Sharding::Full {
            if let Some((reduced, work)) = self.reducing.remove(&block) {
                work.synchronize().map_err(text)?;
                self.sum(block, reduced);
            }
            let own = GRADIENT / self.replicas;
            let all = self.over_replicas(|replica| self.gradient(block, task, replica));
            let part = Numbers { first: all.at(own * self.sim.replica), ..all };
            let reduced = self.buffers(&[own], |_| part).remove(0);
            let started = self.collective(OpType::ReduceScatter, &found.0, &reduced.0)?;
            self.reducing.insert(block, (reduced, started));
            return Ok(());
        }
        self.sum(block, found);
        if self.replicas > 1 && task.micro_batch + 1 == self.plan.micro_batches {
            let (sum, _) = self.sums.remove(&block).unwrap();
            let all = (0..self.plan.micro_batches)
                .map(|micro_batch| {
                    self.over_replicas(|replica| {
                        self.gradient(block, StageTask { micro_batch, ..task }, replica)
                    })
                })
                .fold(Numbers { first: 0, step: 0 }, Numbers::plus);
            // For every other block in place.
            let into = if block.is_multiple_of(2) {
                sum.clone()
            } else {
                self.buffers(&[GRADIENT], |_| all).remove(0).0
            };
            let started = self.collective(OpType::AllReduce, &sum, &into)?;
            self.reducing.insert(block, ((into, all), started));
        }
        Ok(())
    }

    /// Adds on the GPU, into new memory.
    pub fn sum(&mut self, block: usize, found: Checked) {
        let sum = match self.sums.remove(&block) {
            None => found,
            Some(sum) => {
                let into = self.buffers(&[found.0.place().elements()], |_| sum.1.plus(found.1));
                self.kernel(format!("sum of block {block}"), &[sum, found], &into);
                into.into_iter().next().unwrap()
            }
        };
        self.sums.insert(block, sum);
    }

    pub fn collective(&self, kind: OpType, from: &Buffer, into: &Buffer) -> Result<NcclWork, String> {
        let memory = Box::new([from.clone(), into.clone()]);
        let (from, into) = (from.place(), into.place());
        let (send, recv, int, sum) = (from.address(), into.address(), DType::I64, ReduceOp::Sum);
        let enqueue = |call: &GroupCall<'_>| {
            // SAFETY: both are held until the operation is done, and are as large as it needs.
            unsafe {
                match kind {
                    OpType::AllGather => call.all_gather(send, recv, from.elements(), int),
                    OpType::ReduceScatter => call.reduce_scatter(send, recv, into.elements(), int, sum),
                    _ => call.all_reduce(send, recv, from.elements(), int, sum),
                }
            }
        };
        let comm_stream = self.sim.dp.as_ref().unwrap();
        comm_stream.start(kind, (DType::I64, from.bytes()), memory, enqueue).map_err(text)
    }

    /// Starts the all-gathers that are due before a block runs. Returns the block's own parameters, if they were gathered.
    pub fn before_block(
        &mut self,
        block: usize,
        schedule: &StageSchedule,
    ) -> Result<Option<Checked>, String> {
        let Some(UnshardStep { unshard, .. }) = schedule.unshard_plan.get(self.turn) else { return Ok(None) };
        for unit in unshard {
            let own = GRADIENT / self.replicas;
            let whole = self.numbers(&[3, *unit as u64]);
            let part = Numbers { first: whole.at(own * self.sim.replica), ..whole };
            if !self.shards.contains_key(unit) {
                let shard = self.buffers(&[own], |_| part);
                self.kernel(format!("parameters of block {unit}"), &[], &shard);
                self.shards.insert(*unit, shard[0].0.clone());
            }
            let into = self.buffers(&[GRADIENT], |_| whole).remove(0).0;
            let started = self.collective(OpType::AllGather, &self.shards[unit], &into)?;
            self.gathering.insert(*unit, (into, started));
        }
        if let Some((whole, work)) = self.gathering.remove(&block) {
            work.synchronize().map_err(text)?;
            self.gathered.insert(block, whole);
        }
        let numbers = self.numbers(&[3, block as u64]);
        Ok(self.gathered.get(&block).map(|whole| (whole.clone(), numbers)))
    }

    pub fn after_block(&mut self, schedule: &StageSchedule) {
        if let Some(UnshardStep { reshard, .. }) = schedule.unshard_plan.get(self.turn) {
            reshard.iter().for_each(|unit| drop(self.gathered.remove(unit)));
        }
        self.turn += 1;
    }
}
