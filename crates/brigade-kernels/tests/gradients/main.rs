//! Values and gradients of the fused operations in fp32 and bf16, against the same functions by Burn's operations in fp64, which no kernel of ours takes.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod any_shape;
mod attention;
mod cross_entropy;
mod extremes;
mod norms;

use brigade_kernels::{
    ActivationFunction, DeferredGradients, Weight, activate, deferring, dropout, embedding, feed_forward,
    gated, linear, linear_activation, linear_residual, rotary,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use common::devices::devices;
use common::{Case, check, check_without_differences};

/// Odd sizes, one row, and what fills vectors exactly.
const SIZES: [[usize; 3]; 6] = [[1, 1, 1], [3, 5, 7], [1, 64, 16], [33, 17, 65], [64, 32, 96], [70, 129, 31]];

#[test]
fn linear_layers() {
    for [rows, inputs, outputs] in SIZES {
        let case = Case::new([vec![rows, inputs], vec![inputs, outputs], vec![outputs]]);
        check(&case, |[x, w, b]| linear(x.reshape([rows, inputs]), w.reshape([inputs, outputs]), Some(b)));
        let case = Case::new([vec![rows, inputs], vec![inputs, outputs]]);
        check(&case, |[x, w]| linear(x.reshape([rows, inputs]), w.reshape([inputs, outputs]), None));
        // As a head that shares its weight with an embedding has it.
        let case = Case::new([vec![rows, inputs], vec![outputs, inputs]]);
        check(&case, |[x, w]| {
            linear(x.reshape([rows, inputs]), w.reshape([outputs, inputs]).transpose(), None)
        });
        check(&case, |[x, w]| {
            linear(x.reshape([rows, inputs]), Weight::Transposed(w.reshape([outputs, inputs])), None)
        });
    }
}

#[test]
fn weights_are_read_as_they_lie() {
    let case = Case::new([vec![5, 3], vec![8, 6]]);
    check(&case, |[x, w]| {
        // Every second column of a part, backwards.
        let w = w.reshape([8, 6]).slice([2..8, 0..6]).flip([0, 1]).reshape([3, 2, 6]).slice([0..3, 1..2]);
        linear(x.reshape([5, 3]), w.reshape([3, 6]).flip([1]), None)
    });
}

#[test]
#[should_panic(expected = "a bias of [2] for 3 outputs")]
fn a_bias_that_does_not_fit_is_named() {
    let [x, w, b] = Case::new([vec![4], vec![12], vec![2]]).tensors(&Device::flex());
    linear(x.reshape([1, 4]), w.reshape([4, 3]), Some(b));
}

#[test]
fn linear_layers_with_a_residual() {
    for [rows, inputs, outputs] in SIZES {
        let case = Case::new([vec![rows, inputs], vec![inputs, outputs], vec![outputs], vec![rows, outputs]]);
        check(&case, |[x, w, b, r]| {
            let (x, r) = (x.reshape([rows, inputs]), r.reshape([rows, outputs]));
            linear_residual(x, w.reshape([inputs, outputs]), Some(b), r)
        });
        let case = Case::new([vec![rows, inputs], vec![inputs, outputs], vec![rows, outputs]]);
        check(&case, |[x, w, r]| {
            let (x, r) = (x.reshape([rows, inputs]), r.reshape([rows, outputs]));
            linear_residual(x, w.reshape([inputs, outputs]), None, r)
        });
    }
}

const ACTIVATIONS: [ActivationFunction; 4] = [
    ActivationFunction::Gelu,
    ActivationFunction::GeluTanh,
    ActivationFunction::Silu,
    ActivationFunction::Relu,
];

fn check_activated<const N: usize>(
    activation: ActivationFunction,
    case: &Case<N>,
    function: impl Fn([Tensor<1>; N]) -> Tensor<2>,
) {
    match activation {
        ActivationFunction::Relu => check_without_differences(case, function),
        _ => check(case, function),
    }
}

#[test]
fn linear_layers_with_an_activation() {
    for activation in ACTIVATIONS {
        for [rows, inputs, outputs] in SIZES {
            let case = Case::new([vec![rows, inputs], vec![inputs, outputs], vec![outputs]]);
            check_activated(activation, &case, |[x, w, b]| {
                let (x, w) = (x.reshape([rows, inputs]), w.reshape([inputs, outputs]));
                linear_activation(x, w, Some(b), activation)
            });
            let case = Case::new([vec![rows, inputs], vec![inputs, outputs]]);
            check_activated(activation, &case, |[x, w]| {
                let (x, w) = (x.reshape([rows, inputs]), w.reshape([inputs, outputs]));
                linear_activation(x, w, None, activation)
            });
        }
    }
}

#[test]
fn activations_alone() {
    for activation in ACTIVATIONS {
        for [rows, width] in [[1, 1], [5, 17], [3, 64]] {
            let case = Case::new([vec![rows, width]]);
            check_activated(activation, &case, |[x]| activate(x.reshape([rows, width]), activation));
        }
    }
}

#[test]
fn gated_linear_units() {
    for activation in ACTIVATIONS {
        for [rows, width, _] in SIZES {
            let case = Case::new([vec![rows, width], vec![rows, width]]);
            check_activated(activation, &case, |[gate, up]| {
                gated(gate.reshape([rows, width]), up.reshape([rows, width]), activation)
            });
        }
    }
}

#[test]
fn rotary_positions() {
    // Batch, positions, heads, depth, planes; and whether each row of the batch has positions of its own.
    for ([batch, positions, heads, depth, planes], own) in [
        ([1, 1, 1, 2, 1], false),
        ([2, 5, 3, 16, 8], false),
        ([2, 5, 3, 16, 8], true),
        ([3, 7, 2, 33, 11], true),
        ([2, 3, 4, 64, 0], false),
    ] {
        let rows = if own { batch * positions } else { positions };
        let case = Case::new([vec![batch, positions, heads, depth]]);
        check(&case, |[x]| {
            let device = x.device().inner();
            let angles: Vec<f32> = (0..rows * planes).map(|i| (i * 37 % 64) as f32 / 10.0).collect();
            let table = |function: fn(f32) -> f32| {
                let values = angles.iter().map(|angle| function(*angle)).collect();
                Tensor::<2>::from_data(TensorData::new::<f32, _>(values, [rows, planes]), &device)
            };
            let x = x.reshape([batch, positions, heads, depth]);
            rotary(x, table(f32::cos), table(f32::sin))
        });
    }
}

#[test]
fn embeddings() {
    for [count, width, rows] in [[1, 1, 1], [5, 7, 3], [70, 33, 50], [300, 64, 211]] {
        check(&Case::new([vec![rows, width]]), |[weight]| {
            // As batches have them in training.
            let device = weight.device();
            let indices: Vec<i64> = (0..count).map(|i| (i * i * 31 % rows) as i64).collect();
            let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [1, count]), &device);
            embedding(weight.reshape([rows, width]), indices)
        });
    }
}

