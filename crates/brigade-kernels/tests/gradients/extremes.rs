//! Infinities, what is no number, and shares of a distribution that are small: as Burn's operations have them.

use brigade_kernels::{ActivationFunction, Mask, activate, attention, gated, layer_norm, rms_norm};
use burn::tensor::{Device, Tensor, TensorData};

use super::common::devices::devices;

const NAN: f32 = f32::NAN;
const INFINITY: f32 = f32::INFINITY;

fn matrix<const N: usize>(rows: &[[f32; N]], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), N]), device)
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// The row with zeros for what is not finite.
fn finite<const N: usize>(row: [f32; N]) -> [f32; N] {
    row.map(|x| if x.is_finite() { x } else { 0.0 })
}

fn assert_same(what: &str, found: &[f32], expected: &[f32]) {
    let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(same),
        "{what}: {found:?}, not {expected:?}"
    );
}

#[test]
fn activations_of_infinities_and_of_what_is_no_number() {
    for (activation, of_lowest) in [
        (ActivationFunction::Gelu, NAN),
        (ActivationFunction::GeluTanh, NAN),
        (ActivationFunction::Silu, NAN),
        (ActivationFunction::Relu, 0.0),
    ] {
        for (name, device, ..) in devices() {
            let what = format!("{activation:?} on {name}");
            let row = [0.5, NAN, -1.5, INFINITY, 2.0, -INFINITY, -0.25];
            let of = |row: [f32; 7]| floats(activate(matrix(&[row], device), activation));
            let numbers = of(finite(row));
            let expected = [numbers[0], NAN, numbers[2], INFINITY, numbers[4], of_lowest, numbers[6]];
            assert_same(&what, &of(row), &expected);

            let (gate, up) = (
                [NAN, INFINITY, -INFINITY, 1.0, 1.0, 1.0, 0.5, 2.0],
                [2.0, 2.0, 2.0, NAN, INFINITY, -INFINITY, 3.0, -1.0],
            );
            let of = |gate: [f32; 8], up: [f32; 8]| {
                floats(gated(matrix(&[gate], device), matrix(&[up], device), activation))
            };
            let numbers = of(finite(gate), finite(up));
            let expected = [NAN, INFINITY, 2.0 * of_lowest, NAN, INFINITY, -INFINITY, numbers[6], numbers[7]];
            assert_same(&format!("gated units with {what}"), &of(gate, up), &expected);
        }
    }
}

#[test]
fn norms_of_infinities_and_of_what_is_no_number() {
    let row = |x: f32| [1.0, x, -2.0, 0.5, 3.0, -1.0, 0.25, 2.0];
    for (name, device, ..) in devices() {
        let gamma = || Tensor::<1>::ones([8], device);
        let x = matrix(&[row(NAN), row(INFINITY), row(-INFINITY), row(1.5)], device);
        let alone = matrix(&[row(1.5)], device);
        let found = floats(layer_norm(x.clone(), gamma(), None, 1e-5));
        let last = floats(layer_norm(alone.clone(), gamma(), None, 1e-5));
        assert_same(&format!("a layer norm on {name}"), &found, &[vec![NAN; 24], last].concat());
        let found = floats(rms_norm(x, gamma(), 1e-6));
        let last = floats(rms_norm(alone, gamma(), 1e-6));
        let infinite = vec![0.0, NAN, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let expected = [vec![NAN; 8], infinite.clone(), infinite, last].concat();
        assert_same(&format!("an RMS norm on {name}"), &found, &expected);
    }
}

#[test]
fn softmaxes_of_infinities_and_of_what_is_no_number() {
    for (name, device, ..) in devices() {
        // Queries and keys of one element: a query's scores are all the query itself.
        let vectors = |values: [f32; 4]| matrix(&[values], device).reshape([1, 1, 4, 1]);
        let (keys, values) = (vectors([1.0; 4]), vectors([1.0, 2.0, 3.0, 6.0]));
        let q = vectors([NAN, INFINITY, -INFINITY, 0.5]);
        let found = floats(attention(q, keys, values, Mask::None, 1.0));
        assert!(found[..3].iter().all(|x| x.is_nan()), "{name}: {found:?}");
        assert!((found[3] - 3.0).abs() < 1e-2, "{name}: {found:?}");
    }
}

/// The distribution function of the normal distribution, to be multiplied with its argument.
const SHARES: [(f32, f64); 5] = [
    (-3.0, 1.349_898_031_630_095_7e-3),
    (-4.0, 3.167_124_183_311_996_5e-5),
    (-5.0, 2.866_515_718_791_946e-7),
    (-6.0, 9.865_876_450_377_012e-10),
    (-10.0, 7.619_853_024_160_593e-24),
];

#[test]
fn gelu_is_precise_where_it_is_small() {
    for (name, device, ..) in devices() {
        let x = matrix(&[SHARES.map(|(x, _)| x)], &device.clone().autodiff()).require_grad();
        let y = activate(x.clone(), ActivationFunction::Gelu);
        let found = floats(y.clone());
        let slopes = floats(x.grad(&y.sum().backward()).unwrap());
        for ((x, share), (found, slope)) in SHARES.into_iter().zip(found.into_iter().zip(slopes)) {
            let x = f64::from(x);
            let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            for (found, exact) in [(found, x * share), (slope, share + x * density)] {
                // The exponentials of drivers lose more units in the last place the larger their argument is.
                let difference = (f64::from(found) - exact).abs();
                assert!(difference <= 1e-4 * exact.abs(), "{name}, {x}: {found}, not {exact}");
            }
        }
    }
}
