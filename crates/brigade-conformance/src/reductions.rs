//! Sums over the ranks.

use brigade_core::Collectives;

use crate::Suite;
use crate::values::{contribution, is_sum, same, values};

/// Every rank gets the sum, with the same bits.
pub fn all_reduce_sums_any_length(suite: &Suite, ranks: &dyn Collectives) {
    for dtype in suite.floats.iter().copied() {
        for length in [0, 1, 2, 3, 1000, 100_001] {
            let sum = ranks.all_reduce(contribution(suite, ranks.rank(), length, dtype)).wait().unwrap();
            let own = values(sum.clone(), dtype);
            is_sum(suite, ranks, &own, 0..length, length, dtype);
            let all = values(ranks.all_gather(sum).wait().unwrap(), dtype);
            for of in 0..ranks.size() {
                same(
                    &own,
                    &all[of * length..(of + 1) * length],
                    &format!("the sum beside that of rank {of}"),
                );
            }
        }
    }
}

/// A view of a larger tensor is read as what it shows.
pub fn all_reduce_takes_views(suite: &Suite, ranks: &dyn Collectives) {
    for dtype in suite.floats.iter().copied() {
        let whole = contribution(suite, ranks.rank(), 50, dtype);
        for (start, end) in [(0, 50), (0, 7), (1, 2), (10, 40), (49, 50)] {
            let sum = ranks.all_reduce(whole.clone().slice(start..end)).wait().unwrap();
            is_sum(suite, ranks, &values(sum, dtype), start..end, 50, dtype);
        }
        // Elements 1, 3, 5, … stand apart in memory.
        let odd = whole.reshape([25, 2]).slice([0..25, 1..2]).reshape([25]);
        let sum = values(ranks.all_reduce(odd).wait().unwrap(), dtype);
        assert_eq!(sum.len(), 25);
        for (i, found) in sum.iter().enumerate() {
            is_sum(suite, ranks, &[*found], 2 * i + 1..2 * i + 2, 50, dtype);
        }
    }
}

/// Rank r gets the r-th part of the sum.
pub fn reduce_scatter_gives_each_its_share(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    for dtype in suite.floats.iter().copied() {
        for share in [0, 1, 10, 1000, 33_335] {
            let given = contribution(suite, rank, share * size, dtype);
            let own = values(ranks.reduce_scatter(given).wait().unwrap(), dtype);
            is_sum(suite, ranks, &own, rank * share..(rank + 1) * share, share * size, dtype);
        }
        // A view, of a tensor that is a view itself.
        let given =
            contribution(suite, rank, 4 * size + 9, dtype).slice(2..4 * size + 5).slice(1..4 * size + 1);
        let own = values(ranks.reduce_scatter(given).wait().unwrap(), dtype);
        is_sum(suite, ranks, &own, 3 + rank * 4..7 + rank * 4, 4 * size + 9, dtype);
    }
}
