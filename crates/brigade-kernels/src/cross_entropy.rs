//! The cross entropy of classes, with the layer that makes the logits.

use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
use burn_flex::FlexTensor;

use brigade_simd::cross_entropy::{self as kernel, Smoothing};
use brigade_simd::{Matrix, MatrixMut, Product, convert_in_place, matmul};

use crate::host::{Buffer, FusedOperation, Number, apply, contiguous, is_on_host, matrix, rows, values};

/// Logits that are in memory at a time, in elements: some rows of them.
const CHUNK: usize = 2 << 20;
/// Of a chunk, however many classes there are.
const LEAST_ROWS: usize = 64;

/// The target of a row that is ignored, as PyTorch's `ignore_index` is by default.
const IGNORED: i64 = -100;

/// What is added to the cross entropy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CrossEntropyConfig {
    /// The share of the target's probability that all classes get equally (Szegedy et al., "Rethinking the Inception Architecture", 2016).
    pub label_smoothing: f64,
    /// The factor of the squared logarithm of the softmax's denominator (Chowdhery et al., "PaLM", 2022).
    pub z_loss: f64,
    /// What the rows whose logits are in memory at a time are divided by: 0 and 1 leave them as they are. For a model that stands for a larger one when memory is measured.
    pub rows_divisor: usize,
}

/// The sum over rows of the cross entropy between `softmax(x · weightᵀ)` and the target, in nats, and the number of rows whose target has the highest logit (of several, the first class), each of shape
/// `[1]`; only the former has a gradient.
///
/// `x`: `[rows, width]`; `weight`: `[classes, width]`; `targets`: `[rows]`; `row_weights`: `[rows]`, which multiply both. A row whose target is below 0 (PyTorch's
/// `ignore_index` is -100), or whose weight is 0, is ignored: it counts for nothing, and the gradient of its logits is 0 whatever they are, even no numbers. The logits of some rows are in memory at a time (on the CPU 2²¹ logits or 64 rows, on GPUs about 2²⁶ or 128 rows); the gradients
/// of `x` and `weight`, where they can be wanted, are made with them, in the forward pass. Of `x` and `weight` in bf16, logits (but on GPUs), loss and the sums of gradients are fp32.
///
/// # Panics
/// If the shapes do not fit, or, on the CPU, a target that is not ignored is above the last class; elsewhere the loss is infinite then.
pub fn linear_cross_entropy(
    x: Tensor<2>,
    weight: Tensor<2>,
    targets: Tensor<1, Int>,
    row_weights: Option<Tensor<1>>,
    config: CrossEntropyConfig,
) -> (Tensor<1>, Tensor<1>) {
    let ([count, width], [classes, inputs]) = (x.dims(), weight.dims());
    assert!(
        width == inputs,
        "`x` has rows of {width} elements and `weight` of {inputs}, but these must be equally long"
    );
    let targets_shape = targets.dims();
    assert!(
        targets_shape == [count],
        "`targets` has the shape {targets_shape:?}, but must be [{count}], one for each row"
    );
    if let Some(weights) = &row_weights {
        let shape = weights.dims();
        assert!(
            shape == [count],
            "`row_weights` has the shape {shape:?}, but must be [{count}], one for each row"
        );
    }
    let tensors = [x.clone().into_dispatch(), weight.clone().into_dispatch()];
    if tensors.iter().all(is_on_host) && x.dtype() == weight.dtype() {
        let row_weights: Option<Vec<f32>> =
            row_weights.clone().map(|weights| weights.inner().into_data().iter().collect());
        let targets = counted(targets.clone().into_data().iter(), row_weights.as_deref(), classes);
        let device = x.device().inner();
        let operation = LinearCrossEntropy { targets, row_weights, config };
        if let Some((loss, correct)) = apply(operation, tensors.each_ref()) {
            let correct = Tensor::from_data(TensorData::from([correct]), (&device, DType::F32));
            return (Tensor::from_dispatch(loss), correct);
        }
    }
    #[cfg(feature = "cube")]
    {
        let (targets, row_weights) = (targets.clone(), row_weights.clone());
        let operation = crate::cube::LinearCrossEntropy { targets, row_weights, config };
        if let Some((loss, correct)) = crate::cube::apply(operation, tensors.each_ref()) {
            return (Tensor::from_dispatch(loss), correct);
        }
    }
    cross_entropy(x.matmul(weight.transpose()), targets, row_weights, config)
}

