//! A chain's output without training.

use crate::error::{Error, Result};
use crate::model::activation::{Activation, Parts, flatten, restore};
use crate::model::block::NamedBlock;
use crate::model::cache::Cache;
use crate::model::chain::Chain;
use crate::model::chain::blocks::Blocks;
use crate::model::context::ForwardContext;

impl<I: Activation, O: Activation> Chain<I, O> {
    /// A copy of the chain without autodiff, for inference: [`Chain::predict`] on it records no graph.
    pub fn valid(&self) -> Self {
        Self::of(self.without_autodiff())
    }

    /// Runs all blocks. Burn's layers tell training by the device of their input: give one without autodiff (`Tensor::inner`), or dropout draws and batch norms use the batch.
    ///
    /// # Errors
    /// If a block was given what it does not take.
    pub fn predict(&self, input: I) -> Result<O> {
        restore_output(self.last_name(), self.forward(flatten(input))?)
    }

    /// Runs all blocks on the next positions of the sequences given before with this cache. On a chain with autodiff the cache keeps graphs; call it on
    /// [`valid`](Self::valid).
    ///
    /// # Errors
    /// If a block gets an input that it does not take, or cannot [continue from a cache](crate::Block::forward_cached).
    pub fn predict_cached(&self, input: I, cache: &mut Cache) -> Result<O> {
        restore_output(self.last_name(), self.forward_cached(flatten(input), cache)?)
    }
}

impl Blocks {
    /// A copy without autodiff.
    pub(crate) fn without_autodiff(&self) -> Self {
        let blocks = self.blocks.iter().map(|b| NamedBlock { name: b.name.clone(), block: b.block.valid() });
        Self {
            blocks: blocks.collect(),
            ties: self.ties.clone(),
            source: self.source.clone(),
            loaded: self.loaded.clone(),
            head: self.head,
            is_part: self.is_part,
        }
    }

    fn forward(&self, input: Parts) -> Result<Parts> {
        self.check_whole()?;
        forward_all(&self.blocks, input)
    }

    fn forward_cached(&self, input: Parts, cache: &mut Cache) -> Result<Parts> {
        self.check_whole()?;
        self.blocks.iter().enumerate().try_fold(input, |parts, (index, named)| {
            named.block.forward_cached(parts, &named.name, cache.of(index))
        })
    }
}

pub(crate) fn forward_all(blocks: &[NamedBlock], input: Parts) -> Result<Parts> {
    blocks.iter().try_fold(input, |parts, NamedBlock { name, block }| {
        block.forward(parts, &ForwardContext::inference(name))
    })
}

/// The output of the last block, which has this name, with its type.
pub(crate) fn restore_output<O: Activation>(last: &str, parts: Parts) -> Result<O> {
    let given = parts.describe();
    restore(parts).ok_or_else(|| Error::Activation {
        block: format!("the loss, after `{last}`"),
        expected: O::describe(),
        given,
    })
}
