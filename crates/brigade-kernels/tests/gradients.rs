//! Values and gradients of the fused operations in fp32 and bf16, against the same functions by Burn's operations in fp64, which no kernel of ours takes.

#![allow(clippy::unwrap_used)]

mod common;

use brigade_kernels::{
    ActivationFunction, CrossEntropyConfig, DeferredGradients, DropoutMask, Mask, Weight, activate,
    attention, attention_packed, attention_packed_with_dropout, attention_with_dropout, deferring, dropout,
    embedding, feed_forward, gated, layer_norm, linear, linear_activation, linear_cross_entropy,
    linear_residual, rms_norm, rms_norm_above_one, rotary,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use common::devices::devices;
use common::{Case, check, check_without_differences};
use proptest::prelude::*;

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

/// Parameters in fp32 beside activations in bf16.
#[test]
fn norms_with_parameters_of_another_type() {
    let device = Device::flex().autodiff();
    let case = Case::new([vec![3, 8], vec![8], vec![8]]);
    let [x, gamma, beta] = case.tensors(&device);
    let x = x.reshape([3, 8]).cast(DType::BF16);
    type Norm = fn(Tensor<2>, Tensor<1>, Tensor<1>) -> Tensor<2>;
    let norms: [Norm; 3] = [
        |x, gamma, beta| layer_norm(x, gamma, Some(beta), 1e-5),
        |x, gamma, _| rms_norm(x, gamma, 1e-5),
        |x, gamma, _| rms_norm_above_one(x, gamma, 1e-5),
    ];
    for norm in norms {
        let run = |x: Tensor<2>, wide: bool| {
            let (x, gamma) = (x.detach().require_grad(), gamma.clone().detach().require_grad());
            let input = if wide { x.clone().cast(DType::F32) } else { x.clone() };
            let output = norm(input, gamma.clone(), beta.clone());
            assert_eq!(output.dtype(), if wide { DType::F32 } else { DType::BF16 });
            let output = output.cast(DType::BF16);
            let gradients = output.clone().sum().backward();
            let gradients = [x.grad(&gradients).unwrap().reshape([24]), gamma.grad(&gradients).unwrap()];
            (output.into_data(), gradients.map(Tensor::into_data))
        };
        assert_eq!(run(x.clone(), false), run(x.clone(), true));
    }
}

#[test]
fn layer_norms() {
    for [rows, width, _] in SIZES.into_iter().filter(|[_, width, _]| *width > 1) {
        let case = Case::new([vec![rows, width], vec![width], vec![width]]);
        check(&case, |[x, gamma, beta]| layer_norm(x.reshape([rows, width]), gamma, Some(beta), 1e-5));
        let case = Case::new([vec![rows, width], vec![width]]);
        check(&case, |[x, gamma]| layer_norm(x.reshape([rows, width]), gamma, None, 1e-5));
        check(&case, |[x, gamma]| rms_norm(x.reshape([rows, width]), gamma, 1e-6));
        check(&case, |[x, gamma]| rms_norm_above_one(x.reshape([rows, width]), gamma, 1e-6));
    }
}

#[test]
fn what_is_added_to_one_counts_in_bf16() {
    let device = Device::flex();
    let x = Tensor::<2>::from_floats([[1.0, 2.0, 4.0, 8.0]], &device).cast(DType::BF16);
    let norm = |gamma: f32| {
        let gamma = Tensor::<1>::full([4], gamma, &device).cast(DType::BF16);
        rms_norm_above_one(x.clone(), gamma, 0.0).cast(DType::F32).into_data().try_to_vec::<f32>().unwrap()
    };
    // A tenth of bf16's distance between 1 and the next number, which decides where a product is rounded to.
    assert_ne!(norm(0.0), norm(0.0035));
}

/// Batch, heads, heads of keys, queries, keys, depth.
const ATTENTIONS: [[usize; 6]; 6] = [
    [1, 1, 1, 1, 1, 1],
    [2, 3, 3, 5, 5, 4],
    [1, 4, 2, 65, 65, 16],
    [2, 6, 1, 130, 130, 8],
    [1, 2, 2, 3, 70, 17],
    [1, 2, 1, 200, 200, 33],
];

#[test]
fn attentions() {
    for [batch, heads, key_heads, queries, keys, depth] in ATTENTIONS {
        let ranges = |query: usize| match query % 5 {
            // None at all.
            3 => [1, 1],
            odd => [(query / 3).min(keys - 1) as u32, (query + 1 + odd).min(keys) as u32],
        };
        let ranges: Vec<_> = (0..batch * queries).map(|query| ranges(query % queries)).collect();
        let masks = [Mask::None, Mask::Causal, Mask::Window(7), Mask::Ranges(ranges.into())];
        for mask in masks {
            let shapes = [
                vec![batch, heads, queries, depth],
                vec![batch, key_heads, keys, depth],
                vec![batch, key_heads, keys, depth],
            ];
            check(&Case::new(shapes.clone()), |[q, k, v]| {
                let q = q.reshape([batch, heads, queries, depth]);
                let [k, v] = [k, v].map(|tensor| tensor.reshape([batch, key_heads, keys, depth]));
                attention(q, k, v, mask.clone(), (depth as f64).powf(-0.5))
            });
            if depth == 4 || depth == 16 {
                let dropout = DropoutMask { probability: 0.25, seed: depth as u64 };
                check(&Case::new(shapes.clone()), |[q, k, v]| {
                    let q = q.reshape([batch, heads, queries, depth]);
                    let [k, v] = [k, v].map(|tensor| tensor.reshape([batch, key_heads, keys, depth]));
                    attention_with_dropout(q, k, v, mask.clone(), (depth as f64).powf(-0.5), dropout)
                });
            }
            if queries == keys {
                let width = (heads + 2 * key_heads) * depth;
                check(&Case::new([vec![batch, queries, width]]), |[qkv]| {
                    let qkv = qkv.reshape([batch, queries, width]);
                    attention_packed(qkv, heads, key_heads, mask.clone(), (depth as f64).powf(-0.5))
                });
                let dropout = DropoutMask { probability: 0.25, seed: depth as u64 };
                check(&Case::new([vec![batch, queries, width]]), |[qkv]| {
                    let qkv = qkv.reshape([batch, queries, width]);
                    let scale = (depth as f64).powf(-0.5);
                    attention_packed_with_dropout(qkv, heads, key_heads, mask.clone(), scale, dropout)
                });
            }
        }
    }
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

#[test]
fn vectors_are_read_as_they_lie() {
    let (batch, heads, positions, depth) = (2, 3, 66, 8);
    let shape = vec![batch, positions, heads, depth];
    check(&Case::new([shape.clone(), shape.clone(), shape]), |tensors| {
        let [q, k, v] =
            tensors.map(|tensor| tensor.reshape([batch, positions, heads, depth]).swap_dims(1, 2));
        attention(q, k, v, Mask::Causal, 0.3).swap_dims(1, 2)
    });
}

#[test]
fn vectors_of_one_element_may_lie_anyhow() {
    let shape = vec![1, 1, 1, 6];
    check(&Case::new([shape.clone(), shape.clone(), shape]), |tensors| {
        let [q, k, v] = tensors.map(|tensor| tensor.reshape([1, 1, 1, 6]).swap_dims(2, 3));
        attention(q, k.flip([0]), v, Mask::Causal, 1.0)
    });
}

#[test]
fn documents_in_one_row_do_not_see_one_another() {
    let (heads, depth, row) = (2, 8, 80);
    let packed = |qkv: Tensor<3>, lengths: &[usize]| {
        attention_packed(qkv, heads, heads, Mask::causal_documents(&[lengths], row), 0.3)
    };
    let case = Case::new([vec![1, row, 3 * heads * depth]]);
    let [qkv] = case.tensors(&Device::flex());
    let qkv = qkv.reshape([1, row, 3 * heads * depth]);
    let both = packed(qkv.clone(), &[30, 45]);
    let alone = |from: usize, to: usize| {
        let document = qkv.clone().slice([0..1, from..to]);
        attention_packed(document, heads, heads, Mask::Causal, 0.3).into_data().try_to_vec::<f32>().unwrap()
    };
    let of = |from: usize, to: usize| {
        both.clone().slice([0..1, from..to]).into_data().try_to_vec::<f32>().unwrap()
    };
    // Other tiles, so other last bits.
    let near = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near(of(0, 30), alone(0, 30)) && near(of(30, 75), alone(30, 75)));
    assert!(near(of(79, 80), alone(79, 80)), "padding sees itself");
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

#[test]
fn cross_entropies() {
    // The last has more rows than a chunk.
    for [rows, width, classes] in [[1, 1, 2], [5, 3, 7], [65, 17, 33], [1100, 3, 4096]] {
        // -100 is PyTorch's `ignore_index`; above the last class where the weight is 0.
        let targets = |weighted: bool| -> Vec<i64> {
            let target = |row: usize| match row % 7 {
                3 => -100,
                5 => -1,
                _ if weighted && row % 3 == 1 => classes as i64,
                _ => (row * 7919 % classes) as i64,
            };
            (0..rows).map(target).collect()
        };
        let weights: Vec<f32> =
            (0..rows).map(|row| if row % 3 == 1 { 0.0 } else { 1.0 + row as f32 / 64.0 }).collect();
        for (config, weighted) in [
            (CrossEntropyConfig::default(), false),
            (CrossEntropyConfig::default(), true),
            (CrossEntropyConfig { label_smoothing: 0.1, z_loss: 1e-2, ..Default::default() }, true),
        ] {
            check(&Case::new([vec![rows, width], vec![classes, width]]), |[x, w]| {
                // As batches have them in training.
                let device = x.device();
                let targets = TensorData::new(targets(weighted), [rows]);
                let targets = Tensor::<1, Int>::from_data(targets, &device);
                let row_weights = weighted.then(|| {
                    Tensor::<1>::from_data(TensorData::new(weights.clone(), [rows]), (&device, x.dtype()))
                });
                let (x, w) = (x.reshape([rows, width]), w.reshape([classes, width]));
                linear_cross_entropy(x, w, targets, row_weights, config).0
            });
        }
    }
}

#[test]
fn a_head_that_is_frozen_has_the_same_loss_and_gradient() {
    let [x, w] = Case::new([vec![70 * 16], vec![33 * 16]]).tensors(&Device::flex());
    let gradients = |tracked: [bool; 2]| {
        let [x, w] =
            [(x.clone(), 70), (w.clone(), 33)].map(|(values, rows)| values.reshape([rows, 16]).autodiff());
        let x = if tracked[0] { x.require_grad() } else { x };
        let w = if tracked[1] { w.require_grad() } else { w };
        let targets = (0..70).map(|row| row * 7919 % 33).collect::<Vec<i64>>();
        let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [70]), &Device::flex());
        let (loss, _) =
            linear_cross_entropy(x.clone(), w.clone(), targets, None, CrossEntropyConfig::default());
        let gradients = loss.clone().backward();
        let of = |tensor: Tensor<2>| tensor.grad(&gradients).map(|gradient| gradient.into_data());
        (loss.into_data(), of(x), of(w))
    };
    let (loss, of_x, of_w) = gradients([true, true]);
    assert_eq!(gradients([true, false]), (loss.clone(), of_x, None));
    assert_eq!(gradients([false, true]), (loss, None, of_w));
}

