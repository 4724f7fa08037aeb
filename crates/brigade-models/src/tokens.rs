//! What flows through a model of text: tokens, then vectors, and with them where documents begin and end.

use std::vec::IntoIter;

use brigade_core::{Activation, Part};
use brigade_kernels::Mask;
use burn::tensor::{Int, Tensor};

/// Rows of tokens.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// `[batch, positions]`.
    pub ids: Tensor<2, Int>,
    /// Where several documents share a row, or a row is padded.
    pub documents: Option<Documents>,
    /// The type of each token, `[batch, positions]`, for encoders that know pairs of texts: 0 in the first, 1 in the second. None: all are 0.
    pub types: Option<Tensor<2, Int>>,
}

/// Of each position of each row, the first position of its document and the one after its last: `[batch, positions, 2]`. No token sees another document, and
/// positions count from its beginning.
pub type Documents = Tensor<3, Int>;

impl From<Tensor<2, Int>> for Tokens {
    /// Each row is one document.
    fn from(ids: Tensor<2, Int>) -> Self {
        Self { ids, documents: None, types: None }
    }
}

/// The residual stream between the layers of a transformer.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// `[batch, positions, width]`.
    pub x: Tensor<3>,
    /// As of [`Tokens`].
    pub documents: Option<Documents>,
}

/// The positions of tokens in their documents, `[batch, positions]`.
pub(crate) fn positions(documents: &Documents) -> Tensor<2, Int> {
    let [batch, positions, _] = documents.dims();
    let starts = documents.clone().slice([0..batch, 0..positions, 0..1]).reshape([batch, positions]);
    let all = Tensor::<1, Int>::arange(0..positions as i64, &documents.device());
    all.unsqueeze::<2>() - starts
}

/// The vectors of the last tokens of each row's first document, `[batch, width]`.
pub(crate) fn last_tokens(Hidden { x, documents }: Hidden) -> Tensor<2> {
    let [batch, length, width] = x.dims();
    let Some(documents) = documents else {
        return x.narrow(1, length - 1, 1).reshape([batch, width]);
    };
    let ends = documents.slice([0..batch, 0..1, 1..2]).reshape([batch]);
    let rows = Tensor::<1, Int>::arange(0..batch as i64, &ends.device()).mul_scalar(length as i64);
    x.reshape([batch * length, width]).select(0, rows + ends.sub_scalar(1))
}

/// As an attention mask: a token sees its document up to itself, and with a window at most that many tokens, including itself.
pub(crate) fn causal_mask(documents: Option<&Documents>, window: Option<usize>) -> Mask {
    let Some(documents) = documents else {
        return window.map_or(Mask::Causal, Mask::Window);
    };
    let [_, positions, _] = documents.dims();
    let bounds: Vec<u32> = documents.to_data().iter::<u32>().collect();
    let (pairs, _) = bounds.as_chunks::<2>();
    let range = |(index, &[start, _]): (usize, &[u32; 2])| {
        let end = (index % positions) as u32 + 1;
        let first = window.map_or(0, |window| end.saturating_sub(window as u32));
        [start.max(first), end]
    };
    Mask::Ranges(pairs.iter().enumerate().map(range).collect())
}

/// As a mask of attention: a token sees its whole document.
pub(crate) fn document_mask(documents: Option<&Documents>) -> Mask {
    let Some(documents) = documents else { return Mask::None };
    let bounds: Vec<u32> = documents.to_data().iter::<u32>().collect();
    let (pairs, _) = bounds.as_chunks::<2>();
    Mask::Ranges(pairs.into())
}

impl Activation for Tokens {
    fn into_parts(self, parts: &mut Vec<Part>) {
        self.ids.into_parts(parts);
        with_documents(self.documents, parts);
        if let Some(types) = self.types {
            types.into_parts(parts);
        }
    }

    fn from_parts(parts: &mut IntoIter<Part>) -> Option<Self> {
        let (ids, documents) = (Tensor::from_parts(parts)?, documents(parts)?);
        let types = match parts.len() {
            0 => None,
            _ => Some(Tensor::from_parts(parts)?),
        };
        Some(Self { ids, documents, types })
    }

    fn describe() -> String {
        "tokens: an int tensor of rank 2, where documents are packed one of rank 3, and where tokens have types one of rank 2".into()
    }
}

impl Activation for Hidden {
    fn into_parts(self, parts: &mut Vec<Part>) {
        self.x.into_parts(parts);
        with_documents(self.documents, parts);
    }

    fn from_parts(parts: &mut IntoIter<Part>) -> Option<Self> {
        Some(Self { x: Tensor::from_parts(parts)?, documents: documents(parts)? })
    }

    fn describe() -> String {
        "a float tensor of rank 3, and where documents are packed an int tensor of rank 3".into()
    }
}

fn with_documents(documents: Option<Documents>, parts: &mut Vec<Part>) {
    if let Some(documents) = documents {
        documents.into_parts(parts);
    }
}

/// They are the next part, if there are any: no other part has three dimensions.
fn documents(parts: &mut IntoIter<Part>) -> Option<Option<Documents>> {
    match parts.as_slice().first() {
        Some(part) if part.shape().len() == 3 => Tensor::from_parts(parts).map(Some),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn a_token_sees_its_own_document_in_its_window() {
        let bounds = vec![0, 2, 0, 2, 2, 6, 2, 6, 2, 6, 2, 6];
        let documents = Tensor::from_data(TensorData::new::<i64, _>(bounds, [1, 6, 2]), &Device::flex());
        let past = |window| match causal_mask(Some(&documents), window) {
            Mask::Ranges(ranges) => ranges.to_vec(),
            other => panic!("{other:?}"),
        };
        assert_eq!(past(None), [[0, 1], [0, 2], [2, 3], [2, 4], [2, 5], [2, 6]]);
        assert_eq!(past(Some(2)), [[0, 1], [0, 2], [2, 3], [2, 4], [3, 5], [4, 6]]);
        let positions: Vec<i64> = positions(&documents).into_data().iter().collect();
        assert_eq!(positions, [0, 1, 0, 1, 2, 3]);
    }

    #[test]
    fn tokens_come_back_from_their_parts() {
        let ints = |shape: &[usize]| {
            Tensor::<1, Int>::arange(0..shape.iter().product::<usize>() as i64, &Device::flex())
        };
        for (with_documents, with_types) in [(false, false), (true, false), (false, true), (true, true)] {
            let tokens = Tokens {
                ids: ints(&[1, 3]).reshape([1, 3]),
                documents: with_documents.then(|| ints(&[1, 3, 2]).reshape([1, 3, 2])),
                types: with_types.then(|| ints(&[1, 3]).reshape([1, 3])),
            };
            let mut parts = Vec::new();
            tokens.into_parts(&mut parts);
            let mut parts = parts.into_iter();
            let back = Tokens::from_parts(&mut parts).unwrap();
            assert_eq!((back.documents.is_some(), back.types.is_some()), (with_documents, with_types));
            assert_eq!(parts.len(), 0);
        }
    }
}
