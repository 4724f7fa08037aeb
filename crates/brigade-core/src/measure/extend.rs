//! What a large model needs, by what two smaller ones do.

use brigade_plan::{BoundaryTensor, SavedActivations};

use super::MeasuredActivations;

/// What the larger model needs. Tensors of floats have a token's numbers, or are weights: they grow by the square of all sizes. What is beside them does not grow, so that two
/// measurements give both.
pub(super) fn extended(measured: [(usize, MeasuredActivations); 2]) -> MeasuredActivations {
    let [(small, a), (smaller, b)] = measured;
    let bytes = |a: u64, b: u64| at_full_size([(small, a), (smaller, b)]);
    // Integers are one for each token, and what has a vector for each row grows as its width does.
    combined([a, b], bytes, |a, b| match a.has_gradient && a.bytes != 2 * b.bytes {
        true => bytes(a.bytes, b.bytes),
        false => a.bytes * small as u64,
    })
}

/// One measurement from two, whose numbers of bytes are combined in these ways: the activations saved inside blocks, and the tensors between them.
pub(super) fn combined(
    [a, b]: [MeasuredActivations; 2],
    bytes: impl Fn(u64, u64) -> u64,
    boundary_bytes: impl Fn(&BoundaryTensor, &BoundaryTensor) -> u64,
) -> MeasuredActivations {
    let boundary = |(a, b): (BoundaryTensor, BoundaryTensor)| {
        let bytes = boundary_bytes(&a, &b);
        BoundaryTensor { bytes, ..a }
    };
    let saved = |(a, b): (SavedActivations, SavedActivations)| {
        let saved = bytes(a.saved, b.saved);
        SavedActivations {
            saved,
            peak: bytes(a.peak, b.peak).max(saved),
            output: bytes(a.output, b.output),
            deferred: bytes(a.deferred, b.deferred),
        }
    };
    let boundaries = a.boundary_activations.into_iter().zip(b.boundary_activations);
    MeasuredActivations {
        boundary_activations: boundaries.map(|(a, b)| a.into_iter().zip(b).map(boundary).collect()).collect(),
        saved_activations: a.saved_activations.into_iter().zip(b.saved_activations).map(saved).collect(),
    }
}

/// `a + c`, where the measurements are `a / divisor² + c`.
fn at_full_size(measured: [(usize, u64); 2]) -> u64 {
    let [(p, first), (q, second)] =
        measured.map(|(divisor, bytes)| ((divisor * divisor) as f64, bytes as f64));
    let constant = (second * q - first * p) / (q - p);
    ((first - constant) * p + constant).round().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_and_constants_are_told_apart() {
        let bytes = |divisor: u64| 1_000_448 * 64 / (divisor * divisor) + 777;
        assert_eq!(at_full_size([(4, bytes(4)), (8, bytes(8))]), bytes(1));
        assert_eq!(at_full_size([(8, 0), (16, 0)]), 0);
    }

    #[test]
    fn integers_grow_with_the_tokens_and_vectors_of_rows_with_the_width() {
        let measured = |divisor: u64| {
            let tensor = |bytes, has_gradient| BoundaryTensor { bytes, dimensions: 3, has_gradient };
            let tensors = vec![
                tensor((1 << 20) / (divisor * divisor), true),
                tensor((1 << 14) / divisor, true),
                tensor((1 << 12) / divisor, false),
            ];
            MeasuredActivations { boundary_activations: vec![tensors], saved_activations: Vec::new() }
        };
        assert_eq!(extended([(4, measured(4)), (8, measured(8))]), measured(1));
    }
}
