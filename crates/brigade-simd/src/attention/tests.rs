use half::bf16;

use super::*;
use crate::Factor;
use crate::arch::tests::on_each;
use crate::testing::numbers;

const SHAPES: [[usize; 6]; 5] = [
    [1, 1, 1, 1, 1, 1],
    [2, 3, 3, 5, 5, 4],
    [1, 4, 2, 65, 65, 16],
    [1, 2, 1, 3, 130, 17],
    [1, 2, 2, 70, 70, 33],
];

/// Vectors one after another: of each sequence, of each head, of each position.
fn strides(heads: usize, positions: usize, depth: usize) -> HeadStrides {
    HeadStrides { batch: heads * positions * depth, position: depth, head: positions * depth }
}

/// The output and the gradients of queries, keys and values.
type Outcome = [Vec<f64>; 4];

/// By the definition, in `f64`.
fn exact(shape: &AttentionShape, inputs: [&[f64]; 4], probabilities: Probabilities<'_>) -> Outcome {
    let Probabilities { visible, dropout, .. } = probabilities;
    let scale = f64::from(probabilities.scale);
    let AttentionShape { batch, heads, queries, keys, depth, .. } = *shape;
    let [q, k, v, gradient] = inputs;
    let [mut output, mut d_q, mut d_k, mut d_v] = [q, q, k, v].map(|like| vec![0.0; like.len()]);
    for (sequence, head) in (0..batch * heads).map(|index| (index / heads, index % heads)) {
        for query in 0..queries {
            let at = ((sequence * heads + head) * queries + query) * depth;
            let key_at =
                |key: usize| ((sequence * shape.key_heads + shape.key_head(head)) * keys + key) * depth;
            let seen = visible.keys(shape, sequence, query);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let mut p: Vec<f64> = seen
                .clone()
                .map(|key| (scale * dot(&q[at..][..depth], &k[key_at(key)..][..depth])).exp())
                .collect();
            let sum: f64 = p.iter().sum();
            p.iter_mut().for_each(|p| *p /= sum);
            let mut factors = vec![1.0; seen.len()];
            if let Some(dropout) = dropout {
                dropout.factors((sequence * heads + head) * queries + query, seen.start, &mut factors);
            }
            let factors: Vec<f64> = factors.into_iter().map(f64::from).collect();
            for ((p, factor), key) in p.iter().zip(&factors).zip(seen.clone()) {
                (0..depth).for_each(|i| output[at + i] += p * factor * v[key_at(key) + i]);
            }
            let mean = dot(&gradient[at..][..depth], &output[at..][..depth]);
            for ((p, factor), key) in p.iter().zip(&factors).zip(seen) {
                let from = key_at(key);
                let slope = p * (factor * dot(&gradient[at..][..depth], &v[from..][..depth]) - mean) * scale;
                for i in 0..depth {
                    d_v[from + i] += p * factor * gradient[at + i];
                    d_q[at + i] += slope * k[from + i];
                    d_k[from + i] += slope * q[at + i];
                }
            }
        }
    }
    [output, d_q, d_k, d_v]
}

fn fused<T: Factor>(shape: &AttentionShape, inputs: [&[T]; 4], probabilities: Probabilities<'_>) -> Outcome {
    let [q, k, v, gradient] = inputs;
    let of_queries = strides(shape.heads, shape.queries, shape.depth);
    let of_keys = strides(shape.key_heads, shape.keys, shape.depth);
    let vectors = [(q, of_queries), (k, of_keys), (v, of_keys)]
        .map(|(values, strides)| HeadVectors { values, strides });
    let [mut output, mut d_q, mut d_k, mut d_v] = [q, q, k, v].map(|like| vec![T::from_f32(7.0); like.len()]);
    let mut logarithms = vec![7.0; shape.rows()];
    attention(shape, vectors, probabilities, HeadVectorsMut::new(&mut output, of_queries), &mut logarithms);
    let [result, gradient] = [&output, gradient].map(|values| HeadVectors { values, strides: of_queries });
    let gradients = [(&mut d_q, of_queries), (&mut d_k, of_keys), (&mut d_v, of_keys)]
        .map(|(values, strides)| HeadVectorsMut::new(values, strides));
    attention_backward(shape, vectors, probabilities, result, &logarithms, gradient, gradients);
    [output, d_q, d_k, d_v].map(|values| values.iter().map(|value| f64::from(value.to_f32())).collect())
}

