//! One block forward in training.

use brigade_kernels::cast;
use burn::tensor::FloatDType;

use super::{Interpreter, PassMode};
use crate::error::{Error, Result};
use crate::model::activation::{Parts, bytes};
use crate::model::block::NamedBlock;
use crate::nn::with_data_group;
use crate::step::forward_backward::check_blocks::CheckBlocks;
use crate::step::forward_backward::tape::{Place, Tape, graph_input, inner, leaves, run_without_graph};

impl Interpreter<'_> {
    /// Runs a block on a micro-batch, and records it on the tape. `input` is as it is in the block's graph.
    pub(super) fn train_block(
        &mut self,
        index: usize,
        input: Parts,
        micro_batch: usize,
        at: Place,
        tape: &mut Tape,
    ) -> Result<Parts> {
        let has_running = !self.store.running[index].is_empty();
        if has_running {
            self.prepare_running(index, &input, at)?;
        }
        let again = self.recompute.applies_to(index) || self.must_recompute();
        let to_compare = self.checks(micro_batch).then(|| graph_input(&input, index > self.first_trained));
        let (blocks, data) = (&*self.blocks, self.store.groups.data.clone());
        let output = with_data_group(&data, self.clock, || tape.forward(&blocks[index], input, again, at))??;
        if has_running && matches!(self.mode, PassMode::Train { .. }) {
            let terms = self.running.terms(index, &self.blocks[index], self.store);
            self.state.running.entry(micro_batch).or_default().extend(terms);
        }
        if let Some(input) = to_compare {
            if has_running {
                self.prepare_running(index, &input, at)?;
            }
            with_data_group(&data, self.clock, || check(&self.blocks[index], input, &output, at))??;
        }
        Ok(output)
    }

    fn prepare_running(&mut self, index: usize, input: &Parts, at: Place) -> Result<()> {
        let in_f32 = || leaves(&inner(input).map_floats(|flat| cast(flat, FloatDType::F32)));
        let run = |block: &NamedBlock| run_without_graph(block, in_f32(), at);
        self.running.prepare(index, &mut self.blocks[index], self.store, run)
    }

    /// Whether blocks are run twice on a micro-batch, and compared.
    fn checks(&self, micro_batch: usize) -> bool {
        match self.checks {
            CheckBlocks::Never => false,
            CheckBlocks::First => self.before + micro_batch == 0,
            CheckBlocks::Always => true,
        }
    }
}

/// Checks that a block gives the same output again.
fn check(block: &NamedBlock, input: Parts, output: &Parts, at: Place) -> Result<()> {
    let again = run_without_graph(block, input, at)?;
    if (again.describe(), bytes(again.clone())?) == (output.describe(), bytes(output.clone())?) {
        return Ok(());
    }
    Err(Error::Model(format!(
        "block `{}` gives a different output when it is run again on the same input (step {}, micro-batch {}): its forward must be a function of its input, its parameters and its context. Random numbers must come from Burn's generator, which is seeded before each forward, or from the seed in the \
        context",
        block.name, at.step, at.micro_batch
    )))
}