/// As [`linear_cross_entropy`], of `logits`, `[rows, classes]`, by Burn's operations. The highest logits, which the logarithm of the softmax needs in any case, decide
/// which targets have the highest, so that this costs no additional pass over the logits. Of logits in bf16 or fp16, the loss is computed, and given, in
/// fp32.
///
/// # Panics
/// If the shapes do not fit, or, on the CPU, if a target that is not ignored is above the last class.
pub fn cross_entropy(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    row_weights: Option<Tensor<1>>,
    config: CrossEntropyConfig,
) -> (Tensor<1>, Tensor<1>) {
    let [rows, classes] = logits.dims();
    let logits = if is_narrow(logits.dtype()) { logits.cast(FloatDType::F32) } else { logits };
    let row_weights = row_weights.map(|weights| weights.cast(FloatDType::from(logits.dtype())));
    let targets = targets.reshape([rows, 1]);
    let is_negative = targets.clone().lower_elem(0);
    let is_ignored = match &row_weights {
        None => is_negative,
        Some(weights) => is_negative.bool_or(weights.clone().inner().equal_elem(0.0).reshape([rows, 1])),
    };
    let targets = targets.mask_fill(is_ignored.clone(), 0);
    // The gradients of what is no number would be none, though nothing flows back to ignored rows.
    let logits = logits.mask_fill(is_ignored.clone().expand([rows, classes]), 0.0);
    let highest = logits.clone().detach().max_dim(1);
    let is_highest = logits.clone().detach().gather(1, targets.clone()).equal(highest.clone());
    // Of several the first class counts.
    let earlier = logits.clone().detach().equal(highest.clone()).int().cumsum(1).gather(1, targets.clone());
    let correct = is_highest.bool_and(earlier.equal_elem(1)).float();
    let correct = correct.cast(FloatDType::from(logits.dtype()));
    let shifted = logits - highest.clone();
    let logarithm = shifted.clone().exp().sum_dim(1).log();
    let log_probabilities = shifted - logarithm.clone();
    let mut losses = log_probabilities.clone().gather(1, targets).mul_scalar(config.label_smoothing - 1.0);
    if config.label_smoothing != 0.0 {
        losses = losses - log_probabilities.sum_dim(1).mul_scalar(config.label_smoothing / classes as f64);
    }
    if config.z_loss != 0.0 {
        losses = losses + (logarithm + highest).powi_scalar(2).mul_scalar(config.z_loss);
    }
    // Not `sum`, whose kernels on GPUs add up in an order that changes from run to run.
    let sum = |values: Tensor<2>| {
        let values = values.mask_fill(is_ignored.clone(), 0.0).reshape([rows]);
        row_weights.iter().fold(values, |values, weights| values * weights.clone()).sum_dim(0)
    };
    (sum(losses), sum(correct))
}

