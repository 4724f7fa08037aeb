//! An optimizer for each unit.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use crate::dist::PendingTensor;
use crate::error::Result;
use crate::optim::{FlatOptimizer, FlatState, OptimizerFactory, SavedState};
use crate::sharding::layout::FlatLayout;
use crate::step::strategy::Update;

/// Steps the own elements of each unit by an optimizer of their own, and speaks to nobody.
pub(super) struct Optimizers {
    factory: OptimizerFactory,
    /// One for each unit; none where another stage owns the unit, or where it is frozen.
    units: Vec<Option<Box<dyn FlatOptimizer>>>,
}

impl Optimizers {
    pub(super) fn new(factory: OptimizerFactory) -> Self {
        Self { factory, units: Vec::new() }
    }
}

impl Update for Optimizers {
    fn add(&mut self, layout: &FlatLayout, own: Option<Range<usize>>, device: &Device) {
        self.units.push(own.map(|own| self.factory.build(layout, own, device)));
    }

    fn step(
        &mut self,
        unit: usize,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Option<PendingTensor> {
        let gradient = gradient.to_device(&values.device());
        let optimizer = self.units[unit].as_mut()?;
        Some(PendingTensor::ready(optimizer.step(learning_rate, values, gradient, scale)))
    }

    fn state_bytes(&self) -> u64 {
        self.units.iter().flatten().map(|optimizer| optimizer.state_bytes()).sum()
    }

    fn state(&self, unit: usize, range: Range<usize>) -> Option<Box<dyn FlatState>> {
        Some(self.units[unit].as_ref()?.state(range))
    }

    fn restore(&mut self, unit: usize, saved: &SavedState, device: &Device) -> Result<()> {
        self.units[unit].as_mut().map_or(Ok(()), |optimizer| optimizer.restore(saved, device))
    }
}
