//! The results of every operation, and of splitting communicators.

use std::time::Duration;

use brigade_comm::DType;
use brigade_comm::ReduceOp::{self, Max, Sum};
use brigade_cuda::{Error, GroupCall};
use half::{bf16, f16};

use crate::harness::{SOON, TestRank, address, alone, assert_contains, communicator_counts, world};

const COUNT: usize = 5;

/// The element of a rank at index i.
fn value(rank: usize, i: usize) -> f64 {
    (10 * rank + i + 1) as f64
}

fn all_reduce<T: Copy + PartialEq + std::fmt::Debug>(
    rank: &TestRank,
    dtype: DType,
    op: ReduceOp,
    from: impl Fn(f64) -> T,
) {
    let mut send: Vec<T> = (0..COUNT).map(|i| from(value(rank.rank, i))).collect();
    let mut recv = vec![from(0.0); COUNT];
    assert_eq!(size_of::<T>(), dtype.size());
    let (sent, received) = (address(&mut send), address(&mut recv));
    // SAFETY: both live until the stream is done.
    let enqueue = |call: &GroupCall<'_>| unsafe { call.all_reduce(sent, received, COUNT, dtype, op) };
    rank.enqueue("all_reduce", enqueue).unwrap();
    rank.stream.synchronize_within(SOON).unwrap();
    let ranks = 0..rank.size;
    let expected = (0..COUNT).map(|i| match op {
        Sum => from(ranks.clone().map(|r| value(r, i)).sum()),
        Max => from(value(rank.size - 1, i)),
    });
    assert_eq!(recv, expected.collect::<Vec<_>>(), "{dtype:?}, {op}");
}

fn every_type(rank: &TestRank) {
    for op in [Sum, Max] {
        all_reduce(rank, DType::F32, op, |x| x as f32);
        all_reduce(rank, DType::F64, op, |x| x);
        all_reduce(rank, DType::Bf16, op, bf16::from_f64);
        all_reduce(rank, DType::F16, op, f16::from_f64);
        all_reduce(rank, DType::I64, op, |x| x as i64);
        all_reduce(rank, DType::U8, op, |x| x as u8);
    }
}

fn the_other_collectives(rank: &TestRank) {
    let (me, size) = (rank.rank, rank.size);
    let whole = |r: usize| (0..size * COUNT).map(move |i| value(r, i) as f32);
    let mut send: Vec<f32> = whole(me).collect();
    let (mut part, mut all) = (vec![0f32; COUNT], vec![0f32; size * COUNT]);
    let (mut same, root) = (send.clone(), size - 1);
    let (a, b, c, d) = (address(&mut send), address(&mut part), address(&mut all), address(&mut same));
    // SAFETY: all live until the stream is done.
    let scatter = |call: &GroupCall<'_>| unsafe { call.reduce_scatter(a, b, COUNT, DType::F32, Sum) };
    // SAFETY: as above.
    let gather = |call: &GroupCall<'_>| unsafe { call.all_gather(b, c, COUNT, DType::F32) };
    // SAFETY: as above.
    let broadcast = |call: &GroupCall<'_>| unsafe { call.broadcast(d, d, COUNT, DType::F32, root) };
    rank.enqueue("reduce_scatter", scatter).unwrap();
    rank.enqueue("all_gather", gather).unwrap();
    rank.enqueue("broadcast", broadcast).unwrap();
    rank.stream.synchronize_within(SOON).unwrap();
    let sums: Vec<f32> = (0..size * COUNT).map(|i| (0..size).map(|r| value(r, i) as f32).sum()).collect();
    assert_eq!(part, sums[me * COUNT..][..COUNT]);
    assert_eq!(all, sums);
    let mut expected: Vec<f32> = whole(me).collect();
    expected[..COUNT].copy_from_slice(&whole(root).collect::<Vec<_>>()[..COUNT]);
    assert_eq!(same, expected);
}

/// Around a ring, sending and receiving at once. A single rank sends to itself.
fn a_ring(rank: &TestRank) {
    let (next, before) = ((rank.rank + 1) % rank.size, (rank.rank + rank.size - 1) % rank.size);
    let mut send = vec![rank.rank as u8; 7];
    let mut recv = vec![99u8; 7];
    let (from, into) = (address(&mut send), address(&mut recv));
    // SAFETY: both live until the stream is done.
    let enqueue = |call: &GroupCall<'_>| unsafe {
        call.recv(into, 7, DType::U8, before);
        call.send(from, 7, DType::U8, next);
    };
    rank.enqueue("a ring", enqueue).unwrap();
    rank.stream.synchronize_within(SOON).unwrap();
    assert_eq!(recv, vec![before as u8; 7]);
}

