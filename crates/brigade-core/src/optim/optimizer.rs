//! Optimizers that work on flat buffers: the elementwise ones.

use std::ops::Range;

use brigade_kernels::StepRun;
use burn::optim::{AdaGrad, Adam, AdamW, Adan, Lion, Optimizer, RmsProp, Sgd};
use burn::tensor::{Device, Tensor};

use crate::error::Result;
use crate::optim::optimizer_state::{FlatState, SavedState};

/// An optimizer that treats every element in the same way, independently of the others, so that a flat buffer or any part of it
/// gives the same numbers as the parameters one by one.
///
/// Burn's elementwise optimizers implement it. Implement it for your own if it is elementwise: its state, arrays over the elements and numbers,
/// is then part of checkpoints, and can be restored on any mesh. Burn's others do not: Muon orthogonalises matrices, LAMB scales by the norms of
/// parameters, Adafactor keeps sums over rows and columns, and L-BFGS needs scalar products over the whole model.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not known to be an elementwise optimizer",
    note = "flat buffers and shards of them have no whole parameters, which Muon, LAMB, Adafactor and L-BFGS need",
    note = "implement `Elementwise` for an optimizer of your own if it treats each element independently of the others"
)]
pub trait Elementwise: Optimizer {
    /// As [`Optimizer::step`] with the gradient times `scale`, if one is given. An optimizer may multiply in its own pass, to the same bits.
    fn step_scaled<const D: usize>(
        &self,
        learning_rate: f64,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        scale: Option<f64>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let gradient = scale.into_iter().fold(gradient, Tensor::mul_scalar);
        self.step(learning_rate, tensor, gradient, state)
    }

    /// The same for a part of flat values and their gradient, whose state is given: `stepped` with the new values of the part in their place. An optimizer may write them there
    /// itself, to the same bits.
    fn step_part(
        &self,
        learning_rate: f64,
        of: [&Tensor<1>; 2],
        part: Range<usize>,
        stepped: Tensor<1>,
        scale: Option<f64>,
        state: Option<Self::State<1>>,
    ) -> (Tensor<1>, Option<Self::State<1>>) {
        let [values, gradient] = of.map(|tensor| tensor.clone().slice(part.clone()));
        let (values, state) = self.step_scaled(learning_rate, values, gradient, scale, state);
        (stepped.slice_assign([part], values), state)
    }

    /// Whether [`step_runs`](Self::step_runs) takes runs of elements with these optimizers, in fp32 on this device.
    fn is_one_pass(_runs: &[&Self], _device: &Device) -> bool {
        false
    }

    /// One pass over flat values and their gradient whose runs of elements have optimizers and learning rates of their own; the state is of all elements. None if it
    /// [is not](Self::is_one_pass).
    fn step_runs(
        _runs: &[StepRun<'_, Self>],
        _of: [&Tensor<1>; 2],
        _scale: Option<f64>,
        _state: Option<Self::State<1>>,
    ) -> Option<(Tensor<1>, Self::State<1>)> {
        None
    }
}

macro_rules! scales_in_its_pass {
    ($($optimizer:ty),+) => {$(
        impl Elementwise for $optimizer {
            fn step_scaled<const D: usize>(
                &self,
                learning_rate: f64,
                tensor: Tensor<D>,
                gradient: Tensor<D>,
                scale: Option<f64>,
                state: Option<Self::State<D>>,
            ) -> (Tensor<D>, Option<Self::State<D>>) {
                brigade_kernels::ScaledStep::step_scaled(self, learning_rate, tensor, gradient, scale, state)
            }

            fn step_part(
                &self,
                learning_rate: f64,
                of: [&Tensor<1>; 2],
                part: Range<usize>,
                stepped: Tensor<1>,
                scale: Option<f64>,
                state: Option<Self::State<1>>,
            ) -> (Tensor<1>, Option<Self::State<1>>) {
                brigade_kernels::ScaledStep::step_part(self, learning_rate, of, part, stepped, scale, state)
            }

            fn is_one_pass(runs: &[&Self], device: &Device) -> bool {
                <Self as brigade_kernels::ScaledStep>::is_one_pass(runs, device)
            }

            fn step_runs(
                runs: &[StepRun<'_, Self>],
                of: [&Tensor<1>; 2],
                scale: Option<f64>,
                state: Option<Self::State<1>>,
            ) -> Option<(Tensor<1>, Self::State<1>)> {
                <Self as brigade_kernels::ScaledStep>::step_runs(runs, of, scale, state)
            }
        }
    )+};
}

scales_in_its_pass!(brigade_kernels::AdamW, brigade_kernels::Lion, brigade_kernels::Sgd);

impl Elementwise for AdaGrad {}
impl Elementwise for Adam {}
impl Elementwise for AdamW {}
impl Elementwise for Adan {}
impl Elementwise for Lion {}
impl Elementwise for RmsProp {}
impl Elementwise for Sgd {}

/// An optimizer with its state for one part of a flat buffer.
pub trait FlatOptimizer: Send {
    /// The part's new values. `scale` multiplies the gradient first (clipping).
    fn step(
        &mut self,
        learning_rate: f64,
        values: Tensor<1>,
        gradient: Tensor<1>,
        scale: Option<f64>,
    ) -> Tensor<1>;

    /// Bytes of the current state.
    fn state_bytes(&self) -> u64;

    /// The current state of the elements of the buffer in `range`. It copies no array (except one segment's, once, to learn the
    /// sizes), and does not change when the optimizer continues.
    fn state(&self, range: Range<usize>) -> Box<dyn FlatState>;

    /// Continues from a saved state, which has the elements of this optimizer's part without padding.
    ///
    /// # Errors
    /// If the state belongs to another kind of optimizer.
    fn restore(&mut self, saved: &SavedState, device: &Device) -> Result<()>;
}
