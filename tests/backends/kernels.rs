//! Operations that have kernels on a backend, near the CPU's: products of odd shapes, as transposed and as padded as they come, and what is fused with them.

use brigade::kernels::{
    ActivationFunction, CrossEntropyConfig, Mask, Weight, attention, attention_packed, feed_forward,
    is_fused, layer_norm, linear, linear_activation, linear_cross_entropy, linear_residual, rotary,
    square_sums,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::backend::{Backend, backends};

/// The types, and how far numbers of the order of 1 may be from the CPU's in them.
const TYPES: [(DType, f32); 2] = [(DType::F32, 6e-3), (DType::BF16, 8e-2)];

/// About normal numbers, of the order of 1.
fn values<const D: usize>(shape: [usize; D], salt: usize, device: &Device, dtype: DType) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    let data = TensorData::new((0..count).map(value).collect::<Vec<_>>(), shape);
    Tensor::from_data(data, (device, dtype)).require_grad()
}

/// The output of a function of a device and a type, and the gradients that it gives, by name.
type Outcome = Vec<(&'static str, Vec<f32>)>;

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn outcome<const D: usize, const N: usize>(
    output: Tensor<D>,
    leaves: [(&'static str, Tensor<2>); N],
) -> Outcome {
    let shape = output.shape();
    let factors: Vec<f32> = (0..shape.num_elements()).map(|i| ((i * 37 % 64) as f32 - 31.0) / 64.0).collect();
    let factors =
        Tensor::<D>::from_data(TensorData::new(factors, shape), (&output.device().inner(), output.dtype()));
    let gradients = (output.clone() * factors).sum().backward();
    let found = leaves.into_iter().map(|(name, leaf)| (name, floats(leaf.grad(&gradients).unwrap())));
    std::iter::once(("output", floats(output))).chain(found).collect()
}

fn near(backend: &Backend, what: &str, function: impl Fn(&Device, DType) -> Outcome + Sync) {
    for (dtype, share) in TYPES {
        if dtype == DType::BF16 && backend.name != "cuda" {
            continue;
        }
        let exact = function(&brigade_cpu::device().autodiff(), DType::F32);
        let found = backend.on_threads(1, 1, |device, _| function(&device.autodiff(), dtype)).remove(0);
        for ((name, found), (_, exact)) in found.iter().zip(&exact) {
            let largest = exact.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let worst = found.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            let finite = found.iter().all(|value| value.is_finite());
            assert!(
                finite && worst <= share * largest.max(1e-3),
                "{what} on {}, {dtype:?}, {name}: {worst} of {largest}",
                backend.name
            );
        }
    }
}

#[test]
fn products() {
    for backend in backends() {
        for [rows, inputs, outputs] in
            [[1, 1, 1], [3, 5, 7], [33, 17, 65], [64, 96, 32], [200, 72, 257], [130, 264, 9]]
        {
            near(&backend, &format!("linear layers of {rows} x {inputs} x {outputs}"), |device, dtype| {
                let x = values([rows, inputs], 1, device, dtype);
                let w = values([inputs, outputs], 2, device, dtype);
                let v = values([outputs, inputs], 3, device, dtype);
                let b = values([1, outputs], 4, device, dtype);
                let bias = || Some(b.clone().reshape([outputs]));
                assert!(is_fused(&x), "there are no kernels on this device");
                let y = linear(x.clone(), w.clone(), bias());
                let y = linear_residual(x.clone(), Weight::Transposed(v.clone()), bias(), y);
                let y = y + linear_activation(x.clone(), w.clone(), bias(), ActivationFunction::GeluTanh);
                outcome(y, [("x", x), ("w", w), ("v", v), ("b", b)])
            });
            near(
                &backend,
                &format!("a feed-forward layer of {rows} x {inputs} x {outputs}"),
                |device, dtype| {
                    let x = values([rows, inputs], 1, device, dtype);
                    let w = values([inputs, outputs], 2, device, dtype);
                    let v = values([inputs, outputs], 3, device, dtype);
                    let [b, c] =
                        [(outputs, 4), (inputs, 5)].map(|(n, salt)| values([1, n], salt, device, dtype));
                    let up = (w.clone(), Some(b.clone().reshape([outputs])));
                    let down = (Weight::Transposed(v.clone()), Some(c.clone().reshape([inputs])));
                    let y = feed_forward(x.clone(), up, ActivationFunction::GeluTanh, down, Some(x.clone()));
                    outcome(y, [("x", x), ("w", w), ("v", v), ("b", b), ("c", c)])
                },
            );
        }
    }
}

#[test]
fn attentions() {
    for backend in backends() {
        for [batch, heads, key_heads, length, depth] in
            [[1, 1, 1, 1, 4], [2, 4, 2, 33, 8], [3, 2, 2, 64, 16], [1, 6, 1, 130, 20], [2, 2, 2, 512, 64]]
        {
            for mask in [Mask::None, Mask::Causal, Mask::Window(9)] {
                near(&backend, &format!("attention of {length} positions"), |device, dtype| {
                    let rows = |heads: usize| [batch * length, heads * depth];
                    let [q, k, v] = [(heads, 1), (key_heads, 2), (key_heads, 3)]
                        .map(|(heads, salt)| values(rows(heads), salt, device, dtype));
                    let of = |tensor: &Tensor<2>, heads: usize| {
                        tensor.clone().reshape([batch, length, heads, depth]).swap_dims(1, 2)
                    };
                    let (queries, keys) = (of(&q, heads), of(&k, key_heads));
                    let mixed = attention(queries, keys, of(&v, key_heads), mask.clone(), 0.4);
                    outcome(mixed, [("q", q), ("k", k), ("v", v)])
                });
            }
        }
    }
}

/// Of the same numbers in bf16, where a device has kernels that keep scores in registers: the error of a result as a whole, the same bits twice, and from one tensor as from three.
#[test]
fn attentions_in_bf16() {
    // Multiples of 1/64, which are numbers of bf16.
    let values = |shape: [usize; 2], salt: usize, device: &Device, dtype: DType| -> Tensor<2> {
        let value = |i: usize| ((i * 7919 + salt * 104_729) % 251) as f32 / 64.0 - 2.0;
        let data = TensorData::new((0..shape[0] * shape[1]).map(value).collect::<Vec<_>>(), shape);
        Tensor::from_data(data, (device, dtype)).require_grad()
    };
    for backend in backends().into_iter().filter(|backend| backend.name == "cuda") {
        for ([batch, heads, key_heads, length, depth], mask) in [
            ([1, 1, 1, 1, 64], Mask::Causal),
            ([2, 3, 3, 64, 64], Mask::None),
            ([1, 2, 2, 129, 64], Mask::Causal),
            ([2, 4, 2, 200, 64], Mask::Window(50)),
            ([1, 12, 12, 1024, 64], Mask::Causal),
            ([1, 2, 1, 77, 128], Mask::Causal),
            ([1, 3, 3, 300, 96], Mask::Window(120)),
            ([2, 2, 2, 65, 16], Mask::Causal),
            ([2, 4, 2, 150, 64], Mask::causal_documents(&[&[70, 80], &[10, 50, 70]], 150)),
        ] {
            let what = format!("{mask:?} of {batch} x {heads}/{key_heads} x {length} x {depth}");
            let scale = (depth as f64).sqrt().recip();
            let width = (heads + 2 * key_heads) * depth;
            let packed = |device: &Device, dtype: DType| {
                let qkv = values([batch * length, width], 1, device, dtype);
                let all = qkv.clone().reshape([batch, length, width]);
                let mixed = attention_packed(all, heads, key_heads, mask.clone(), scale);
                outcome(mixed.reshape([batch * length, heads * depth]), [("qkv", qkv)])
            };
            let separate = |device: &Device, dtype: DType| {
                let qkv = values([batch * length, width], 1, device, dtype);
                let of = |first: usize, count: usize| {
                    let part = qkv.clone().slice([0..batch * length, first * depth..(first + count) * depth]);
                    part.reshape([batch, length, count, depth]).swap_dims(1, 2)
                };
                let (q, k, v) = (of(0, heads), of(heads, key_heads), of(heads + key_heads, key_heads));
                let mixed = attention(q, k, v, mask.clone(), scale);
                let mixed = mixed.swap_dims(1, 2).reshape([batch * length, heads * depth]);
                outcome(mixed, [("qkv", qkv)])
            };
            let exact = packed(&brigade_cpu::device().autodiff(), DType::F32);
            let run = |function: &(dyn Fn(&Device, DType) -> Outcome + Sync)| {
                backend.on_threads(1, 1, |device, _| function(&device.autodiff(), DType::BF16)).remove(0)
            };
            let found = run(&packed);
            assert_eq!(found, run(&packed), "{what}, twice");
            assert_eq!(found, run(&separate), "{what}, from three tensors");
            for ((name, found), (_, exact)) in found.iter().zip(&exact) {
                let norm = |values: &mut dyn Iterator<Item = f32>| {
                    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
                };
                let apart = norm(&mut found.iter().zip(exact).map(|(a, b)| a - b));
                let share = apart / norm(&mut exact.iter().copied());
                assert!(share < 1e-2, "{what}, {name}: {share}");
            }
        }
    }
}

#[test]
fn losses_and_norms() {
    for backend in backends() {
        for [rows, width, classes] in [[1, 2, 3], [70, 24, 257], [300, 64, 1000]] {
            near(&backend, &format!("the cross entropy of {classes} classes"), |device, dtype| {
                let x = values([rows, width], 1, device, dtype);
                let w = values([classes, width], 2, device, dtype);
                let gamma = values([1, width], 3, device, dtype);
                let targets: Vec<i64> = (0..rows)
                    .map(|row| if row % 7 == 3 { -100 } else { (row * 31 % classes) as i64 })
                    .collect();
                let targets =
                    Tensor::<1, Int>::from_data(TensorData::new(targets, [rows]), &device.clone().inner());
                let gammas = gamma.clone().reshape([width]);
                let normed = layer_norm(x.clone(), gammas.clone(), Some(gammas), 1e-5);
                let (loss, _) =
                    linear_cross_entropy(normed, w.clone(), targets, None, CrossEntropyConfig::default());
                outcome(loss.div_scalar(rows as f64), [("x", x), ("w", w), ("gamma", gamma)])
            });
        }
    }
}

#[test]
fn rotary_positions() {
    for backend in backends() {
        for ([batch, positions, heads, depth], planes) in
            [([2, 5, 3, 16], 8), ([3, 7, 2, 33], 11), ([2, 130, 4, 64], 32), ([1, 9, 2, 12], 4)]
        {
            near(&backend, &format!("rotary positions of {heads} x {depth}"), |device, dtype| {
                let x = values([batch * positions, heads * depth], 1, device, dtype);
                let angles = |function: fn(f32) -> f32| {
                    let of = |i: usize| function((i * 37 % 64) as f32 / 10.0);
                    let angles = (0..positions * planes).map(of).collect::<Vec<_>>();
                    let angles = TensorData::new(angles, [positions, planes]);
                    Tensor::<2>::from_data(angles, (&device.clone().inner(), DType::F32))
                };
                let vectors = x.clone().reshape([batch, positions, heads, depth]);
                outcome(rotary(vectors, angles(f32::cos), angles(f32::sin)), [("x", x)])
            });
        }
    }
}

/// The norm of a gradient: squares are added up by exponent, without rounding, by all cubes at once.
#[test]
fn sums_of_squares() {
    let values: Vec<f32> = (0..300_007u64).map(|i| ((i * 7919) % 1009) as f32 * 1e-3 - 0.5).collect();
    let exact: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    for backend in backends() {
        let found = backend.on_threads(1, 1, |device, _| {
            let sums = square_sums(&[Tensor::<1>::from_floats(values.as_slice(), &device)], 256);
            sums.map(|sums| sums.into_data().iter::<u32>().collect::<Vec<_>>())
        });
        let Some(sums) = &found[0] else { continue };
        let of_exponent = |(exponent, pair): (usize, &[u32])| {
            (4096.0 * f64::from(pair[1]) + f64::from(pair[0])) * 2f64.powi(exponent.max(1) as i32 - 150)
        };
        let sum: f64 = sums.chunks(2).enumerate().map(of_exponent).sum();
        let places: Vec<_> = sums.iter().enumerate().filter(|(_, sum)| **sum > 0).collect();
        assert!((sum - exact).abs() < 1e-6 * exact, "{}: {sum}, not {exact}: {places:?}", backend.name);
    }
}
