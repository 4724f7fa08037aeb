//! How far tensors are from those of the reference.

use brigade::core::NamedTensor;

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

/// Fails unless each tensor's distance from the reference's is at most `tolerance` of the reference's norm.
pub fn near(found: &[NamedTensor], reference: &[NamedTensor], tolerance: f64, what: &str) {
    assert_eq!(found.len(), reference.len(), "{what}: number of tensors");
    for (found, reference) in found.iter().zip(reference) {
        assert_eq!(found.name, reference.name, "{what}");
        assert_eq!(found.data.shape(), reference.data.shape(), "{what}: {}", found.name);
        let (a, b) = (found.data.as_slice::<f32>().unwrap(), reference.data.as_slice::<f32>().unwrap());
        let difference = norm(a.iter().zip(b).map(|(a, b)| a - b));
        let scale = norm(b.iter().copied());
        let most = tolerance * scale;
        assert!(difference <= most, "{what}: {} is {difference:e} from {scale:e}, of {most:e}", found.name);
    }
}

/// The distance of all tensors together, as a part of the reference's norm.
pub fn distance(found: &[NamedTensor], reference: &[NamedTensor]) -> f64 {
    let values = |tensors: &[NamedTensor]| -> Vec<f32> {
        tensors.iter().flat_map(|tensor| tensor.data.as_slice::<f32>().unwrap().to_vec()).collect()
    };
    let (a, b) = (values(found), values(reference));
    assert_eq!(a.len(), b.len(), "number of elements");
    norm(a.iter().zip(&b).map(|(a, b)| a - b)) / norm(b.iter().copied())
}

/// Fails unless the [`distance`] is at most `tolerance`.
pub fn near_together(found: &[NamedTensor], reference: &[NamedTensor], tolerance: f64, what: &str) {
    let distance = distance(found, reference);
    assert!(distance <= tolerance, "{what}: {distance:e}, of at most {tolerance:e}");
}

/// Fails unless all tensors have the same bits.
pub fn same_bits(a: &[NamedTensor], b: &[NamedTensor], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: number of tensors");
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.name, b.name, "{what}");
        assert!(a.data.as_bytes() == b.data.as_bytes(), "{what}: {} has other bits", a.name);
    }
}