fn check<T: Factor>(allowed: f64) {
    for [batch, heads, key_heads, queries, keys, depth] in SHAPES {
        let shape = AttentionShape { batch, heads, key_heads, queries, keys, depth, value_depth: depth };
        let ranges: Vec<[u32; 2]> = (0..batch * queries)
            .map(|query| if query % 5 == 3 { [1, 1] } else { [(query % keys) as u32 / 3, keys as u32] })
            .collect();
        let lengths = [batch * heads * queries, batch * key_heads * keys, batch * key_heads * keys];
        let [q, k, v] = lengths.map(|vectors| numbers::<T>(vectors * depth, vectors as u64, 1.5));
        let gradient = numbers::<T>(q.len(), 9, 1.0);
        let inputs = [&q[..], &k, &v, &gradient];
        let wide =
            inputs.map(|values| values.iter().map(|value| f64::from(value.to_f32())).collect::<Vec<_>>());
        for visible in [
            Visible::All,
            Visible::Causal { window: None },
            Visible::Causal { window: Some(3) },
            Visible::Ranges(&ranges),
        ] {
            for dropout in [None, Some(DropoutMask { probability: 0.25, seed: 7 })] {
                let probabilities = Probabilities { visible, scale: 0.4, dropout };
                let expected = exact(&shape, wide.each_ref().map(Vec::as_slice), probabilities);
                // What is kept grows, and its rounding with it.
                let allowed = allowed * dropout.map_or(1.0, |dropout| f64::from(dropout.factor()));
                compare(&shape, inputs, probabilities, &expected, allowed);
            }
        }
    }
}

fn compare<T: Factor>(
    shape: &AttentionShape,
    inputs: [&[T]; 4],
    probabilities: Probabilities<'_>,
    expected: &Outcome,
    allowed: f64,
) {
    on_each(|kind| {
        let found = fused(shape, inputs, probabilities);
        let names = ["the output", "queries", "keys", "values"];
        for ((found, expected), name) in found.iter().zip(expected).zip(names) {
            let largest = expected.iter().fold(1.0, |largest: f64, value| largest.max(value.abs()));
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() <= allowed * largest,
                    "{kind:?}, {shape:?}, {probabilities:?}: {found} at {index} of {name} instead of {expected}"
                );
            }
        }
    });
}

#[test]
fn near_the_definition_in_f32() {
    check::<f32>(2e-6);
}

#[test]
fn near_the_definition_in_bf16() {
    // The output, which has 8 bits, decides on slopes that are differences of larger numbers.
    check::<bf16>(3.0 * 2f64.powi(-8));
}

#[test]
fn what_is_no_number_shows() {
    let shape =
        AttentionShape { batch: 1, heads: 1, key_heads: 1, queries: 4, keys: 4, depth: 2, value_depth: 2 };
    let mut values = vec![bf16::ONE; 8];
    values[5] = bf16::NAN;
    let ones = [bf16::ONE; 8];
    let visible = Visible::Causal { window: None };
    let causal = Probabilities { visible, scale: 1.0, dropout: None };
    let [output, _, d_k, _] = fused(&shape, [&ones, &ones, &values, &ones], causal);
    // As in a product of matrices, nothing times what is no number is none either.
    let is_nan: Vec<_> = output.iter().map(|x| x.is_nan()).collect();
    assert!(is_nan.as_chunks::<2>().0[2..] == [[false, true]; 2] && is_nan.iter().step_by(2).all(|nan| !nan));
    assert!(d_k[..4].iter().any(|x| x.is_nan()));
}

