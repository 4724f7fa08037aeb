//! The optimizer of outer steps.

use std::ops::Range;

use brigade_kernels::cast;
use burn::tensor::{Device, FloatDType, Tensor};

use crate::error::Result;
use crate::optim::{FlatOptimizer, FlatState, OptimizerFactory, SavedState};
use crate::sharding::layout::FlatLayout;
use crate::step::strategy::outer::outer_sum::OuterDtype;

/// The optimizer of outer steps: in DiLoCo SGD with Nesterov's momentum. Every worker makes the same step.
#[derive(Debug, Clone)]
pub struct OuterOptimizer {
    /// The optimizer. It treats all parameters the same way: groups and layer-wise decay do not apply.
    pub optimizer: OptimizerFactory,
    /// Its learning rate, the same in every step.
    pub learning_rate: f64,
    /// The number type in which outer gradients are sent between workers.
    pub dtype: OuterDtype,
}

/// The outer optimizer's part of each unit.
pub(crate) struct OuterUnits {
    of: OuterOptimizer,
    /// One for each unit; none where it is not updated here.
    units: Vec<Option<OuterUnit>>,
}

struct OuterUnit {
    /// The own elements after the last outer step, once an inner step has begun.
    values: Option<Tensor<1>>,
    /// How many there are, without padding.
    elements: usize,
    optimizer: Box<dyn FlatOptimizer>,
}

impl OuterUnits {
    pub(crate) fn new(of: OuterOptimizer) -> Self {
        Self { of, units: Vec::new() }
    }

    pub(crate) fn add(&mut self, layout: &FlatLayout, own: Option<Range<usize>>, device: &Device) {
        let ungrouped =
            || FlatLayout::new(layout.params().iter().map(|param| (param.path.clone(), param.shape.clone())));
        let unit = |own: Range<usize>| OuterUnit {
            values: None,
            elements: own.end.min(layout.len()).saturating_sub(own.start),
            optimizer: self.of.optimizer.build(&ungrouped(), own, device),
        };
        let unit = own.map(unit);
        self.units.push(unit);
    }

    /// An inner step begins from these values: the first one since an outer step begins from what that one gave.
    pub(crate) fn begin_from(&mut self, unit: usize, values: &Tensor<1>) {
        if let Some(unit) = &mut self.units[unit] {
            unit.values.get_or_insert_with(|| values.clone());
        }
    }

    /// The values after the last outer step.
    pub(crate) fn common_values(&self, unit: usize) -> Option<Tensor<1>> {
        self.units[unit].as_ref()?.values.clone()
    }

    /// The number type in which outer gradients are sent.
    pub(crate) fn dtype(&self) -> OuterDtype {
        self.of.dtype
    }

    /// The outer gradient, from the values after the last inner step.
    pub(crate) fn gradient(&mut self, unit: usize, values: Tensor<1>) -> Tensor<1> {
        let Some(unit) = &mut self.units[unit] else { return values };
        let before = unit.values.get_or_insert_with(|| values.clone()).clone();
        before - values
    }

    /// The values after an outer step along the mean of the workers' outer gradients, of which this is the sum.
    pub(crate) fn step(&mut self, unit: usize, sum: Tensor<1>, workers: f64) -> Tensor<1> {
        let gradient = cast(sum, FloatDType::F32).div_scalar(workers);
        let Some(unit) = &mut self.units[unit] else { return gradient };
        let Some(before) = unit.values.take() else { return gradient };
        let values = unit.optimizer.step(self.of.learning_rate, before, gradient, None);
        unit.values = Some(values.clone());
        values
    }

    /// Bytes of the values after the last outer step, and of the optimizer's state.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |unit: &OuterUnit| {
            let values = if unit.values.is_some() { 4 * unit.elements } else { 0 };
            values as u64 + unit.optimizer.state_bytes()
        };
        self.units.iter().flatten().map(bytes).sum()
    }

    pub(crate) fn state(&self, unit: usize, range: Range<usize>) -> Option<Box<dyn FlatState>> {
        Some(self.units[unit].as_ref()?.optimizer.state(range))
    }

    pub(crate) fn restore(&mut self, unit: usize, saved: &SavedState, device: &Device) -> Result<()> {
        let Some(unit) = &mut self.units[unit] else { return Ok(()) };
        unit.values = None;
        unit.optimizer.restore(saved, device)
    }
}