#[test]
#[should_panic(expected = "`targets` has 7 in row 2, which is none of 7 classes")]
fn targets_above_the_last_class_are_named() {
    let device = Device::flex();
    let [x, w] = [3, 7].map(|rows| Tensor::<2>::ones([rows, 4], &device));
    let targets = Tensor::<1, Int>::from_ints([-100, 1, 7], &device);
    linear_cross_entropy(x, w, targets, None, CrossEntropyConfig::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    // At least four outputs, of whose gradients one is no small difference of large numbers; `SIZES` has fewer.
    fn any_shape(rows in 0usize..40, inputs in 1usize..40, outputs in 4usize..40) {
        let case = Case::new([vec![rows, inputs], vec![inputs, outputs], vec![outputs]]);
        check(&case, |[x, w, b]| {
            let (x, w) = (x.reshape([rows, inputs]), w.reshape([inputs, outputs]));
            linear_activation(x, w, Some(b), ActivationFunction::Gelu)
        });
    }

    #[test]
    // The gradient of a norm of a few elements is a small difference of large numbers; `SIZES` has fewer.
    fn any_rows(rows in 0usize..20, width in 8usize..40) {
        let case = Case::new([vec![rows, width], vec![width], vec![width]]);
        check(&case, |[x, gamma, beta]| layer_norm(x.reshape([rows, width]), gamma, Some(beta), 1e-5));
        let case = Case::new([vec![rows, width], vec![width]]);
        check(&case, |[x, gamma]| rms_norm(x.reshape([rows, width]), gamma, 1e-6));
        let case = Case::new([vec![rows, width], vec![rows, width]]);
        check(&case, |[gate, up]| {
            gated(gate.reshape([rows, width]), up.reshape([rows, width]), ActivationFunction::Silu)
        });
        check(&Case::new([vec![7, width]]), |[table]| {
            let indices: Vec<i64> = (0..rows).map(|row| (row * row % 7) as i64).collect();
            let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [1, rows]), &table.device());
            embedding(table.reshape([7, width]), indices)
        });
    }

    #[test]
    // Who sees a single key has no slopes, which nothing can be near to; `ATTENTIONS` has such queries.
    fn any_attention(
        (batch, group, key_heads) in (1usize..3, 1usize..4, 1usize..3),
        (queries, more, depth) in (8usize..90, 0usize..90, 1usize..20),
        window in 5usize..40,
    ) {
        let (heads, keys) = (group * key_heads, queries + more);
        let of = |heads: usize, positions: usize| [batch, heads, positions, depth];
        let shapes = [of(heads, queries), of(key_heads, keys), of(key_heads, keys)];
        for mask in [Mask::None, Mask::Causal, Mask::Window(window)] {
            // A key that few queries see has a gradient of as many terms, each a probability, which bf16 rounds, times up to 1.
            check(&Case::new(shapes.map(Vec::from)).with_terms(0.25), |[q, k, v]| {
                attention(q.reshape(shapes[0]), k.reshape(shapes[1]), v.reshape(shapes[2]), mask.clone(), 0.3)
            });
        }
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
