//! Where the interpreter gets a rank's micro-batches from.

use std::collections::BTreeMap;

use crate::error::{BoxError, Error, Result};
use crate::model::batch::{Batch, TargetSum};

/// A rank's micro-batches of one pass.
pub(crate) trait MicroBatches<I, T> {
    /// How many there are. In an evaluation other ranks may have more.
    fn count(&self) -> usize;
    /// What the first block takes; asked for once each, on the first stage.
    fn input(&mut self, micro_batch: usize) -> Result<I>;
    /// What the loss takes; asked for once each, on the last stage, after the input if this is the first stage, too.
    fn target(&mut self, micro_batch: usize) -> Result<T>;
}

/// Micro-batches that are all there, and are needed again if the pass is repeated.
pub(crate) struct Given<'a, I, T>(pub &'a [Batch<I, T>]);

impl<I: Clone, T: Clone> MicroBatches<I, T> for Given<'_, I, T> {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn input(&mut self, micro_batch: usize) -> Result<I> {
        Ok(self.0[micro_batch].input.clone())
    }
    fn target(&mut self, micro_batch: usize) -> Result<T> {
        Ok(self.0[micro_batch].target.clone())
    }
}

/// One input without a target, for a pass that asks for no loss.
pub(crate) struct InputAlone<I>(pub Option<I>);

impl<I, T> MicroBatches<I, T> for InputAlone<I> {
    fn count(&self) -> usize {
        1
    }
    fn input(&mut self, _: usize) -> Result<I> {
        self.0.take().ok_or_else(|| Error::Model("the schedule takes one input twice".into()))
    }
    fn target(&mut self, _: usize) -> Result<T> {
        Err(Error::Model("the schedule asks for the target of a prediction".into()))
    }
}

/// Micro-batches that are loaded when they are needed, and dropped after.
pub(crate) struct Loaded<'a, I, T> {
    count: usize,
    load: &'a mut dyn FnMut(usize) -> Result<Batch<I, T>, BoxError>,
    /// Whether this rank computes the loss: then targets wait here from the input's turn on.
    has_loss: bool,
    targets: BTreeMap<usize, T>,
    /// The valid targets of what was loaded for the loss.
    pub valid: TargetSum,
}

impl<'a, I, T> Loaded<'a, I, T> {
    pub(crate) fn new(
        count: usize,
        has_loss: bool,
        load: &'a mut dyn FnMut(usize) -> Result<Batch<I, T>, BoxError>,
    ) -> Self {
        Self { count, load, has_loss, targets: BTreeMap::new(), valid: TargetSum::default() }
    }

    fn load(&mut self, micro_batch: usize) -> Result<Batch<I, T>> {
        let batch = (self.load)(micro_batch).map_err(Error::Load)?;
        if self.has_loss {
            self.valid.add(&batch);
        }
        Ok(batch)
    }
}

impl<I, T> MicroBatches<I, T> for Loaded<'_, I, T> {
    fn count(&self) -> usize {
        self.count
    }

    fn input(&mut self, micro_batch: usize) -> Result<I> {
        let Batch { input, target, .. } = self.load(micro_batch)?;
        if self.has_loss {
            self.targets.insert(micro_batch, target);
        }
        Ok(input)
    }

    fn target(&mut self, micro_batch: usize) -> Result<T> {
        match self.targets.remove(&micro_batch) {
            Some(target) => Ok(target),
            None => Ok(self.load(micro_batch)?.target),
        }
    }
}
