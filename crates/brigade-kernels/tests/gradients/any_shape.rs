//! Operations of any shape.

use brigade_kernels::{
    ActivationFunction, CrossEntropyConfig, Mask, activate, attention, embedding, feed_forward, gated,
    layer_norm, linear_activation, linear_cross_entropy, linear_residual, rms_norm, rotary,
};
use burn::tensor::{Int, Tensor, TensorData};
use proptest::prelude::*;

use super::common::{Case, check};

/// Targets of which some are ignored.
fn targets(rows: usize, classes: usize) -> Vec<i64> {
    (0..rows).map(|row| if row % 7 == 3 { -100 } else { (row * 7919 % classes) as i64 }).collect()
}

/// The loss of a head with everything that is added to it.
fn head(x: Tensor<2>, weight: Tensor<2>) -> Tensor<1> {
    let ([rows, _], [classes, _]) = (x.dims(), weight.dims());
    let targets = TensorData::new(targets(rows, classes), [rows]);
    let targets = Tensor::<1, Int>::from_data(targets, &x.device());
    let config = CrossEntropyConfig { label_smoothing: 0.1, z_loss: 1e-2, ..Default::default() };
    linear_cross_entropy(x, weight, targets, None, config).0
}

/// `x` rotated by angles of its positions.
fn rotated(x: Tensor<4>, planes: usize, own_positions: bool) -> Tensor<4> {
    let [batch, positions, ..] = x.dims();
    let rows = if own_positions { batch * positions } else { positions };
    let device = x.device().inner();
    let table = |function: fn(f32) -> f32| {
        let values: Vec<f32> = (0..rows * planes).map(|i| function((i * 37 % 64) as f32 / 10.0)).collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows, planes]), &device)
    };
    rotary(x, table(f32::cos), table(f32::sin))
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_residual(rows in 0usize..40, inputs in 1usize..40, outputs in 4usize..40) {
        let case = Case::new([vec![rows, inputs], vec![inputs, outputs], vec![outputs], vec![rows, outputs]]);
        check(&case, |[x, w, b, residual]| {
            let (x, w) = (x.reshape([rows, inputs]), w.reshape([inputs, outputs]));
            linear_residual(x, w, Some(b), residual.reshape([rows, outputs]))
        });
    }

    #[test]
    fn any_feed_forward(rows in 0usize..20, width in 8usize..40, inner in 8usize..40) {
        let shapes = [vec![rows, width], vec![width, inner], vec![inner], vec![inner, width], vec![width]];
        check(&Case::new(shapes), |[x, up, up_bias, down, down_bias]| {
            let x = x.reshape([rows, width]);
            let up = (up.reshape([width, inner]), Some(up_bias));
            let down = (down.reshape([inner, width]), Some(down_bias));
            feed_forward(x.clone(), up, ActivationFunction::Gelu, down, Some(x))
        });
    }

    #[test]
    fn any_head(rows in 1usize..40, width in 4usize..12, classes in 4usize..40) {
        // A gradient of logits is the difference of probabilities.
        let case = Case::new([vec![rows, width], vec![classes, width]]).with_terms(0.25);
        check(&case, |[x, w]| head(x.reshape([rows, width]), w.reshape([classes, width])));
    }

    #[test]
    fn any_rotary(
        (batch, positions, heads) in (1usize..4, 1usize..8, 1usize..5),
        (planes, rest) in (1usize..20, 0usize..5),
        own_positions in any::<bool>(),
    ) {
        let shape = [batch, positions, heads, 2 * planes + rest];
        check(&Case::new([shape.to_vec()]), |[x]| rotated(x.reshape(shape), planes, own_positions));
    }

    #[test]
    // Columns lie one after another, as after a transposition.
    fn any_order(rows in 1usize..20, width in 8usize..40) {
        let turned = |values: Tensor<1>| values.reshape([width, rows]).transpose();
        let case = Case::new([vec![rows, width], vec![width], vec![width]]);
        check(&case, |[x, gamma, beta]| layer_norm(turned(x), gamma, Some(beta), 1e-5));
        let case = Case::new([vec![rows, width], vec![width]]);
        check(&case, |[x, gamma]| rms_norm(turned(x), gamma, 1e-6));
        check(&Case::new([vec![rows, width]]), |[x]| activate(turned(x), ActivationFunction::Gelu));
        check(&Case::new([vec![rows, width], vec![rows, width]]), |[gate, up]| {
            gated(turned(gate), up.reshape([rows, width]), ActivationFunction::Silu)
        });
        check(&Case::new([vec![7, width]]), |[table]| {
            let indices: Vec<i64> = (0..rows).map(|row| (row * row % 7) as i64).collect();
            let indices = Tensor::<2, Int>::from_data(TensorData::new(indices, [1, rows]), &table.device());
            embedding(table.reshape([width, 7]).transpose(), indices)
        });
    }

    #[test]
    // Heads before positions, and columns before rows.
    fn any_order_of_heads_and_classes(rows in 1usize..20, width in 4usize..12) {
        let shape = [2, 3, rows, 2 * width];
        check(&Case::new([shape.to_vec()]), |[x]| rotated(x.reshape(shape).swap_dims(1, 2), width, true));
        let case = Case::new([vec![rows, width], vec![9, width]]).with_terms(0.25);
        check(&case, |[x, w]| {
            head(x.reshape([width, rows]).transpose(), w.reshape([width, 9]).transpose())
        });
    }
}
