//! How the ranks of a world find each other: everybody calls rank 0, which tells everybody about everybody.

pub(super) mod endpoint;
pub(super) mod other_ranks;
pub(super) mod rank_0;