#[test]
fn gradients_of_a_row_that_is_looked_up_often_are_summed_in_fp32() {
    check(&Case::new([vec![3, 16]]), |[weight]| {
        let indices = TensorData::new(vec![1_i64; 4096], [4, 1024]);
        let indices = Tensor::<2, Int>::from_data(indices, &weight.device());
        embedding(weight.reshape([3, 16]), indices)
    });
}

#[test]
#[should_panic(expected = "`indices` has 3, which is none of 3 rows")]
fn indices_above_the_last_row_are_named() {
    let device = Device::flex();
    embedding(Tensor::<2>::ones([3, 4], &device), Tensor::<2, Int>::from_ints([[0, 3]], &device));
}

/// No other test here draws from Burn's generators.
#[test]
fn dropouts() {
    const SHAPES: [[usize; 2]; 5] = [[1, 1], [3, 5], [7, 130], [64, 96], [0, 4]];
    let numbers = |tensor: Tensor<2>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
    for (name, device, _, half) in devices() {
        for (shape, dtype) in SHAPES.into_iter().zip([DType::F32, DType::BF16].into_iter().cycle()) {
            if dtype == DType::BF16 && half.is_none() {
                continue;
            }
            let plain = Tensor::<2>::from_data(
                TensorData::new((0..shape[0] * shape[1]).map(|x| x as f32 / 64.0).collect::<Vec<_>>(), shape),
                (device, dtype),
            );
            let in_graph = |tensor: &Tensor<2>| {
                Tensor::<2>::from_data(tensor.to_data(), (&device.clone().autodiff(), dtype)).require_grad()
            };
            // The output and the gradients of `x` and the residual, for a gradient of the output that is the residual.
            let run = |seed: u64, residual: &Tensor<2>| {
                device.seed(seed);
                let [x, onto] = [&plain, residual].map(in_graph);
                let y = dropout(x.clone(), Some(onto.clone()), 0.25);
                let gradients = (y.clone() * residual.clone()).sum().backward();
                [y, x.grad(&gradients).unwrap(), onto.grad(&gradients).unwrap()].map(numbers)
            };
            let ones = plain.ones_like();
            let [y, d_x, d_residual] = run(11, &ones);
            // The gradient of `x` is then the mask itself.
            let kept = d_x.iter().map(|factor| if *factor == 0.0 { 0.0 } else { 1.0 / 0.75 });
            let rounding = if dtype == DType::F32 { 1e-6 } else { 1.0 / 128.0 };
            let close = |a: f32, b: f32| (a - b).abs() <= rounding * b.abs().max(1.0);
            assert!(kept.clone().zip(&d_x).all(|(kept, found)| close(*found, kept)), "{name}: {d_x:?}");
            let expected = kept.zip(numbers(plain.clone())).map(|(kept, x)| 1.0 + x * kept);
            assert!(expected.zip(&y).all(|(expected, y)| close(*y, expected)), "{name}: {y:?}");
            assert!(d_residual.iter().all(|slope| *slope == 1.0), "{name}");
            assert_eq!(run(11, &ones), [y.clone(), d_x.clone(), d_residual], "{name}: another mask");
            // Without a residual, and without a graph.
            device.seed(11);
            let alone = numbers(dropout(plain.clone(), None, 0.25));
            assert!(alone.iter().zip(&y).all(|(alone, y)| close(*y, alone + 1.0)), "{name}");
            if shape[0] > 0 {
                // However it lies.
                let turned = plain.clone().transpose().into_data();
                let turned = Tensor::<2>::from_data(turned, (device, dtype)).transpose();
                device.seed(11);
                assert_eq!(numbers(dropout(turned, None, 0.25)), alone, "{name}");
            }
            if shape == [64, 96] {
                let dropped = d_x.iter().filter(|factor| **factor == 0.0).count() as f64 / d_x.len() as f64;
                assert!((dropped - 0.25).abs() < 0.03, "{name}: {dropped} are dropped");
                let [_, others, _] = run(12, &ones);
                let both = d_x.iter().zip(&others).filter(|(a, b)| **a == 0.0 && **b == 0.0).count();
                let both = both as f64 / d_x.len() as f64;
                assert!((both - 0.0625).abs() < 0.02, "{name}: {both} are dropped with both seeds");
            }
        }
    }
}

