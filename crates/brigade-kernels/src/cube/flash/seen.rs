//! Which keys a query sees.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::tile::Tiling;

/// The sizes that decide which keys a query sees.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub queries: usize,
    pub keys: usize,
    /// How many keys a query sees at the most, itself included.
    pub window: usize,
}

/// The first key that a query sees and the one after the last.
#[cube]
pub(super) fn keys_of(query: usize, sizes: &Sizes, #[comptime] causal: bool) -> (usize, usize) {
    let mut from = 0usize;
    let mut to = sizes.keys;
    if comptime!(causal) {
        let end = query + 1 + sizes.keys - sizes.queries;
        from = end - min(sizes.window, end);
        to = min(end, sizes.keys);
    }
    (from, to)
}

/// The first query that sees a key and the one after the last.
#[cube]
pub(super) fn queries_of(key: usize, sizes: &Sizes, #[comptime] causal: bool) -> (usize, usize) {
    let mut from = 0usize;
    let mut to = sizes.queries;
    if comptime!(causal) {
        let before = sizes.keys - sizes.queries;
        from = key - min(before, key);
        let end = key + sizes.window;
        to = min(end - min(before, end), sizes.queries);
    }
    (from, to)
}

/// Whether some of a tile's keys are not seen by some of a cube's queries, or are none.
#[cube]
pub(super) fn is_partial(
    first_query: usize,
    queries: usize,
    first_key: usize,
    keys: usize,
    sizes: &Sizes,
    #[comptime] tiling: Tiling,
) -> bool {
    let (_, to) = keys_of(first_query, sizes, tiling.causal);
    let (from, _) = keys_of(first_query + queries - 1, sizes, tiling.causal);
    first_key + keys > to || first_key < from
}
