//! Attention.

use brigade_kernels::{
    DropoutMask, Mask, attention, attention_packed, attention_packed_with_dropout, attention_with_dropout,
};
use burn::tensor::{Device, Tensor, TensorData};

use super::common::devices::devices;
use super::common::{Case, check};

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
fn scores_of_minus_infinity_are_seen_as_nothing() {
    for (name, device, ..) in devices() {
        for positions in [3, 8, 70, 600] {
            let of = |row: &dyn Fn(usize) -> [f32; 2]| {
                let values: Vec<f32> = (0..positions).flat_map(row).collect();
                Tensor::<4>::from_data(TensorData::new(values, [1, 1, positions, 2]), device)
            };
            // The products of the first query with the first two keys overflow.
            let q = of(&|query| if query == 0 { [1e30, 1.0] } else { [0.0, 1.0] });
            let k = of(&|key| if key < 2 { [-1e30, 0.5] } else { [0.0, (key % 10) as f32 / 4.0] });
            let v = of(&|key| [(key % 7) as f32, (key % 5) as f32]);
            let mixed = |q: &Tensor<4>, k: &Tensor<4>, v: &Tensor<4>, mask: Mask| {
                let mixed = attention(q.clone(), k.clone(), v.clone(), mask, 1.0);
                mixed.into_data().try_to_vec::<f32>().unwrap()
            };
            // The first query sees one key, and none of those after it.
            let causal = mixed(&q, &k, &v, Mask::Causal);
            assert!(causal[..2].iter().all(|x| x.is_nan()), "{name}, {positions}: {causal:?}");
            assert!(causal[2..].iter().all(|x| x.is_finite()), "{name}, {positions}: {causal:?}");
            let all = mixed(&q, &k, &v, Mask::None);
            let first = q.slice([0..1, 0..1, 0..1]);
            let [k, v] = [k, v].map(|tensor| tensor.slice([0..1, 0..1, 2..positions]));
            let without = mixed(&first, &k, &v, Mask::None);
            let near = all.iter().zip(&without).all(|(a, b)| (a - b).abs() < 1e-2);
            assert!(near && all.iter().all(|x| x.is_finite()), "{name}, {positions}: {all:?}, {without:?}");
        }
    }
}

#[test]
fn values_may_have_another_depth() {
    let (batch, heads, positions, depth, value_depth) = (2, 3, 37, 8, 5);
    let shapes = [depth, depth, value_depth].map(|depth| [batch, heads, positions, depth]);
    for mask in [Mask::None, Mask::Causal] {
        check(&Case::new(shapes.map(Vec::from)), |[q, k, v]| {
            let [q, k, v] = [(q, 0), (k, 1), (v, 2)].map(|(tensor, index)| tensor.reshape(shapes[index]));
            let mixed = attention(q, k, v, mask.clone(), 0.3);
            assert_eq!(mixed.dims(), [batch, heads, positions, value_depth]);
            mixed
        });
    }
}

#[test]
fn attention_of_no_query_is_empty() {
    let device = Device::flex().autodiff();
    let [k, v] = [(); 2].map(|()| Tensor::<4>::ones([1, 2, 3, 4], &device).require_grad());
    let q = Tensor::<4>::zeros([1, 2, 0, 4], &device).require_grad();
    let mixed = attention(q, k.clone(), v.clone(), Mask::Causal, 0.5);
    assert_eq!(mixed.dims(), [1, 2, 0, 4]);
    let gradients = mixed.sum().backward();
    for tensor in [k, v] {
        let gradient = tensor.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(gradient, [0.0; 24]);
    }
    let qkv = Tensor::<3>::zeros([2, 0, 24], &device).require_grad();
    let mixed = attention_packed(qkv.clone(), 2, 2, Mask::Causal, 0.5);
    assert_eq!(mixed.dims(), [2, 0, 8]);
    assert_eq!(qkv.grad(&mixed.sum().backward()).unwrap().dims(), [2, 0, 24]);
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
