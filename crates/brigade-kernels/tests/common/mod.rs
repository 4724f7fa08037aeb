//! Runs a function in fp32 and bf16, on the CPU and on devices with kernels, and compares values and gradients with those in fp64.

#[allow(dead_code)]
pub mod devices;

use burn::tensor::{DType, Device, Tensor, TensorData, bf16};
use devices::devices;

/// The values of a function's arguments.
pub struct Case<const N: usize> {
    arguments: [Vec<f64>; N],
    /// What the absolute values of the terms of a sum may add up to, where the sums themselves may all be less.
    terms: f64,
}

impl<const N: usize> Case<N> {
    /// With some values, about normal, that fp32 has exactly.
    pub fn new(shapes: [Vec<usize>; N]) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            let uniform = |state: &mut u64| {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 40) as f64 / (1u64 << 24) as f64 - 0.5
            };
            let sum: f64 = (0..4).map(|_| uniform(&mut state)).sum();
            f64::from((sum * 1.5) as f32)
        };
        let arguments = shapes.map(|shape| (0..shape.iter().product()).map(|_| next()).collect());
        Self { arguments, terms: 0.05 }
    }

    /// The same for a function with sums whose terms add up to `terms`.
    #[allow(dead_code)]
    pub fn with_terms(self, terms: f64) -> Self {
        Self { terms, ..self }
    }

    /// With values that bf16 has exactly.
    fn rounded(&self) -> Self {
        let rounded = |value: &f64| f64::from(bf16::from_f64(*value).to_f32());
        let arguments = self.arguments.each_ref().map(|values| values.iter().map(rounded).collect());
        Self { arguments, terms: self.terms }
    }

    /// In fp32, without a graph.
    #[allow(dead_code)]
    pub fn tensors(&self, device: &Device) -> [Tensor<1>; N] {
        self.typed(device, DType::F32)
    }

    fn typed(&self, device: &Device, dtype: DType) -> [Tensor<1>; N] {
        self.arguments
            .each_ref()
            .map(|values| Tensor::from_data(TensorData::new(values.clone(), [values.len()]), (device, dtype)))
    }
}

/// What a function gives, and the gradients of its arguments.
struct Outcome<const N: usize> {
    output: Vec<f64>,
    gradients: [Vec<f64>; N],
}

/// What the output is multiplied with.
fn factor(index: usize) -> f64 {
    ((index * 37 % 64) as f64 - 31.0) / 32.0
}

/// The scalar product of the output with fixed factors is derived.
fn run<const N: usize, const D: usize>(
    case: &Case<N>,
    device: &Device,
    dtype: DType,
    function: &impl Fn([Tensor<1>; N]) -> Tensor<D>,
) -> Outcome<N> {
    let arguments = case.typed(&device.clone().autodiff(), dtype).map(Tensor::require_grad);
    let output = function(arguments.clone());
    // Losses are fp32.
    assert!(output.dtype() == dtype || (dtype, output.dtype()) == (DType::BF16, DType::F32));
    let factors = (0..output.shape().num_elements()).map(factor).collect::<Vec<_>>();
    let factors = TensorData::new(factors, output.shape());
    let factors = Tensor::<D>::from_data(factors, (device, output.dtype()));
    let floats = |data: TensorData| data.iter::<f64>().collect::<Vec<_>>();
    let values = floats(output.clone().into_data());
    let gradients = (output * factors).sum().backward();
    let gradients = arguments.map(|argument| floats(argument.grad(&gradients).unwrap().into_data()));
    if dtype != DType::F64 {
        let without_graph = floats(function(case.typed(device, dtype)).into_data());
        assert!(without_graph == values, "without a graph it is not the same");
    }
    Outcome { output: values, gradients }
}

/// Compares gradients in fp64 with the difference of the function a small step forwards and backwards, in a direction with a part of every element.
fn check_by_differences<const N: usize, const D: usize>(
    case: &Case<N>,
    gradients: &[Vec<f64>; N],
    function: &impl Fn([Tensor<1>; N]) -> Tensor<D>,
) {
    const STEP: f64 = 1e-5;
    let direction = |argument: usize, index: usize| {
        let sign = if (argument + index).is_multiple_of(3) { -1.0 } else { 1.0 };
        sign * (1.0 + ((index * 29 + 7 * argument) % 32) as f64 / 32.0)
    };
    let at = |step: f64| {
        let mut moved = Case { arguments: case.arguments.clone(), terms: case.terms };
        for (argument, values) in moved.arguments.iter_mut().enumerate() {
            values
                .iter_mut()
                .enumerate()
                .for_each(|(index, value)| *value += step * direction(argument, index));
        }
        let output = function(moved.typed(&Device::flex(), DType::F64)).into_data();
        output.iter::<f64>().enumerate().map(|(index, value)| value * factor(index)).sum::<f64>()
    };
    let terms = gradients.iter().enumerate().flat_map(|(argument, gradient)| {
        gradient.iter().enumerate().map(move |(index, slope)| slope * direction(argument, index))
    });
    let (slope, size) =
        terms.fold((0.0, 0.0), |(sum, size): (f64, f64), term| (sum + term, size + term.abs()));
    let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
    assert!(
        (difference - slope).abs() <= 1e-6 * size.max(1e-3),
        "{difference} by differences, {slope} by the gradients"
    );
}

/// Compares the function in fp32 and in bf16 with itself in fp64 on the CPU, whose gradients are compared with differences.
pub fn check<const N: usize, const D: usize>(case: &Case<N>, function: impl Fn([Tensor<1>; N]) -> Tensor<D>) {
    for case in [case, &case.rounded()] {
        let exact = run(case, &Device::flex(), DType::F64, &function);
        check_by_differences(case, &exact.gradients, &function);
    }
    check_without_differences(case, function);
}

/// The same for a function that has kinks, where differences are not gradients.
pub fn check_without_differences<const N: usize, const D: usize>(
    case: &Case<N>,
    function: impl Fn([Tensor<1>; N]) -> Tensor<D>,
) {
    for (name, device, single, half) in devices() {
        let types = [(case, DType::F32, Some(*single)), (&case.rounded(), DType::BF16, *half)];
        for (case, dtype, shares) in types {
            let Some(shares) = shares else { continue };
            let found = run(case, device, dtype, &function);
            let exact = run(case, &Device::flex(), DType::F64, &function);
            let what = format!("the output on {name} in {dtype:?}");
            compare(&what, case.terms, shares, &found.output, &exact.output);
            for (index, (found, exact)) in found.gradients.iter().zip(&exact.gradients).enumerate() {
                let what = format!("the gradient of argument {index} on {name} in {dtype:?}");
                compare(&what, case.terms, shares, found, exact);
            }
        }
    }
}

/// Sums are held to the magnitude of their terms, not to their own: terms are of the order of 1, and sums of hundreds of them of mixed signs may lose a few units in the last place of their largest values. `shares`: of a value itself and of the largest, those that it may be off.
fn compare(what: &str, terms: f64, shares: [f64; 2], found: &[f64], exact: &[f64]) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let largest = exact.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let [own, of_largest] = shares;
    let allowed = |exact: f64| (own * exact.abs()).max(of_largest * largest).max(own * terms);
    let worst = found.iter().zip(exact).enumerate().find(|(_, (found, exact))| {
        let difference = (**found - **exact).abs();
        difference.is_nan() || difference > allowed(**exact)
    });
    assert!(worst.is_none(), "{what}: {worst:?} of {}, at most {largest}", found.len());
}