#[test]
fn scores_of_minus_infinity_are_seen_as_nothing() {
    let keys = 130;
    let shape =
        AttentionShape { batch: 1, heads: 1, key_heads: 1, queries: 2, keys, depth: 2, value_depth: 2 };
    let visible = Probabilities { visible: Visible::All, scale: 1.0, dropout: None };
    // The products with these overflow: all of a tile's, or those of some keys.
    for hidden in [0..TILE, 0..TILE + 3, 70..keys, 5..9] {
        let key = |key: usize| if hidden.contains(&key) { [-1e30, 0.0] } else { [0.0, key as f32 / 100.0] };
        let k: Vec<f32> = (0..keys).flat_map(key).collect();
        let (v, gradient) = (numbers::<f32>(2 * keys, 3, 1.0), numbers::<f32>(4, 4, 1.0));
        let inputs = [&[1e30, 1.0, 2e30, -0.5][..], &k, &v, &gradient];
        let wide = inputs.map(|values| values.iter().copied().map(f64::from).collect::<Vec<_>>());
        let expected = exact(&shape, wide.each_ref().map(Vec::as_slice), visible);
        compare(&shape, inputs, visible, &expected, 2e-6);
    }
    let q = [1e30, 1.0, 0.0, 1.0];
    let k: Vec<f32> = (0..keys).flat_map(|_| [-1e30, 1.0]).collect();
    on_each(|kind| {
        let [output, ..] = fused(&shape, [&q, &k, &k, &q], visible);
        assert!(
            output[..2].iter().all(|x| x.is_nan()) && output[2..].iter().all(|x| x.is_finite()),
            "{kind:?}"
        );
    });
}

#[test]
fn dropout_is_even_and_depends_on_the_place_alone() {
    let dropout = DropoutMask { probability: 0.3, seed: 11 };
    let mut rows = vec![0.0; 400 * 500];
    dropout.tile(0, 0, 500, &mut rows);
    let share =
        |rows: &[f32]| rows.iter().filter(|factor| **factor == 0.0).count() as f64 / rows.len() as f64;
    assert!((share(&rows) - 0.3).abs() < 0.005, "{}", share(&rows));
    assert!(rows.iter().all(|factor| *factor == 0.0 || *factor == dropout.factor()));
    // The standard deviation of a row's share is 0.02, of two neighbours' 0.001.
    assert!(rows.chunks(500).all(|row| (share(row) - 0.3).abs() < 0.1));
    for apart in [1, 2, 499, 500, 501, 1000] {
        let both = rows.iter().zip(&rows[apart..]).filter(|(a, b)| **a == 0.0 && **b == 0.0).count();
        let both = both as f64 / (rows.len() - apart) as f64;
        assert!((both - 0.09).abs() < 0.005, "{both} of those {apart} apart");
    }
    on_each(|kind| {
        let mut part = vec![7.0; 130];
        dropout.factors(17, 70, &mut part);
        assert_eq!(part, rows[17 * 500 + 70..][..130], "{kind:?}");
    });
    let mut others = vec![0.0; rows.len()];
    DropoutMask { seed: 12, ..dropout }.tile(0, 0, 500, &mut others);
    let both = rows.iter().zip(&others).filter(|(a, b)| **a == 0.0 && **b == 0.0).count();
    assert!((both as f64 / rows.len() as f64 - 0.09).abs() < 0.005);
}

#[test]
#[should_panic(expected = "are beyond the end of 4 elements")]
fn strides_beyond_the_highest_number_are_refused() {
    let shape =
        AttentionShape { batch: 1, heads: 1, key_heads: 1, queries: 2, keys: 2, depth: 2, value_depth: 2 };
    let (values, mut output) = ([1.0f32; 4], [0.0f32; 4]);
    let near = strides(1, 2, 2);
    let vectors = [HeadVectors { values: &values[..], strides: near }; 3];
    let probabilities = Probabilities { visible: Visible::All, scale: 1.0, dropout: None };
    let output = HeadVectorsMut::new(&mut output, HeadStrides { position: usize::MAX, ..near });
    attention(&shape, vectors, probabilities, output, &mut [0.0; 2]);
}

#[test]
fn dropout_of_all_gives_zeros() {
    let shape =
        AttentionShape { batch: 1, heads: 2, key_heads: 1, queries: 70, keys: 70, depth: 3, value_depth: 3 };
    let [q, k] = [2 * 70 * 3, 70 * 3].map(|length| numbers::<f32>(length, 5, 1.5));
    let dropout = Some(DropoutMask { probability: 1.0, seed: 7 });
    let visible = Visible::Causal { window: None };
    on_each(|kind| {
        let outcome = fused(&shape, [&q, &k, &k, &q], Probabilities { visible, scale: 0.4, dropout });
        assert!(outcome.iter().flatten().all(|value| *value == 0.0), "{kind:?}: {outcome:?}");
    });
}
