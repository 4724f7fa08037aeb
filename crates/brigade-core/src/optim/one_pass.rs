//! An optimizer of a flat buffer whose parameters, decayed or not, are stepped in one pass: on a device where a kernel knows which run of elements has which settings.

use std::ops::Range;

use brigade_kernels::StepRun;
use burn::optim::Optimizer;
use burn::tensor::{DType, Device, Tensor};

use crate::error::Result;
use crate::optim::optimizer::{Elementwise, FlatOptimizer};
use crate::optim::optimizer_state::{FlatState, SavedState, SegmentState, SegmentStates, array_bytes};
use crate::optim::segmented::Piece;

/// All of a part, stepped in one pass.
pub(super) struct OnePass<O: Optimizer> {
    part: Range<usize>,
    /// They have no state of their own.
    runs: Vec<Piece<O>>,
    state: Option<O::State<1>>,
}

impl<O: Elementwise> OnePass<O> {
    /// Of runs that it [takes](Self::takes).
    pub fn new(part: Range<usize>, runs: Vec<Piece<O>>) -> Self {
        Self { part, runs, state: None }
    }

    /// Whether the runs, which cover a part, can be stepped in one pass on this device.
    pub fn takes(runs: &[Piece<O>], device: &Device) -> bool {
        !runs.is_empty() && O::is_one_pass(&runs.iter().map(|run| &run.optimizer).collect::<Vec<_>>(), device)
    }

    /// Elements, without padding.
    fn elements(&self) -> usize {
        self.runs.last().map_or(0, |run| run.range.end - self.part.start)
    }

    /// The bytes of the arrays of `elements`, by those of a few.
    fn bytes_of(&self, elements: usize) -> u64 {
        const FEW: usize = 4;
        let Some(run) = self.runs.first() else { return 0 };
        let device = Device::flex();
        let zeros = || Tensor::<1>::zeros([FEW], (&device, DType::F32));
        let (_, state) = run.optimizer.step(0.0, zeros(), zeros(), None);
        let bytes = state.map_or(0, |state| array_bytes(&state));
        bytes as u64 * elements as u64 / FEW as u64
    }
}

impl<O: Elementwise> FlatOptimizer for OnePass<O> {
    fn step(
        &mut self,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Tensor<1> {
        let start = self.part.start;
        let runs = self.runs.iter().map(|run| StepRun {
            start: run.range.start - start,
            optimizer: &run.optimizer,
            learning_rate: learning_rate * run.learning_rate_factor,
        });
        let (elements, length) = (self.elements(), values.dims()[0]);
        let own = |tensor: &Tensor<1>| tensor.clone().slice(0..elements);
        let of = [own(&values), own(&gradient)];
        let stepped = O::step_runs(&runs.collect::<Vec<_>>(), of.each_ref(), scale, self.state.take());
        let Some((stepped, state)) = stepped else { unreachable!("it was asked when it was built") };
        self.state = Some(state);
        match elements < length {
            true => Tensor::cat(vec![stepped, values.slice(elements..length)], 0),
            false => stepped,
        }
    }

    fn state_bytes(&self) -> u64 {
        if self.state.is_some() { self.bytes_of(self.elements()) } else { 0 }
    }

    fn state(&self, range: Range<usize>) -> Box<dyn FlatState> {
        let (start, end) = (self.part.start, self.part.start + self.elements());
        let part = start.max(range.start)..end.min(range.end).max(start);
        let segments: Vec<_> = match &self.state {
            Some(state) if !part.is_empty() => {
                vec![SegmentState {
                    part: part.start - start..part.end - start,
                    state: Box::new(state.clone()),
                }]
            }
            _ => vec![],
        };
        let bytes = self.bytes_of(segments.iter().map(|segment| segment.part.len()).sum());
        Box::new(SegmentStates { segments, bytes })
    }

    fn restore(&mut self, saved: &SavedState, device: &Device) -> Result<()> {
        self.state = saved.segment::<O::State<1>>(0..self.elements(), device)?;
        Ok(())
    }
}
