//! Whether ranks can merge a model's running state, found before it trains.

use brigade_kernels::cast;
use brigade_sorted::SortedMap;

use crate::error::Result;
use crate::model::Dtype;
use crate::model::activation::{Activation, Parts, flatten};
use crate::model::block::NamedBlock;
use crate::model::chain::blocks::Blocks;
use crate::model::objective::Model;
use crate::sharding::layout::FlatLayout;
use crate::step::forward_backward::tape::{leaves, run_without_graph};
use crate::step::running_state::Probe;

use super::kind;
use super::run::{PLACE, RunMode, run_block};

impl<I: Activation, O: Activation, T> Model<I, O, T> {
    /// Runs the blocks on an input up to the last one that has running state, on the input's device, and looks how each changes its own, as the first step of
    /// training does. The model itself stays as it is; one block is in memory at a time, as a copy. Of blocks that are alike, one is run.
    ///
    /// # Errors
    /// If ranks cannot merge a block's running state, which the error names, or a block refuses its input.
    pub fn check_running_state(&self, input: I, compute: Dtype) -> Result<()> {
        check_running_state(&self.chain, flatten(input), compute)
    }
}

fn check_running_state(chain: &Blocks, input: Parts, compute: Dtype) -> Result<()> {
    let running = |named: &NamedBlock| {
        let specs = named.block.specs().into_iter().filter(|(_, spec)| spec.running);
        FlatLayout::new(specs.map(|(path, spec)| (path, spec.shape)))
    };
    let layouts: Vec<FlatLayout> = chain.blocks.iter().map(running).collect();
    let Some(last) = layouts.iter().rposition(|layout| !layout.is_empty()) else { return Ok(()) };
    let mut parts = input.map_floats(|flat| cast(flat, compute.dtype()));
    let mut outputs: SortedMap<String, Parts> = SortedMap::new();
    for (named, layout) in chain.blocks.iter().zip(&layouts).take(last + 1) {
        let kind = kind(named, &parts);
        if let Some(output) = outputs.get(&kind) {
            parts = output.clone();
            continue;
        }
        if !layout.is_empty() {
            check(named, layout, &parts)?;
        }
        // As one that is recomputed, a forward leaves no graph.
        let mode = RunMode { again: true, ..RunMode::default() };
        parts = run_block(named, &parts, compute, mode, None)?.output;
        outputs.insert(kind, parts.clone());
    }
    Ok(())
}

fn check(named: &NamedBlock, layout: &FlatLayout, input: &Parts) -> Result<()> {
    let mut run = |block: &NamedBlock| {
        let input = input.map_floats(|flat| cast(flat, Dtype::F32.dtype()));
        run_without_graph(block, leaves(&input), PLACE)
    };
    let mut probe = Probe::of(named, vec![layout], input.device(), false, &mut run);
    let start = probe.state()?;
    probe.learn(&start).map(drop)
}
