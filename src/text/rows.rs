//! Rows of tokens as tensors.

use brigade_data::Sequence;
use brigade_models::{Documents, Tokens};
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Pads rows to the longest of them.
pub(super) fn pad(rows: &mut [Sequence], padding: u32) -> [usize; 2] {
    let length = rows.iter().map(|row| row.inputs.len()).max().unwrap_or_default();
    rows.iter_mut().for_each(|row| row.pad(length, padding));
    [rows.len(), length]
}

/// The inputs of rows of one length, and where their documents are if they keep them apart. Padding sees itself alone.
pub(super) fn inputs(rows: &[Sequence], shape: [usize; 2], device: &Device) -> Tokens {
    let ids = token_tensor(rows.iter().flat_map(|row| &row.inputs), shape, device);
    let are_apart = rows.iter().any(|row| !row.documents.is_empty());
    Tokens { documents: are_apart.then(|| documents(rows, shape, device)), ..ids.into() }
}

fn documents(rows: &[Sequence], [batch, length]: [usize; 2], device: &Device) -> Documents {
    let mut bounds = Vec::with_capacity(2 * batch * length);
    for row in rows {
        let mut start = 0;
        let padding = length - row.documents.iter().sum::<usize>();
        for document in row.documents.iter().copied().chain(std::iter::repeat_n(1, padding)) {
            let end = start + document;
            bounds.extend([start as i64, end as i64].repeat(document));
            start = end;
        }
    }
    Tensor::from_data(TensorData::new(bounds, [batch, length, 2]), device)
}

/// Tokens as a tensor.
pub(super) fn token_tensor<'a>(
    tokens: impl Iterator<Item = &'a u32>,
    shape: [usize; 2],
    device: &Device,
) -> Tensor<2, Int> {
    let tokens: Vec<i64> = tokens.map(|token| i64::from(*token)).collect();
    Tensor::from_data(TensorData::new(tokens, shape), device)
}