/// The bits of the output, and of the gradients of all arguments: x, the weight up, its bias, the weight down, its bias, the residual.
fn bits_of(
    tensors: &[Tensor<1>; 6],
    [rows, width, inner]: [usize; 3],
    dtype: DType,
    function: impl Fn([Tensor<2>; 4], [Option<Tensor<1>>; 2]) -> Tensor<2>,
) -> Vec<Vec<u32>> {
    let leaves = tensors.each_ref().map(|tensor| {
        Tensor::<1>::from_data(tensor.to_data(), (&Device::flex().autodiff(), dtype)).require_grad()
    });
    let [x, up, up_bias, down, down_bias, residual] = leaves;
    let [up, down] = [up.reshape([width, inner]), down.reshape([inner, width])];
    let [x, residual] = [x, residual].map(|tensor| tensor.reshape([rows, width]));
    let matrices = [x, up, down, residual].map(|tensor| tensor.detach().require_grad());
    let biases = [up_bias, down_bias];
    let output = function(matrices.clone(), biases.clone().map(Some));
    let (gradients, mut deferred) = deferring(|| output.clone().square().sum().backward());
    let bits = |data: TensorData| data.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let [x, up, down, residual] = matrices;
    let mut found = vec![bits(output.into_data())];
    for tensor in [x, residual] {
        found.push(bits(tensor.grad(&gradients).unwrap().into_data()));
    }
    for tensor in [up, down] {
        found.push(bits(deferred.take(&tensor).unwrap().compute().into_data()));
    }
    found.extend(biases.map(|bias| bits(bias.grad(&gradients).unwrap().into_data())));
    found
}

