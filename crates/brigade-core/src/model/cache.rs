//! What a model keeps between two predictions, so that the second only computes what is new.

use std::any::Any;

/// What the blocks of a model store about the positions that they have seen: keys and values of attention, say. A prediction with a cache takes the next
/// positions, and returns the model's output for them: see [`Chain::predict_cached`](crate::Chain::predict_cached).
///
/// A new cache is empty. It belongs to one sequence, or to one batch of sequences of the same length; after an error it cannot be used any
/// more.
#[derive(Default)]
pub struct Cache {
    blocks: Vec<BlockCache>,
}

/// What one block stores.
#[derive(Default)]
pub struct BlockCache(Option<Box<dyn Any + Send>>);

impl Cache {
    /// That of a block, by its place in the model.
    pub(crate) fn of(&mut self, block: usize) -> &mut BlockCache {
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, BlockCache::default);
        }
        &mut self.blocks[block]
    }
}

impl BlockCache {
    /// The block's cached value, which is the default at first. A block always asks for the same type.
    pub fn get<T: Default + Send + 'static>(&mut self) -> &mut T {
        if !self.0.as_ref().is_some_and(|kept| kept.is::<T>()) {
            self.0 = Some(Box::new(T::default()));
        }
        match self.0.as_mut().and_then(|kept| kept.downcast_mut()) {
            Some(kept) => kept,
            None => unreachable!("it is of that type now"),
        }
    }
}
