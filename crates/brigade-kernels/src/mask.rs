//! Which keys the queries of attention see.

use std::sync::Arc;

use brigade_simd::attention::Visible;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

/// Which keys a query sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mask {
    /// All.
    None,
    /// None after itself. The last query is at the position of the last key.
    Causal,
    /// None after itself, and at most this many, including itself.
    Window(usize),
    /// Of each query of each sequence in turn, the first key that it sees and the one after the last: padding, and documents that are packed into one row.
    Ranges(Arc<[[u32; 2]]>),
}

impl Mask {
    /// For rows in which documents are packed one after another: a query sees its own document up to itself. `lengths`: of each row, those of its
    /// documents; what is left of a row is padding, where each position sees itself alone.
    ///
    /// # Panics
    /// If a row's documents are longer than `row`.
    pub fn causal_documents(lengths: &[&[usize]], row: usize) -> Self {
        let of_row = |documents: &&[usize]| {
            let total: usize = documents.iter().sum();
            assert!(total <= row, "documents of {documents:?} positions in a row of {row}");
            let mut ranges = Vec::with_capacity(row);
            for length in documents.iter().copied().chain(std::iter::repeat_n(1, row - total)) {
                let start = ranges.len();
                ranges.extend((start..start + length).map(|query| [start as u32, query as u32 + 1]));
            }
            ranges
        };
        Self::Ranges(lengths.iter().flat_map(of_row).collect())
    }

    pub(crate) fn visible(&self) -> Visible<'_> {
        match self {
            Self::None => Visible::All,
            Self::Causal => Visible::Causal { window: None },
            Self::Window(window) => Visible::Causal { window: Some(*window) },
            Self::Ranges(ranges) => Visible::Ranges(ranges),
        }
    }

    /// Whether a query may see no key at all.
    pub(crate) fn may_hide_all(&self, [queries, keys]: [usize; 2]) -> bool {
        match self {
            Self::None => false,
            Self::Causal => queries > keys,
            Self::Window(window) => *window == 0 || queries > keys,
            Self::Ranges(_) => true,
        }
    }

    /// Where a query must not look: `[batch or 1, 1, queries, keys]`.
    pub(crate) fn hidden(
        &self,
        [batch, queries, keys]: [usize; 3],
        device: &Device,
    ) -> Option<Tensor<4, Bool>> {
        let positions = |count: usize| Tensor::<1, Int>::arange(0..count as i64, device);
        let key = positions(keys).reshape([1, 1, 1, keys]);
        // The key of a query itself.
        let own = || (positions(queries) + (keys as i64 - queries as i64)).reshape([1, 1, queries, 1]);
        let later = || key.clone().greater(own());
        match self {
            Self::None => None,
            Self::Causal => Some(later()),
            Self::Window(window) => {
                let earlier = key.clone().lower_equal(own() - (*window).min(queries + keys) as i64);
                Some(later().bool_or(earlier))
            }
            Self::Ranges(ranges) => {
                let bound = |index: usize| {
                    let bounds: Vec<i64> = ranges.iter().map(|range| i64::from(range[index])).collect();
                    let bounds = TensorData::new(bounds, [batch, 1, queries, 1]);
                    Tensor::<4, Int>::from_data(bounds, device)
                };
                Some(key.clone().lower(bound(0)).bool_or(key.greater_equal(bound(1))))
            }
        }
    }
}
