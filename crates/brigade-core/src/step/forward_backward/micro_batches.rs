//! Where the interpreter gets a rank's micro-batches from.

use std::rc::Rc;

use brigade_sorted::SortedMap;

use crate::error::{BoxError, Error, Result};
use crate::model::activation::{Activation, Parts, flatten};
use crate::model::batch::{Batch, TargetSum};
use crate::model::objective::Target;

/// A rank's micro-batches of one pass.
pub(crate) trait MicroBatches {
    /// How many there are. In an evaluation other ranks may have more.
    fn count(&self) -> usize;
    /// What the first block takes; asked for once each in a pass, on the first stage.
    fn input(&mut self, micro_batch: usize) -> Result<Parts>;
    /// What the loss takes; asked for once each in a pass, on the last stage, after the input if this is the first stage, too.
    fn target(&mut self, micro_batch: usize) -> Result<Target>;
    /// The valid targets of those that are there.
    fn targets(&self) -> TargetSum;
}

/// Micro-batches that are all there, and are asked for again if the pass is repeated.
impl<I: Activation + Clone, T: Clone + 'static> MicroBatches for Vec<Batch<I, T>> {
    fn count(&self) -> usize {
        self.len()
    }
    fn input(&mut self, micro_batch: usize) -> Result<Parts> {
        Ok(flatten(self[micro_batch].input.clone()))
    }
    fn target(&mut self, micro_batch: usize) -> Result<Target> {
        Ok(Rc::new(self[micro_batch].target.clone()))
    }
    fn targets(&self) -> TargetSum {
        TargetSum::of(self)
    }
}

/// One input without a target, for a pass that asks for no loss.
pub(crate) struct InputAlone(pub Option<Parts>);

impl MicroBatches for InputAlone {
    fn count(&self) -> usize {
        1
    }
    fn input(&mut self, _: usize) -> Result<Parts> {
        self.0.take().ok_or_else(|| Error::Model("the schedule takes one input twice".into()))
    }
    fn target(&mut self, _: usize) -> Result<Target> {
        Err(Error::Model("the schedule asks for the target of a prediction".into()))
    }
    fn targets(&self) -> TargetSum {
        TargetSum::default()
    }
}

/// A micro-batch whose types are erased.
pub(crate) struct UntypedBatch {
    input: Parts,
    target: Target,
    valid: TargetSum,
}

impl UntypedBatch {
    pub(crate) fn of<I: Activation, T: 'static>(batch: Batch<I, T>) -> Self {
        let valid = TargetSum::of(std::slice::from_ref(&batch));
        Self { input: flatten(batch.input), target: Rc::new(batch.target), valid }
    }
}

/// Makes the micro-batch of a number.
pub(crate) type Load<'a> = dyn FnMut(usize) -> Result<UntypedBatch, BoxError> + 'a;

/// Micro-batches that are loaded when they are needed, and dropped after.
pub(crate) struct Loaded<'a> {
    count: usize,
    load: &'a mut Load<'a>,
    /// Whether this rank computes the loss: then targets wait here from the input's turn on.
    has_loss: bool,
    targets: SortedMap<usize, Target>,
    /// The valid targets of what was loaded for the loss.
    valid: TargetSum,
}

impl<'a> Loaded<'a> {
    pub(crate) fn new(count: usize, has_loss: bool, load: &'a mut Load<'a>) -> Self {
        Self { count, load, has_loss, targets: SortedMap::new(), valid: TargetSum::default() }
    }

    fn load(&mut self, micro_batch: usize) -> Result<UntypedBatch> {
        let batch = (self.load)(micro_batch).map_err(Error::Load)?;
        if self.has_loss {
            self.valid.merge(&batch.valid);
        }
        Ok(batch)
    }
}

impl MicroBatches for Loaded<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn input(&mut self, micro_batch: usize) -> Result<Parts> {
        let UntypedBatch { input, target, .. } = self.load(micro_batch)?;
        if self.has_loss {
            self.targets.insert(micro_batch, target);
        }
        Ok(input)
    }

    fn target(&mut self, micro_batch: usize) -> Result<Target> {
        match self.targets.remove(&micro_batch) {
            Some(target) => Ok(target),
            None => Ok(self.load(micro_batch)?.target),
        }
    }

    fn targets(&self) -> TargetSum {
        self.valid.clone()
    }
}
