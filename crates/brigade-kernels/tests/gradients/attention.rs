//! Attention.

use brigade_kernels::{
    DropoutMask, Mask, attention, attention_packed, attention_packed_with_dropout, attention_with_dropout,
};
use burn::tensor::{Device, Tensor};

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