/// The targets, of which those that are not ignored are classes.
fn counted(targets: impl Iterator<Item = i64>, row_weights: Option<&[f32]>, classes: usize) -> Vec<i64> {
    let counted = targets.enumerate().map(|(row, target)| {
        if target < 0 || row_weights.is_some_and(|weights| weights[row] == 0.0) {
            return IGNORED;
        }
        let is_class = (target as u64) < classes as u64;
        assert!(is_class, "`targets` has {target} in row {row}, which is none of {classes} classes");
        target
    });
    counted.collect()
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Of x and weight.
#[derive(Debug)]
struct LinearCrossEntropy {
    targets: Vec<i64>,
    row_weights: Option<Vec<f32>>,
    config: CrossEntropyConfig,
}

/// The gradients of x and weight where that of the loss is 1, if they are wanted.
type Saved = [Option<FlexTensor>; 2];

impl FusedOperation<2> for LinearCrossEntropy {
    type Saved = Saved;
    type Extra = f32;

    fn forward<T: Number>(
        &self,
        inputs: [FlexTensor; 2],
        wanted: [bool; 2],
    ) -> (FlexTensor, Option<Saved>, f32) {
        let [x, weight] = inputs.map(contiguous);
        let ([count, width], [classes, _]) = (rows(&x), rows(&weight));
        let divisor = self.config.rows_divisor.max(1);
        let rows = (CHUNK / (classes.max(1) * divisor)).max(LEAST_ROWS) / divisor;
        let chunk = rows.clamp(1, count.max(1));
        let [mut logits, mut logarithms, mut losses, mut hits] =
            [chunk * classes, chunk, count, count].map(Buffer::<f32>::new);
        let mut d_x = wanted[0].then(|| Buffer::<T>::new(count * width));
        let mut d_weight = wanted[1].then(|| match count {
            0 => Buffer::<f32>::zeros(classes * width),
            _ => Buffer::<f32>::new(classes * width),
        });
        let ones = vec![1.0; chunk];
        let smoothing = Smoothing {
            label_smoothing: self.config.label_smoothing as f32,
            z_loss: self.config.z_loss as f32,
        };
        for from in (0..count).step_by(chunk) {
            let part = from..(from + chunk).min(count);
            let elements = part.start * width..part.end * width;
            let x = Matrix::rows_of(&values::<T>(&x)[elements.clone()], [part.len(), width]);
            let targets = &self.targets[part.clone()];
            let (logits, logarithms) = (&mut logits[..part.len() * classes], &mut logarithms[..part.len()]);
            let size = [part.len(), classes];
            matmul(x, matrix(&weight).transposed(), MatrixMut::rows_of(logits, size), Product::Write, 1.0);
            let (losses, hits) = (&mut losses[part.clone()], &mut hits[part.clone()]);
            kernel::cross_entropy(logits, targets, smoothing, losses, hits, logarithms);
            if !wanted.contains(&true) {
                continue;
            }
            let scales =
                self.row_weights.as_ref().map_or(&ones[..part.len()], |weights| &weights[part.clone()]);
            kernel::cross_entropy_backward(logits, targets, smoothing, logarithms, scales);
            let slopes = Matrix::rows_of(&*convert_in_place::<T>(logits), size);
            if let Some(d_x) = &mut d_x {
                let d_x = MatrixMut::rows_of(&mut d_x[elements], [part.len(), width]);
                matmul(slopes, matrix(&weight), d_x, Product::Write, 1.0);
            }
            if let Some(d_weight) = &mut d_weight {
                let d_weight = MatrixMut::rows_of(d_weight, [classes, width]);
                let product = if from == 0 { Product::Write } else { Product::Add };
                matmul(slopes.transposed(), x, d_weight, product, 1.0);
            }
        }
        let mut loss = Buffer::<f32>::new(1);
        loss[0] = self.sum(&losses);
        let d_x = d_x.map(|d_x| d_x.into_tensor([count, width]));
        let d_weight = d_weight.map(|d_weight| d_weight.into_tensor_of::<T>([classes, width]));
        (loss.into_tensor([1]), Some([d_x, d_weight]), self.sum(&hits))
    }

    fn backward<T: Number>(
        self,
        saved: Saved,
        gradient: FlexTensor,
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let factor = values::<f32>(&contiguous(gradient))[0];
        let [x, weight] = saved;
        [(wanted[0], x), (wanted[1], weight)].map(|(wanted, gradient)| {
            gradient.filter(|_| wanted).map(|gradient| scaled::<T>(gradient, factor))
        })
    }
}

impl LinearCrossEntropy {
    /// Of values of rows, times their weights, in the order of rows.
    fn sum(&self, values: &[f32]) -> f32 {
        let value = |(value, weight): (&f32, &f32)| f64::from(*value) * f64::from(*weight);
        let sum: f64 = match &self.row_weights {
            None => values.iter().copied().map(f64::from).sum(),
            Some(weights) => values.iter().zip(weights).map(value).sum(),
        };
        sum as f32
    }
}

fn scaled<T: Number>(mut tensor: FlexTensor, factor: f32) -> FlexTensor {
    if factor != 1.0 {
        brigade_simd::multiply(tensor.storage_mut::<T>(), factor);
    }
    tensor
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    /// The loss, the hits, and the gradient of the logits of three rows of four classes, where two logits of the second row are given.
    fn outcome(given: f32, targets: [i64; 3], row_weights: Option<[f32; 3]>) -> [Vec<f32>; 3] {
        let device = Device::flex().autodiff();
        let logits = vec![1.0, -0.5, 2.0, 0.25, given, 0.0, given, 1.0, 0.5, 3.0, -2.0, 1.5];
        let logits = Tensor::<2>::from_data(TensorData::new(logits, [3, 4]), &device).require_grad();
        let targets = Tensor::<1, Int>::from_data(TensorData::new(targets.to_vec(), [3]), &device);
        let row_weights = row_weights
            .map(|weights| Tensor::<1>::from_data(TensorData::new(weights.to_vec(), [3]), &device));
        let config = CrossEntropyConfig { label_smoothing: 0.1, z_loss: 1e-2, ..Default::default() };
        let (loss, hits) = cross_entropy(logits.clone(), targets, row_weights, config);
        let gradients = loss.clone().backward();
        let gradient = logits.grad(&gradients).unwrap();
        [loss.into_data(), hits.into_data(), gradient.into_data()].map(|data| data.iter::<f32>().collect())
    }

    #[test]
    fn logits_of_an_ignored_row_may_be_no_numbers() {
        for (targets, row_weights) in [([2, -100, 1], None), ([2, 3, 1], Some([1.0, 0.0, 2.0]))] {
            let expected = outcome(0.5, targets, row_weights);
            assert!(expected[2][4..8].iter().all(|slope| *slope == 0.0), "{expected:?}");
            assert!(expected[2][..4].iter().chain(&expected[2][8..]).all(|slope| slope.abs() > 1e-3));
            for given in [f32::NAN, f32::INFINITY] {
                assert_eq!(outcome(given, targets, row_weights), expected, "{given}");
            }
        }
    }
}
