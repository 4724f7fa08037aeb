//! Workers that make updates of their own, and synchronise from time to time.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use crate::dist::{Collectives, PendingTensor};
use crate::error::Result;
use crate::optim::{FlatState, OptimizerFactory, SavedState};
use crate::sharding::layout::FlatLayout;
use crate::step::strategy::optimizers::Optimizers;
use crate::step::strategy::outer::outer_optimizer::{OuterOptimizer, OuterUnits};
use crate::step::strategy::{
    DataParallel, Fragments, OuterSchedule, ReducedUnit, Reduction, Strategy, Synchronous, Update,
};

/// Each worker, its own mesh along the axis [`WORKERS`](crate::WORKERS), makes `inner_steps` updates from its part of the global
/// batch without communicating with the others. Then there is an outer step, in which the workers synchronise, and all continue from the same
/// values.
///
/// Without an outer optimizer those are the means of the workers' (local SGD: Stich, "Local SGD converges fast and communicates little", ICLR 2019),
/// with equal weight for each worker, however many valid targets it had. With one, they are its step along the mean of the outer gradients: what
/// a worker's inner steps subtracted from the values (DiLoCo: Douillard et al., "DiLoCo: distributed low-communication training of language
/// models", 2023). Each worker keeps its own optimizer's state across outer steps.
///
/// Sums over workers are pairwise in the workers' order, so the mesh inside them does not change a bit.
#[derive(Debug, Clone)]
pub struct LocalUpdates {
    /// Updates of a worker from one outer step to the next, at least 1.
    pub inner_steps: u64,
    /// Makes the outer step; none where it takes the means.
    pub outer: Option<OuterOptimizer>,
    /// The parts of the model whose outer steps come one after the other; none where it makes one of the whole model. They need
    /// an outer optimizer.
    pub fragments: Option<Fragments>,
}

impl Strategy for LocalUpdates {
    fn synchronizes(&self, _: u64) -> bool {
        true
    }

    fn period(&self) -> usize {
        1
    }

    fn outer_schedule(&self) -> Option<OuterSchedule> {
        let fragments = self.fragments.filter(|_| self.outer.is_some());
        Some(OuterSchedule { inner_steps: self.inner_steps.max(1), fragments })
    }

    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
        Synchronous::default().reduction(units, data)
    }

    fn update(&self, optimizer: OptimizerFactory, data: DataParallel) -> Box<dyn Update> {
        let DataParallel { device, .. } = data;
        let outer = self.outer.clone().map(OuterUnits::new);
        let fragments = self.fragments.filter(|_| outer.is_some());
        Box::new(LocalUpdate {
            inner: Optimizers::new(optimizer),
            outer,
            fragments,
            device,
            units: Vec::new(),
        })
    }
}

/// Inner steps by an optimizer for each unit, and outer steps over the workers.
struct LocalUpdate {
    inner: Optimizers,
    outer: Option<OuterUnits>,
    fragments: Option<Fragments>,
    /// Where collectives take tensors from.
    device: Device,
    /// Where the own elements of each unit are stepped; none where that is elsewhere.
    units: Vec<Option<Device>>,
}

impl Update for LocalUpdate {
    fn add(&mut self, layout: &FlatLayout, own: Option<Range<usize>>, device: &Device) {
        if let Some(outer) = &mut self.outer {
            outer.add(layout, own.clone(), device);
        }
        self.units.push(own.is_some().then(|| device.clone()));
        self.inner.add(layout, own, device);
    }

    fn step(
        &mut self,
        unit: usize,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Option<PendingTensor> {
        if let Some(outer) = &mut self.outer {
            outer.begin_from(unit, &values);
        }
        self.inner.step(unit, learning_rate, values, gradient, scale)
    }

    fn begin_outer_step(
        &mut self,
        unit: usize,
        values: Tensor<1>,
        workers: &Arc<dyn Collectives>,
    ) -> Option<PendingTensor> {
        self.units[unit].as_ref()?;
        Some(match &mut self.outer {
            Some(outer) => {
                let gradient = outer.gradient(unit, values).to_device(&self.device);
                outer.dtype().sum(gradient, workers)
            }
            None => workers.all_reduce(values.to_device(&self.device)),
        })
    }

    fn end_outer_step(
        &mut self,
        unit: usize,
        values: Tensor<1>,
        sum: Tensor<1>,
        workers: usize,
    ) -> Tensor<1> {
        let sum = match &self.units[unit] {
            Some(device) => sum.to_device(device),
            None => sum,
        };
        let workers = workers as f64;
        let common = match &mut self.outer {
            Some(outer) => outer.step(unit, sum, workers),
            None => sum.div_scalar(workers),
        };
        match self.fragments.map_or(0.0, |fragments| fragments.mixing) {
            0.0 => common,
            mixing => values.mul_scalar(mixing) + common.mul_scalar(1.0 - mixing),
        }
    }

    fn common_values(&self, unit: usize) -> Option<Tensor<1>> {
        self.fragments?;
        self.outer.as_ref()?.common_values(unit)
    }

    fn restore_common_values(&mut self, unit: usize, values: Tensor<1>) {
        if let Some(outer) = self.outer.as_mut().filter(|_| self.fragments.is_some()) {
            outer.begin_from(unit, &values);
        }
    }

    fn state_bytes(&self) -> u64 {
        self.inner.state_bytes() + self.outer.as_ref().map_or(0, OuterUnits::bytes)
    }

    fn state(&self, unit: usize, range: Range<usize>) -> Option<Box<dyn FlatState>> {
        self.inner.state(unit, range)
    }

    fn outer_state(&self, unit: usize, range: Range<usize>) -> Option<Box<dyn FlatState>> {
        self.outer.as_ref()?.state(unit, range)
    }

    fn restore(&mut self, unit: usize, saved: &SavedState, device: &Device) -> Result<()> {
        self.inner.restore(unit, saved, device)
    }

    fn restore_outer(&mut self, unit: usize, saved: &SavedState, device: &Device) -> Result<()> {
        match &mut self.outer {
            Some(outer) => outer.restore(unit, saved, device),
            None => self.inner.restore_outer(unit, saved, device),
        }
    }
}