#[test]
fn feed_forward_has_the_bits_of_its_parts() {
    for [rows, width, inner] in [[0, 3, 5], [1, 1, 1], [7, 33, 65], [130, 48, 192]] {
        let shapes = [vec![rows, width], vec![width, inner], vec![inner], vec![inner, width], vec![width]];
        let [x, up, up_bias, down, down_bias] = shapes;
        let case = Case::new([x.clone(), up, up_bias, down, down_bias, x]);
        let tensors = case.tensors(&Device::flex());
        for (dtype, activation) in [
            (DType::F32, ActivationFunction::Gelu),
            (DType::BF16, ActivationFunction::GeluTanh),
            (DType::F32, ActivationFunction::Silu),
        ] {
            let one = bits_of(&tensors, [rows, width, inner], dtype, |[x, up, down, residual], [a, b]| {
                feed_forward(x, (up, a), activation, (down, b), Some(residual))
            });
            let parts = bits_of(&tensors, [rows, width, inner], dtype, |[x, up, down, residual], [a, b]| {
                linear_residual(linear_activation(x, up, a, activation), down, b, residual)
            });
            assert!(one == parts, "{rows} x {width} x {inner}, {dtype:?}, {activation:?}");
        }
        check(&Case::new([vec![rows, width], vec![inner, width], vec![inner, width]]), |[x, up, down]| {
            let (up, down) = (up.reshape([inner, width]), down.reshape([inner, width]));
            feed_forward(
                x.reshape([rows, width]),
                (Weight::Transposed(up), None),
                ActivationFunction::Gelu,
                (down, None),
                None,
            )
        });
    }
}

/// The gradients of four weights, in two linear layers and a feed-forward part, and of how many something is left.
fn gradients_of_weights(device: &Device, splits: bool) -> (Vec<Vec<f32>>, usize) {
    let device = device.clone().autodiff();
    let matrix = |[rows, columns]: [usize; 2], salt: usize| {
        let values: Vec<f32> =
            (0..rows * columns).map(|i| ((i + 1) * (salt + 3) * 7919 % 101) as f32 / 50.0 - 1.0).collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows, columns]), &device).require_grad()
    };
    let x = matrix([5, 8], 1);
    let weights = [[8, 12], [12, 8], [8, 8], [8, 8]];
    let weights: Vec<_> = weights.into_iter().enumerate().map(|(salt, shape)| matrix(shape, salt)).collect();
    let [up, down, plain, turned] = [0, 1, 2, 3].map(|index| weights[index].clone());
    let bias = || Some(Tensor::<1>::ones([12], &device).require_grad());
    let y = feed_forward(x.clone(), (up, bias()), ActivationFunction::GeluTanh, (down, None), Some(x));
    let y = linear(linear(y, plain, None), Weight::Transposed(turned), None);
    let root = (y.clone() * y.detach()).sum();
    let (mut found, mut deferred) = match splits {
        true => deferring(|| root.backward()),
        false => (root.backward(), DeferredGradients::default()),
    };
    let mut left = 0;
    let gradient = |weight: &Tensor<2>| {
        let gradient = deferred.take(weight).map(|gradient| {
            left += 1;
            assert!(gradient.bytes() > 0 && weight.grad(&found).is_none());
            gradient.compute()
        });
        gradient.or_else(|| weight.grad_remove(&mut found)).unwrap().into_data().try_to_vec().unwrap()
    };
    (weights.iter().map(gradient).collect(), left)
}

#[test]
fn what_is_left_for_later_is_the_gradient_on_every_device() {
    for (name, device, ..) in devices() {
        let (at_once, none) = gradients_of_weights(device, false);
        let (later, left) = gradients_of_weights(device, true);
        assert_eq!((none, left), (0, 4), "{name}");
        let near = |a: &Vec<f32>, b: &Vec<f32>| {
            a.iter().zip(b).all(|(a, b)| a == b || *name == "cuda" && (a - b).abs() < 1e-2 * a.abs().max(1.0))
        };
        assert!(at_once.iter().zip(&later).all(|(a, b)| near(a, b)), "{name}: {at_once:?}, {later:?}");
    }
}

#[test]
fn what_is_no_number_passes_relu() {
    for (name, device, ..) in devices() {
        let device = device.clone().autodiff();
        let bias = Tensor::<1>::from_data([f32::NAN, -1.0, 2.0, -3.0], &device).require_grad();
        let (x, weight) = (Tensor::<2>::zeros([5, 8], &device), Tensor::<2>::zeros([8, 4], &device));
        let y = linear_activation(x, weight, Some(bias.clone()), ActivationFunction::Relu);
        let rows: Vec<f32> = y.clone().into_data().try_to_vec().unwrap();
        for row in rows.chunks(4) {
            assert!(row[0].is_nan() && row[1..] == [0.0, 2.0, 0.0], "{name}: {row:?}");
        }
        let gradient = bias.grad(&y.sum().backward()).unwrap().into_data();
        assert_eq!(gradient.try_to_vec::<f32>().unwrap(), [5.0, 0.0, 5.0, 0.0], "{name}");
    }
}
