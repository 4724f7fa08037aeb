//! How a unit's gradient is summed over ranks.

use std::ops::Range;

use brigade_kernels::cast;
use burn::tensor::{FloatDType, Tensor};

use crate::dist::PendingTensor;
use crate::error::Result;
use crate::metrics::Clock;
use crate::optim::SavedState;
use crate::step::strategy::unit_codes::foreign;
use crate::step::strategy::{DataParallel, ReductionState};

/// Sums over the ranks, of units by number.
pub(super) trait RankSums: Send {
    /// As [`Reduction::begin`](super::Reduction::begin).
    fn begin(&mut self, step: u64) {
        let _ = step;
    }

    /// Starts the sum of whole buffers over the ranks that the unit is divided among; gives the own elements.
    fn scatter(&mut self, unit: usize, whole: Tensor<1>) -> InFlight;

    /// Starts the sum of own elements over the ranks that have the same.
    fn reduce(&mut self, unit: usize, own: Tensor<1>) -> InFlight;

    /// As [`Reduction::commit`](super::Reduction::commit); also called to drop what has been summed.
    fn commit(&mut self, updates: bool) {
        let _ = updates;
    }

    /// Bytes of the state carried over from one update to the next.
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// As [`Reduction::state`](super::Reduction::state).
    fn state(&self, unit: usize, share: Range<usize>) -> ReductionState {
        let _ = (unit, share);
        ReductionState::default()
    }

    /// As [`Reduction::needs`](super::Reduction::needs).
    fn needs(&self, unit: usize, array: &str, own: Range<usize>) -> Range<usize> {
        let _ = (unit, array);
        own
    }

    /// As [`Reduction::restore`](super::Reduction::restore).
    fn restore(&mut self, unit: usize, saved: &SavedState) -> Result<()> {
        let _ = unit;
        saved.slots.keys().next().map_or(Ok(()), |array| Err(foreign(array)))
    }
}

/// A sum on its way.
pub(super) struct InFlight {
    pub sum: PendingTensor,
    /// Bytes that it takes meanwhile.
    pub bytes: u64,
}

impl InFlight {
    /// Waits for the first of several phases, and begins the second, as all ranks do; a single one stays as it is.
    pub fn advance(self, what: &'static str, clock: &mut Clock) -> Result<PendingTensor> {
        clock.waiting(what, || self.sum.next_phase())
    }
}

/// Sums of the numbers themselves, in the number type that settings say.
pub(super) struct Exact(pub DataParallel);

impl RankSums for Exact {
    fn scatter(&mut self, _: usize, whole: Tensor<1>) -> InFlight {
        let bytes = fp32_bytes(&whole);
        InFlight { sum: self.0.shard.reduce_scatter(cast(whole, self.0.dtype)), bytes }
    }

    fn reduce(&mut self, _: usize, own: Tensor<1>) -> InFlight {
        let bytes = fp32_bytes(&own);
        InFlight { sum: self.0.replicate.all_reduce(cast(own, self.0.dtype)), bytes }
    }
}

/// Bytes of a gradient, which is held in fp32.
fn fp32_bytes(gradient: &Tensor<1>) -> u64 {
    (size_of::<f32>() * gradient.dims()[0]) as u64
}

/// A sum in the number type in which gradients are held.
pub(super) fn held(sum: Tensor<1>) -> Tensor<1> {
    cast(sum, FloatDType::F32)
}
