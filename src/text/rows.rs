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

/// The inputs of rows of one length, and where their documents are if any row names them. Padding sees itself alone.
pub(super) fn inputs(rows: &[Sequence], shape: [usize; 2], device: &Device) -> Tokens {
    let ids = token_tensor(rows.iter().flat_map(|row| &row.inputs), shape, device);
    let are_apart = rows.iter().any(|row| !row.documents.is_empty());
    Tokens { documents: are_apart.then(|| documents(rows, shape, device)), ..ids.into() }
}

fn documents(rows: &[Sequence], [batch, length]: [usize; 2], device: &Device) -> Documents {
    let mut bounds = Vec::with_capacity(2 * batch * length);
    let whole = [length];
    for row in rows {
        let mut start = 0;
        let named: &[usize] = if row.documents.is_empty() { &whole } else { &row.documents };
        let padding = length - named.iter().sum::<usize>();
        for document in named.iter().copied().chain(std::iter::repeat_n(1, padding)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_names_no_documents_is_one_beside_others_that_do() {
        let row = |documents: &[usize]| {
            let mut row = Sequence::padding(3, 9);
            row.documents = documents.to_vec();
            row
        };
        let device = brigade_cpu::device();
        let both = inputs(&[row(&[]), row(&[2])], [2, 3], &device).documents.unwrap();
        let bounds: Vec<i64> = both.into_data().iter().collect();
        assert_eq!(bounds, [0, 3, 0, 3, 0, 3, 0, 2, 0, 2, 2, 3]);
        assert!(inputs(&[row(&[])], [1, 3], &device).documents.is_none());
    }
}
