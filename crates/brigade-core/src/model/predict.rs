//! A chain's output without training.

use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::model::activation::{Activation, Parts, flatten, restore};
use crate::model::block::NamedBlock;
use crate::model::cache::Cache;
use crate::model::chain::Chain;
use crate::model::context::ForwardContext;

impl<I: Activation, O: Activation> Chain<I, O> {
    /// A copy of the chain without autodiff, for inference: [`Chain::predict`] on it records no graph.
    pub fn valid(&self) -> Self {
        let blocks = self.blocks.iter().map(|b| NamedBlock { name: b.name.clone(), block: b.block.valid() });
        Self {
            blocks: blocks.collect(),
            ties: self.ties.clone(),
            source: self.source.clone(),
            loaded: self.loaded.clone(),
            is_part: self.is_part,
            types: PhantomData,
        }
    }

    /// Runs all blocks.
    ///
    /// # Errors
    /// If a block was given what it does not take.
    pub fn predict(&self, input: I) -> Result<O> {
        self.check_whole()?;
        let parts = forward_all(&self.blocks, flatten(input))?;
        restore_output(&self.blocks, parts)
    }

    /// Runs all blocks on the next positions of the sequences given before with this cache. On a chain with autodiff the cache keeps graphs; call it on
    /// [`valid`](Self::valid).
    ///
    /// # Errors
    /// If a block gets an input that it does not take, or cannot [continue from a cache](crate::Block::forward_cached).
    pub fn predict_cached(&self, input: I, cache: &mut Cache) -> Result<O> {
        self.check_whole()?;
        let parts = self.blocks.iter().enumerate().try_fold(flatten(input), |parts, (index, named)| {
            named.block.forward_cached(parts, &named.name, cache.of(index))
        })?;
        restore_output(&self.blocks, parts)
    }
}

pub(crate) fn forward_all(blocks: &[NamedBlock], input: Parts) -> Result<Parts> {
    blocks.iter().try_fold(input, |parts, NamedBlock { name, block }| {
        block.forward(parts, &ForwardContext::inference(name))
    })
}

/// The last block's output with its type.
pub(crate) fn restore_output<O: Activation>(blocks: &[NamedBlock], parts: Parts) -> Result<O> {
    let given = parts.describe();
    restore(parts).ok_or_else(|| Error::Activation {
        block: format!("the loss, after `{}`", blocks.last().map_or("", |b| &b.name)),
        expected: O::describe(),
        given,
    })
}
