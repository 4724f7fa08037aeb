//! The third part of a step: new values from the summed gradients.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use crate::error::{Error, Result};
use crate::optim::{FlatOptimizer, FlatState, OptimizerFactory, SavedState};
use crate::sharding::store::StoredUnit;

/// The optimizers of the units that this rank updates, each for the rank's own elements.
pub(crate) struct Update {
    factory: OptimizerFactory,
    /// One for each unit; none where another stage owns the unit.
    optimizers: Vec<Option<Box<dyn FlatOptimizer>>>,
}

impl Update {
    pub(crate) fn new(factory: OptimizerFactory) -> Self {
        Self { factory, optimizers: Vec::new() }
    }

    /// Makes the optimizer of the next unit, on `device`, if the unit is updated here.
    pub(crate) fn add(&mut self, stored: &StoredUnit, device: &Device) {
        let build = || self.factory.build(&stored.unit.layout, stored.own.clone(), device);
        self.optimizers.push(stored.is_updated().then(build));
    }

    /// The own elements' next values; `scale` multiplies the gradient first. None where the unit is not updated here.
    pub(crate) fn step(
        &mut self,
        unit: usize,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Option<Tensor<1>> {
        let gradient = gradient.to_device(&values.device());
        Some(self.optimizers[unit].as_mut()?.step(learning_rate, values, gradient, scale))
    }

    /// Bytes of all optimizers' state.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.optimizers.iter().flatten().map(|optimizer| optimizer.state_bytes()).sum()
    }

    /// The state of a unit's elements in `range`; none where the unit is not updated here.
    pub(crate) fn state(&self, unit: usize, range: Range<usize>) -> Option<Box<dyn FlatState>> {
        Some(self.optimizers[unit].as_ref()?.state(range))
    }

    /// Takes the saved state of a unit's own elements, without padding.
    pub(crate) fn restore(
        &mut self,
        unit: usize,
        name: &str,
        saved: &SavedState,
        device: &Device,
    ) -> Result<()> {
        let Some(optimizer) = &mut self.optimizers[unit] else { return Ok(()) };
        optimizer.restore(saved, device).map_err(|error| Error::State(format!("`{name}`: {error}")))
    }
}
