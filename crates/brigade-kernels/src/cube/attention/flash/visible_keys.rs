//! Which keys a query sees.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::super::softmax::Visible;
use super::tile::BLOCK;

/// The sizes that decide which keys a query sees.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub queries: usize,
    pub keys: usize,
    /// How many keys a query sees at the most, itself included.
    pub window: usize,
}

/// The ranges of keys that the queries of each sequence see, `[batch, queries, 2]`, as kernels read them. After them come, of each [`BLOCK`] queries, the least first key and the highest
/// end of those that see any, and the highest first key and the least end of all; then, of each [`BLOCK`] keys, the first query that sees any and the one after the last.
pub(super) fn with_bounds(ranges: &[[u32; 2]], [batch, queries, keys]: [usize; 3]) -> Vec<u32> {
    let mut all = ranges.concat();
    let of_sequence = |sequence: usize| &ranges[sequence * queries..(sequence + 1) * queries];
    for sequence in 0..batch {
        for block in of_sequence(sequence).chunks(BLOCK) {
            let seeing = || block.iter().filter(|[from, to]| from < to);
            let least = seeing().map(|[from, _]| *from).min().unwrap_or(0);
            let most = seeing().map(|[_, to]| *to).max().unwrap_or(0);
            let first = block.iter().map(|[from, _]| *from).max().unwrap_or(0);
            let last = block.iter().map(|[_, to]| *to).min().unwrap_or(0);
            all.extend([least, most.min(keys as u32), first, last]);
        }
    }
    for sequence in 0..batch {
        let mut bounds = vec![[queries as u32, 0]; keys.div_ceil(BLOCK)];
        for (query, [from, to]) in (0u32..).zip(of_sequence(sequence)).filter(|(_, [from, to])| from < to) {
            let to = (*to as usize).min(keys);
            for [first, end] in bounds.iter_mut().take(to.div_ceil(BLOCK)).skip(*from as usize / BLOCK) {
                (*first, *end) = ((*first).min(query), query + 1);
            }
        }
        all.extend(bounds.concat());
    }
    all
}

/// The first key that a query sees and the one after the last. A query beyond the last sees what the last one sees.
#[cube]
pub(super) fn keys_of(
    query: usize,
    batch: usize,
    ranges: &[u32],
    sizes: &Sizes,
    #[comptime] visible: Visible,
) -> (usize, usize) {
    let mut from = 0usize;
    let mut to = sizes.keys;
    match comptime!(visible) {
        Visible::All => {}
        Visible::Causal => {
            let end = query + 1 + sizes.keys - sizes.queries;
            from = end - min(sizes.window, end);
            to = min(end, sizes.keys);
        }
        Visible::Ranges => {
            let place = batch * sizes.queries + min(query, sizes.queries - 1);
            from = ranges[2 * place] as usize;
            to = min(ranges[2 * place + 1] as usize, sizes.keys);
        }
    }
    (from, to)
}

/// The first key that some queries see and the one after the last. They begin with a block's first query.
#[cube]
pub(super) fn keys_of_some(
    first: usize,
    batch: usize,
    ranges: &[u32],
    sizes: &Sizes,
    #[comptime] queries: usize,
    #[comptime] visible: Visible,
) -> (usize, usize) {
    let mut from = 0usize;
    let mut to = sizes.keys;
    match comptime!(visible) {
        Visible::All => {}
        Visible::Causal => {
            let (first_of_first, _) = keys_of(first, batch, ranges, sizes, visible);
            let (_, last_of_last) = keys_of(first + queries - 1, batch, ranges, sizes, visible);
            from = first_of_first;
            to = last_of_last;
        }
        Visible::Ranges => {
            let blocks = sizes.queries.div_ceil(BLOCK);
            from = sizes.keys;
            to = 0usize;
            #[unroll]
            for block in 0..comptime!(queries.div_ceil(BLOCK)) {
                let own = min(first / BLOCK + block, blocks - 1);
                let place = 2 * CUBE_COUNT_Z as usize * sizes.queries + 4 * (batch * blocks + own);
                from = min(from, ranges[place] as usize);
                to = max(to, ranges[place + 1] as usize);
            }
            from = min(from, to);
        }
    }
    (from, to)
}

/// The first query that sees some keys and the one after the last. They are a block of keys.
#[cube]
pub(super) fn queries_of_some(
    first: usize,
    batch: usize,
    ranges: &[u32],
    sizes: &Sizes,
    #[comptime] keys: usize,
    #[comptime] visible: Visible,
) -> (usize, usize) {
    let mut from = 0usize;
    let mut to = sizes.queries;
    match comptime!(visible) {
        Visible::All => {}
        Visible::Causal => {
            let before = sizes.keys - sizes.queries;
            from = first - min(before, first);
            let end = first + keys - 1 + sizes.window;
            to = min(end - min(before, end), sizes.queries);
        }
        Visible::Ranges => {
            let of_queries = 2 * sizes.queries + 4 * sizes.queries.div_ceil(BLOCK);
            let blocks = sizes.keys.div_ceil(BLOCK);
            let place = CUBE_COUNT_Z as usize * of_queries + 2 * (batch * blocks + first / BLOCK);
            from = ranges[place] as usize;
            to = ranges[place + 1] as usize;
        }
    }
    (from, to)
}

/// Whether some of these keys are not seen by some of these queries, or are none. The queries are of one block, or, where there are no ranges, any.
#[cube]
pub(super) fn is_partial(
    first_query: usize,
    first_key: usize,
    batch: usize,
    ranges: &[u32],
    sizes: &Sizes,
    #[comptime] queries: usize,
    #[comptime] keys: usize,
    #[comptime] visible: Visible,
) -> bool {
    let mut from = 0usize;
    let mut to = sizes.keys;
    match comptime!(visible) {
        Visible::All => {}
        Visible::Causal => {
            let (first_of_last, _) = keys_of(first_query + queries - 1, batch, ranges, sizes, visible);
            let (_, last_of_first) = keys_of(first_query, batch, ranges, sizes, visible);
            from = first_of_last;
            to = last_of_first;
        }
        Visible::Ranges => {
            let blocks = sizes.queries.div_ceil(BLOCK);
            #[unroll]
            for block in 0..comptime!(queries.div_ceil(BLOCK)) {
                let own = min(first_query / BLOCK + block, blocks - 1);
                let place = 2 * CUBE_COUNT_Z as usize * sizes.queries + 4 * (batch * blocks + own);
                from = max(from, ranges[place + 2] as usize);
                to = min(to, ranges[place + 3] as usize);
            }
        }
    }
    first_key + keys > to || first_key < from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_each_block() {
        // Two sequences of 70 queries and 130 keys: all see what is before them, or none and the last key.
        let ranges: Vec<[u32; 2]> =
            (0..70).map(|i| [0, i + 1]).chain((0..70).map(|i| [129 + i / 69, 130])).collect();
        let all = with_bounds(&ranges, [2, 70, 130]);
        let (given, rest) = all.split_at(2 * ranges.len());
        assert_eq!(given, ranges.concat());
        let (of_queries, of_keys) = rest.split_at(16);
        assert_eq!(of_queries, [0, 64, 0, 1, 0, 70, 0, 65, 129, 130, 129, 130, 129, 130, 130, 130]);
        assert_eq!(of_keys, [0, 70, 64, 70, 70, 0, 70, 0, 70, 0, 0, 69]);
    }
}
