//! What is moved without being changed, and how it is counted.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brigade_core::{CollectiveKind, Collectives};
use burn::tensor::FloatDType;

use crate::Suite;
use crate::values::{contribution, given, same, tensor, values};

/// Values whose bits arithmetic would not keep.
pub(crate) const STRANGE: [f32; 6] =
    [-0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE / 4.0, f32::NAN, -1.0];

/// All ranks' tensors, one after the other, bit by bit.
pub fn all_gather_joins_in_rank_order(suite: &Suite, ranks: &dyn Collectives) {
    for dtype in suite.floats.iter().copied() {
        for length in [0, 1, 5, 1000, 33_335] {
            let all = ranks.all_gather(contribution(suite, ranks.rank(), length, dtype)).wait().unwrap();
            let expected: Vec<_> = (0..ranks.size()).flat_map(|rank| given(rank, length, dtype)).collect();
            same(&values(all, dtype), &expected, &format!("{length} elements of each rank in {dtype:?}"));
        }
        let view = contribution(suite, ranks.rank(), 20, dtype).slice(3..10);
        let expected: Vec<_> = (0..ranks.size()).flat_map(|r| given(r, 20, dtype)[3..10].to_vec()).collect();
        same(&values(ranks.all_gather(view).wait().unwrap(), dtype), &expected, "views");
    }
    let strange = tensor(&STRANGE, FloatDType::F32, &suite.device);
    let all = values(ranks.all_gather(strange).wait().unwrap(), FloatDType::F32);
    same(&all, &STRANGE.repeat(ranks.size()), "strange values");
}

/// The root's values reach all ranks, whichever rank is the root.
pub fn broadcasts_come_from_any_root(suite: &Suite, ranks: &dyn Collectives) {
    for dtype in suite.floats.iter().copied() {
        for root in 0..ranks.size() {
            for length in [0, 1, 7, 10_001] {
                let own = contribution(suite, ranks.rank(), length, dtype);
                let found = values(ranks.broadcast(own, root).wait().unwrap(), dtype);
                same(&found, &given(root, length, dtype), &format!("{length} elements of root {root}"));
            }
        }
    }
    let own = if ranks.rank() == 0 { STRANGE } else { [1.0; 6] };
    let found = ranks.broadcast(tensor(&own, FloatDType::F32, &suite.device), 0).wait().unwrap();
    same(&values(found, FloatDType::F32), &STRANGE, "strange values");
}

/// All ranks' numbers reach all ranks, bit by bit.
pub fn scalars_of_every_rank_reach_all(_: &Suite, ranks: &dyn Collectives) {
    let of = |rank: usize| vec![rank as f64, -0.0, f64::NAN, 1e-310, f64::INFINITY, 0.1 + rank as f64];
    let bits = |numbers: &[f64]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    let found = ranks.all_gather_scalars(of(ranks.rank())).wait().unwrap();
    assert_eq!(found.len(), ranks.size());
    for (rank, found) in found.iter().enumerate() {
        assert_eq!(bits(found), bits(&of(rank)), "numbers of rank {rank}");
    }
    assert_eq!(ranks.all_gather_scalars(vec![]).wait().unwrap(), vec![Vec::<f64>::new(); ranks.size()]);
}

/// Each rank's part of all ranks' bytes, and all ranks' bytes.
pub fn bytes_reach_their_ranks(_: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    let part = |from: usize, to: usize, length: usize| -> Vec<u8> {
        (0..length).map(|place| (97 * from + 31 * to + 7 * place) as u8).collect()
    };
    for length in [0, 1, 13, 100_003] {
        let given: Vec<u8> = (0..size).flat_map(|to| part(rank, to, length)).collect();
        let expected: Vec<u8> = (0..size).flat_map(|from| part(from, rank, length)).collect();
        let found = ranks.all_to_all_bytes(given).wait().unwrap();
        assert!(found == expected, "{length} bytes of each rank for rank {rank}");
        let expected: Vec<u8> = (0..size).flat_map(|from| part(from, from, length)).collect();
        let found = ranks.all_gather_bytes(part(rank, rank, length)).wait().unwrap();
        assert!(found == expected, "{length} bytes of each rank for all");
    }
}

/// No rank leaves a barrier before all have entered it. Ranks share a clock: they are on one machine.
pub fn barriers_wait_for_all(_: &Suite, ranks: &dyn Collectives) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for late in 0..ranks.size() {
        if ranks.rank() == late {
            thread::sleep(Duration::from_millis(50));
        }
        let came = now();
        ranks.barrier().unwrap();
        let times = ranks.all_gather_scalars(vec![came, now()]).wait().unwrap();
        let last = times.iter().map(|times| times[0]).fold(0.0, f64::max);
        let first = times.iter().map(|times| times[1]).fold(f64::INFINITY, f64::min);
        assert!(last <= first, "a rank left {:e} s before the last came", last - first);
    }
}

/// Calls, and the bytes that a rank sends by the textbook's count: each element goes once to each rank that needs it.
pub fn traffic_is_counted(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    if size == 1 {
        return;
    }
    let given = |length: usize| contribution(suite, rank, length, FloatDType::F32);
    let before = ranks.traffic();
    for _ in 0..3 {
        ranks.all_reduce(given(4 * size)).wait().unwrap();
    }
    ranks.reduce_scatter(given(6 * size)).wait().unwrap();
    ranks.all_gather(given(5)).wait().unwrap();
    ranks.broadcast(given(8), 0).wait().unwrap();
    ranks.all_gather_scalars(vec![1.0; 3]).wait().unwrap();
    ranks.all_to_all_bytes(vec![1; 9 * size]).wait().unwrap();
    ranks.all_gather_bytes(vec![1; 7]).wait().unwrap();
    ranks.barrier().unwrap();
    let after = ranks.traffic();
    let counted = |operation| {
        let (calls, bytes) = after.get(&operation).copied().unwrap_or_default();
        let (calls_before, bytes_before) = before.get(&operation).copied().unwrap_or_default();
        (calls - calls_before, bytes - bytes_before)
    };
    let others = size as u64 - 1;
    assert_eq!(counted(CollectiveKind::AllReduce), (3, 3 * 2 * 4 * 4 * others));
    assert_eq!(counted(CollectiveKind::ReduceScatter), (1, 4 * 6 * others));
    assert_eq!(counted(CollectiveKind::AllGather), (2, (4 * 5 + 7) * others));
    assert_eq!(counted(CollectiveKind::AllToAll), (1, 9 * others));
    assert_eq!(counted(CollectiveKind::AllGatherScalars), (1, 8 * 3 * others));
    assert_eq!(counted(CollectiveKind::Broadcast).0, 1);
    assert_eq!(counted(CollectiveKind::Barrier).0, 1);
    assert_eq!(counted(CollectiveKind::Send), (0, 0));
}
