//! Gradients that are left for later have the bits that they have at once.

#![allow(clippy::unwrap_used)]

use brigade_kernels::{
    ActivationFunction, DeferredGradient, DeferredGradients, deferring, linear, linear_activation,
    linear_residual, set_fused,
};
use burn::tensor::{Device, Tensor, TensorData};

const ROWS: usize = 5;
const WIDTH: usize = 7;

fn tensor<const D: usize>(shape: [usize; D], salt: usize) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> =
        (0..count).map(|i| (((i + 1) * (salt + 3) * 7919 % 101) as f32 - 50.0) / 50.0).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff()).require_grad()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// The gradients of a function's weights, and of how many something is left.
fn gradients<const N: usize>(
    function: impl Fn(Tensor<2>, [Tensor<2>; N]) -> Tensor<2>,
    splits: bool,
) -> (Vec<Vec<u32>>, Vec<u32>, [bool; N]) {
    let x = tensor([ROWS, WIDTH], 11);
    let weights: [Tensor<2>; N] = std::array::from_fn(|index| tensor([WIDTH, WIDTH], index));
    let output = function(x.clone() * 1.5, weights.clone());
    let root = (output.clone() * output.detach()).sum();
    let (mut found, mut deferred) = match splits {
        true => deferring(|| root.backward()),
        false => (root.backward(), DeferredGradients::default()),
    };
    let left = weights.each_ref().map(|weight| deferred.take(weight));
    let is_left = left.each_ref().map(Option::is_some);
    let sum = |(weight, left): (Tensor<2>, Option<DeferredGradient>)| {
        let now = weight.grad_remove(&mut found);
        let later = left.map(|left| {
            assert!(left.bytes().is_multiple_of((4 * 2 * ROWS * WIDTH) as u64) && left.bytes() > 0);
            left.compute()
        });
        values(match (now, later) {
            (Some(now), Some(later)) => now + later,
            (now, later) => now.or(later).unwrap(),
        })
    };
    let sums = weights.into_iter().zip(left).map(sum).collect();
    (sums, values(x.grad(&found).unwrap()), is_left)
}

fn check<const N: usize>(
    function: impl Fn(Tensor<2>, [Tensor<2>; N]) -> Tensor<2>,
    expected_left: [bool; N],
) {
    let (at_once, of_x, none) = gradients(&function, false);
    assert_eq!(none, [false; N]);
    let (later, of_x_later, left) = gradients(&function, true);
    assert_eq!(left, expected_left);
    assert!(at_once == later, "the bits of weights' gradients");
    assert!(of_x == of_x_later, "the bits of the input's gradient");
}

#[test]
fn of_linear_layers() {
    check(|x, [a, b]| linear(linear(x, a, None), b, None), [true, true]);
    check(
        |x, [a, b]| {
            linear_activation(linear_residual(x.clone(), a, None, x), b, None, ActivationFunction::Gelu)
        },
        [true, true],
    );
}

#[test]
fn of_weights_that_are_used_again() {
    check(|x, [a]| linear(linear(x, a.clone(), None), a, None), [true]);
    check(|x, [a]| linear(linear(linear(x, a.clone(), None), a.clone(), None), a, None), [true]);
    // One part of two that is found at once.
    check(|x, [a]| linear(x.matmul(a.clone()), a, None), [true]);
}

#[test]
fn what_is_no_parameter_is_not_left() {
    check(|x, [a]| linear(x, a.transpose(), None), [false]);
    check(|x, [a, b]| linear(x, a * b, None), [false, false]);
}

#[test]
fn what_reads_a_tensor_can_be_computed_before_that_changes() {
    let (table, weight) = (tensor([WIDTH, WIDTH], 1), tensor([WIDTH, WIDTH], 2));
    let output = linear(table.clone().narrow(0, 0, ROWS), weight.clone(), None);
    let (_, mut deferred) = deferring(|| output.sum().backward());
    let mut left = deferred.take(&weight).unwrap();
    let expected = values(left.clone().compute());
    left.read_now(&weight);
    assert_eq!(left.bytes() as usize, 4 * 2 * ROWS * WIDTH);
    left.read_now(&table);
    assert_eq!(left.bytes() as usize, 4 * WIDTH * WIDTH);
    assert_eq!(values(left.compute()), expected);
}

#[test]
fn by_burns_own_operations_nothing_is_left() {
    set_fused(false);
    check(|x, [a]| linear(x, a, None), [false]);
    set_fused(true);
}

/// Also after a backward in which it was to be left and that has panicked.
#[test]
fn outside_nothing_is_left() {
    std::panic::catch_unwind(|| deferring(|| panic!("in a backward"))).unwrap_err();
    check_at_once();
    let ((), mut deferred) = deferring(|| ());
    let weight = check_at_once();
    assert!(deferred.take(&weight).is_none());
}

/// The weight of a linear operation whose backward gives all gradients.
fn check_at_once() -> Tensor<2> {
    let weight = tensor([WIDTH, WIDTH], 1);
    let output = linear(tensor([ROWS, WIDTH], 2) * 2.0, weight.clone(), None);
    assert!(weight.grad(&output.sum().backward()).is_some());
    weight
}
