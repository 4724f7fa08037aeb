//! An outer step that is under way.

use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::{PendingTensor, PendingValues};

/// The outer step of a fragment that is under way.
#[derive(Default)]
pub(crate) struct OuterInFlight {
    /// How many updates each worker has made.
    pub(super) made: Option<PendingValues>,
    /// By unit, the sums over the workers.
    pub(super) sums: Vec<(usize, PendingTensor)>,
    /// The number of the fragment, and of fragments.
    pub(super) fragment: (usize, usize),
    /// Bytes that this rank had sent to other workers before.
    pub(super) sent_before: u64,
    /// This worker's own values, while the engine has those that all have in common.
    pub(super) own: SortedMap<usize, Tensor<1>>,
}
