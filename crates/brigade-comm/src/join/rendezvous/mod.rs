//! How the ranks of a world find each other: every rank calls rank 0, which then tells all ranks where the others are.

mod addresses;
pub(super) mod endpoint;
pub(super) mod other_ranks;
pub(super) mod rank_0;
