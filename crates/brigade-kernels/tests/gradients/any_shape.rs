//! Operations of any shape.

use brigade_kernels::{
    ActivationFunction, Mask, attention, embedding, gated, layer_norm, linear_activation, rms_norm,
};
use burn::tensor::{Int, Tensor, TensorData};
use proptest::prelude::*;

use super::common::{Case, check};

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