fn everything(size: usize) {
    world(size, |rank| {
        assert_eq!((rank.comm.rank(), rank.comm.size(), rank.comm.group()), (rank.rank, size, "world"));
        every_type(&rank);
        the_other_collectives(&rank);
        a_ring(&rank);
        rank.comm.async_error().unwrap();
        rank.comm.finalize(SOON).unwrap();
    });
    let size = size as i64;
    assert_eq!(communicator_counts(), (size, size, size, 0));
}

stand_in_test!(one_rank, ["STAND_IN_GPUS" = "1"], { everything(1) });

stand_in_test!(three_ranks, ["STAND_IN_GPUS" = "3"], { everything(3) });

stand_in_test!(calls_that_stay_in_progress_for_long, ["STAND_IN_GPUS" = "3", "STAND_IN_POLLS" = "40"], {
    everything(3)
});

stand_in_test!(one_rank_sends_and_another_receives, [], {
    world(2, |rank| {
        let mut buffer = [rank.rank as i64 + 1; 3];
        let address = address(&mut buffer);
        // SAFETY: it lives until the stream is done.
        let enqueue = |call: &GroupCall<'_>| match rank.rank {
            0 => unsafe { call.send(address, 3, DType::I64, 1) },
            _ => unsafe { call.recv(address, 3, DType::I64, 0) },
        };
        rank.enqueue("a transfer", enqueue).unwrap();
        rank.stream.synchronize_within(SOON).unwrap();
        assert_eq!(buffer, [1; 3]);
        rank.comm.finalize(SOON).unwrap();
    });
    assert_eq!(communicator_counts(), (2, 2, 2, 0));
});

fn communicators_are_split() {
    world(3, |rank| {
        let color = (rank.rank != 1).then_some(7);
        let outer = rank.comm.split("outer", color, 10 - rank.rank, SOON).unwrap();
        let each = rank.comm.split("each", Some(rank.rank as u32), 0, SOON).unwrap().unwrap();
        assert_eq!((each.rank(), each.size(), each.group()), (0, 1, "each"));
        assert_eq!(outer.is_some(), rank.rank != 1);
        if let Some(outer) = outer {
            // The higher rank has the lower key.
            assert_eq!((outer.rank(), outer.size()), (1 - rank.rank / 2, 2));
            let (mut send, mut recv) = ([rank.rank as f32], [-1.0f32; 2]);
            let (from, into) = (address(&mut send), address(&mut recv));
            // SAFETY: both live until the stream is done.
            let enqueue = |call: &GroupCall<'_>| unsafe { call.all_gather(from, into, 1, DType::F32) };
            outer.enqueue("all_gather", &rank.stream, SOON, enqueue).unwrap();
            rank.stream.synchronize_within(SOON).unwrap();
            assert_eq!(recv, [2.0, 0.0]);
            outer.finalize(SOON).unwrap();
        }
        each.finalize(SOON).unwrap();
        rank.comm.finalize(SOON).unwrap();
    });
    assert_eq!(communicator_counts(), (8, 8, 8, 0));
}

stand_in_test!(splits, ["STAND_IN_GPUS" = "3"], { communicators_are_split() });

stand_in_test!(splits_of_an_older_nccl, ["STAND_IN_GPUS" = "3", "STAND_IN_NCCL" = "21903"], {
    communicators_are_split()
});

stand_in_test!(impossible_ranks_and_colours_are_refused, [], {
    alone(|rank| {
        let id = brigade_cuda::UniqueId::new(brigade_cuda::nccl().unwrap()).unwrap();
        let nccl = brigade_cuda::nccl().unwrap();
        let error =
            brigade_cuda::Communicator::init(nccl, &rank.context, "world", &id, 2, 2, Duration::from_secs(1))
                .err()
                .unwrap();
        assert_contains(&error.to_string(), &["no rank 2 among 2 ranks", "world"]);
        let error = rank.comm.split("part", Some(u32::MAX), 0, SOON).err().unwrap();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        rank.comm.finalize(SOON).unwrap();
    });
    assert_eq!(communicator_counts(), (1, 1, 1, 0));
});
