//! What the operations give.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use brigade_comm::{Count, Element, Group, HostBuffer, OpType, ReduceOp, Result};
use half::{bf16, f16};

use crate::worlds::{KINDS, Kind, on_every_world, run_well};

on_every_world!(
    reductions_are_pairwise_in_rank_order,
    gathers_and_scatters_move_the_right_slices,
    broadcast_from_every_root,
    transfers_keep_their_order_and_do_not_wait_for_collectives,
    many_operations_in_flight,
    sub_groups_work_at_the_same_time,
    blocking_calls_queue_behind_those_in_flight,
    statistics_count_what_was_sent,
    large_groups_give_the_same,
    pieces_end_anywhere,
);

const SIZES: [usize; 6] = [1, 2, 3, 4, 5, 8];

/// Elements with a value for each rank and place, and the definition of their reduction.
trait Sample: Element + PartialEq + std::fmt::Debug {
    fn sample(rank: usize, i: usize) -> Self;
    fn reduce(op: ReduceOp, values: &[Self]) -> Self;
}

fn noise(rank: usize, i: usize) -> u64 {
    brigade_random::keyed(rank as u64, i as u64) >> 11
}

/// The invariant, word for word.
fn pairwise<T: Copy>(mut x: Vec<T>, add: impl Fn(T, T) -> T) -> T {
    let (n, mut s) = (x.len(), 1);
    while s < n {
        for i in (0..n).step_by(2 * s).filter(|i| i + s < n) {
            x[i] = add(x[i], x[i + s]);
        }
        s *= 2;
    }
    x[0]
}

macro_rules! float_sample {
    ($($type:ty, $wide:ty, $widen:expr, $narrow:expr);*) => {$(
        impl Sample for $type {
            fn sample(rank: usize, i: usize) -> Self {
                let x = noise(rank, i);
                $narrow((x % 2003) as $wide * 0.37 - 300.0 + (x % 7) as $wide * 1e-3)
            }
            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                let values = values.iter().copied().map($widen).collect();
                $narrow(match op {
                    ReduceOp::Sum => pairwise(values, |a, b| a + b),
                    ReduceOp::Max => pairwise(values, <$wide>::max),
                })
            }
        }
    )*};
}
float_sample!(f32, f32, |x| x, |x| x; f64, f64, |x| x, |x| x;
    bf16, f32, bf16::to_f32, bf16::from_f32; f16, f32, f16::to_f32, f16::from_f32);

macro_rules! integer_sample {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(rank: usize, i: usize) -> Self {
                noise(rank, i) as $type
            }
            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                match op {
                    ReduceOp::Sum => pairwise(values.to_vec(), <$type>::wrapping_add),
                    ReduceOp::Max => values.iter().copied().max().unwrap(),
                }
            }
        }
    )*};
}
integer_sample!(i64, u8);

fn samples<T: Sample>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|i| T::sample(rank, i)).collect()
}

fn reduced<T: Sample>(n: usize, op: ReduceOp, count: usize) -> Vec<T> {
    (0..count).map(|i| T::reduce(op, &(0..n).map(|rank| T::sample(rank, i)).collect::<Vec<_>>())).collect()
}

fn reductions_are_pairwise_in_rank_order(kind: Kind) {
    for n in SIZES {
        run_well(kind, n, |group| {
            // The longest is more than the links hold.
            all_reduce::<f32>(group, &[0, 1, n - 1, n + 1, 7, 1000, 90_001 / n * n.min(3) + 1])?;
            all_reduce::<f64>(group, &[0, 1, 33, 600])?;
            all_reduce::<bf16>(group, &[1, n, 700])?;
            all_reduce::<f16>(group, &[1, n, 700])?;
            all_reduce::<i64>(group, &[5, 333])?;
            all_reduce::<u8>(group, &[0, 1, 5, 1001])
        });
    }
}

fn all_reduce<T: Sample>(group: &Group, counts: &[usize]) -> Result<()>
where
    Vec<T>: HostBuffer,
{
    let (rank, n) = (group.rank(), group.size());
    for count in counts.iter().copied() {
        for op in [ReduceOp::Sum, ReduceOp::Max] {
            if count > 10_000 && op == ReduceOp::Max {
                continue;
            }
            let expected = reduced::<T>(n, op, count);
            let buffer = group.all_reduce(samples::<T>(rank, count), T::DTYPE, op).wait()?;
            assert!(buffer == expected, "all_reduce {op} of {count} {} on {n} ranks", T::DTYPE);
            let mut slice = samples::<T>(rank, count);
            group.all_reduce_in_place(&mut slice, op)?;
            assert!(slice == expected, "all_reduce_in_place {op} of {count} {} on {n} ranks", T::DTYPE);

            let expected = reduced::<T>(n, op, count * n);
            let own = rank * count..(rank + 1) * count;
            let buffer = group.reduce_scatter(samples::<T>(rank, count * n), T::DTYPE, op).wait()?;
            assert!(buffer[own.clone()] == expected[own], "reduce_scatter {op} of {count} {}", T::DTYPE);
        }
    }
    Ok(())
}

fn gathers_and_scatters_move_the_right_slices(kind: Kind) {
    for n in SIZES {
        run_well(kind, n, |group| {
            slices::<f32>(group, &[0, 1, 17, 150_000 / n])?;
            slices::<u8>(group, &[1, 3, 700_001 / n])?;
            slices::<i64>(group, &[9])?;
            slices::<bf16>(group, &[9])?;
            slices::<f16>(group, &[9])?;
            slices::<f64>(group, &[9])
        });
    }
}

fn slices<T: Sample>(group: &Group, counts: &[usize]) -> Result<()>
where
    Vec<T>: HostBuffer,
{
    let (rank, n) = (group.rank(), group.size());
    for count in counts.iter().copied() {
        let slice = |of: usize| of * count..(of + 1) * count;
        let all: Vec<T> = (0..n).flat_map(|rank| samples::<T>(rank, count)).collect();
        let mut given = vec![T::sample(99, 99); n * count];
        given[slice(rank)].copy_from_slice(&all[slice(rank)]);

        assert_eq!(group.all_gather(given.clone(), T::DTYPE).wait()?, all);
        let mut slice_form = given.clone();
        group.all_gather_in_place(&mut slice_form)?;
        assert_eq!(slice_form, all);

        for root in [0, n - 1] {
            let gathered = group.gather(given.clone(), T::DTYPE, root).wait()?;
            assert_eq!(gathered, if rank == root { all.clone() } else { given.clone() });
        }

        let row = |from: usize, to: usize| samples::<T>(from * n + to, count);
        let outgoing: Vec<T> = (0..n).flat_map(|to| row(rank, to)).collect();
        let incoming: Vec<T> = (0..n).flat_map(|from| row(from, rank)).collect();
        assert_eq!(group.all_to_all(outgoing.clone(), T::DTYPE).wait()?, incoming);
        let mut slice_form = outgoing;
        group.all_to_all_in_place(&mut slice_form)?;
        assert_eq!(slice_form, incoming);
    }
    Ok(())
}

fn broadcast_from_every_root(kind: Kind) {
    for n in SIZES {
        run_well(kind, n, |group| {
            for root in 0..n {
                for count in [0, 1, n + 1, 100_003] {
                    let expected = samples::<f32>(root, count);
                    let mut slice = samples::<f32>(group.rank(), count);
                    group.broadcast_in_place(&mut slice, root)?;
                    assert!(slice == expected, "broadcast of {count} from {root} on {n} ranks");
                }
            }
            group.barrier()
        });
    }
}

/// Buffers a little shorter, as long and a little longer than what ranks exchange at once, and several times as long.
fn pieces_end_anywhere(kind: Kind) {
    const STEP: usize = 256 << 10;
    for n in [2, 3, 4, 8] {
        run_well(kind, n, |group| {
            if n == 2 {
                all_reduce::<f32>(group, &[STEP / 4 - 1, STEP / 4, STEP / 4 + 1, STEP + 3])?;
                all_reduce::<f64>(group, &[STEP / 8 + 1])?;
                all_reduce::<f16>(group, &[STEP / 2 + 1])?;
                all_reduce::<i64>(group, &[STEP / 8 - 1])?;
            }
            if n < 8 {
                all_reduce::<bf16>(group, &[STEP / 2 - 1])?;
                all_reduce::<u8>(group, &[STEP + 1])?;
            }
            slices::<u8>(group, &[STEP + 1])
        });
    }
}

/// Groups in which each rank talks to few others, where it can: 17 × 2 and 5 × 8 ranks.
fn large_groups_give_the_same(kind: Kind) {
    for n in [34, 40] {
        let arrived = AtomicUsize::new(0);
        run_well(kind, n, |group| {
            let rank = group.rank();
            arrived.fetch_add(1, Relaxed);
            group.barrier()?;
            assert_eq!(arrived.load(Relaxed), n);
            all_reduce::<f32>(group, &[0, 1, n - 1, n + 1, 3000])?;
            all_reduce::<i64>(group, &[7])?;
            slices::<f32>(group, &[0, 1, 900])?;
            for root in [0, 13, n - 1] {
                for count in [0, 1, n + 1, 5000] {
                    let mut slice = samples::<f32>(rank, count);
                    group.broadcast_in_place(&mut slice, root)?;
                    assert!(
                        slice == samples::<f32>(root, count),
                        "broadcast of {count} from {root} on {n} ranks"
                    );
                }
            }
            let half = group.split("half", rank as u32 % 2, 0)?;
            all_reduce::<bf16>(&half, &[5, 40])?;
            all_reduce::<bf16>(group, &[41])
        });
    }
}

fn transfers_keep_their_order_and_do_not_wait_for_collectives(kind: Kind) {
    run_well(kind, 3, |group| {
        let (rank, n) = (group.rank(), group.size());
        let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
        let counts = [3, 0, 150_000, 1, 40_000];
        let dtype = f32::DTYPE;
        if rank > 0 {
            // Rank 0 takes part only after its transfers.
            drop(group.all_reduce(vec![1.0f32; 10], dtype, ReduceOp::Sum));
        }
        let received: Vec<_> =
            counts.iter().map(|count| group.recv(vec![0.0f32; *count], dtype, previous)).collect();
        let sent: Vec<_> =
            counts.iter().map(|count| group.send(samples::<f32>(rank, *count), dtype, next)).collect();
        for (received, count) in received.into_iter().zip(counts) {
            assert!(received.wait()? == samples::<f32>(previous, count));
        }
        for sent in sent {
            sent.wait()?;
        }
        if rank == 0 {
            drop(group.all_reduce(vec![1.0f32; 10], dtype, ReduceOp::Sum));
        }
        group.barrier()
    });
}

fn many_operations_in_flight(kind: Kind) {
    run_well(kind, 3, |group| {
        let pending: Vec<_> = (0..40)
            .map(|i| group.all_reduce(samples::<f32>(group.rank(), 1000 * i), f32::DTYPE, ReduceOp::Sum))
            .collect();
        for (i, pending) in pending.into_iter().enumerate().rev() {
            assert!(pending.wait()? == reduced::<f32>(3, ReduceOp::Sum, 1000 * i));
        }
        let pending = group.all_gather(vec![group.rank() as u8; 3], u8::DTYPE);
        while !pending.is_completed() {
            std::thread::yield_now();
        }
        pending.wait()?;
        Ok(())
    });
}

fn sub_groups_work_at_the_same_time(kind: Kind) {
    // A grid of 2 × 2: rows and columns, and the rows in reverse.
    run_well(kind, 4, |world| {
        let rank = world.rank() as u32;
        let row = world.split("row", rank / 2, rank)?;
        let column = world.split("column", rank % 2, rank)?;
        let reverse = world.split("reverse", 0, 10 - rank)?;
        assert_eq!((row.name(), row.size(), row.rank()), ("row", 2, rank as usize % 2));
        assert_eq!(column.global_rank(1), 2 + rank as usize % 2);
        assert_eq!((reverse.rank(), reverse.global_rank(0)), (3 - rank as usize, 3));
        std::thread::scope(|scope| {
            let work: Vec<_> = [&row, &column, &reverse, world]
                .map(|group| {
                    scope.spawn(move || -> Result<()> {
                        for i in 0..30 {
                            let count = if i % 10 == 0 { 100_000 } else { i };
                            let mut slice = vec![group.global_rank(group.rank()) as i64; count];
                            group.all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
                            let sum: i64 = (0..group.size()).map(|rank| group.global_rank(rank) as i64).sum();
                            assert!(slice.iter().all(|x| *x == sum));
                        }
                        Ok(())
                    })
                })
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            work.into_iter().collect::<Result<()>>()
        })?;
        let inner = reverse.split("inner", reverse.rank() as u32 / 2, 0)?;
        let mut slice = [inner.global_rank(inner.rank()) as i64];
        inner.all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
        assert_eq!(slice, [if rank < 2 { 1 } else { 5 }]);
        Ok(())
    });
}

fn blocking_calls_queue_behind_those_in_flight(kind: Kind) {
    run_well(kind, 2, |group| {
        for _ in 0..20 {
            let first = group.all_reduce(vec![1.0f32; 50_000], f32::DTYPE, ReduceOp::Sum);
            let mut second = [1.0f32];
            group.all_reduce_in_place(&mut second, ReduceOp::Sum)?;
            assert!(first.is_completed());
            assert_eq!(second, [2.0]);
            assert_eq!(first.wait()?, vec![2.0; 50_000]);
        }
        Ok(())
    });
}

fn statistics_count_what_was_sent(kind: Kind) {
    for n in [2, 3, 4] {
        run_well(kind, n, |group| {
            let count = 12 * 5000;
            let mut slice = vec![1.0f32; count];
            let bytes = (count * 4) as u64;
            for _ in 0..3 {
                group.all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
            }
            let parts = (n - 1) as u64;
            let expected = Count { calls: 3, bytes: 3 * 2 * bytes * parts / n as u64 };
            assert_eq!(group.stats().of(OpType::AllReduce), expected);
            group.all_gather_in_place(&mut slice)?;
            let expected = Count { calls: 1, bytes: bytes * parts / n as u64 };
            assert_eq!(group.stats().of(OpType::AllGather), expected);
            group.barrier()?;
            // A byte says that the level before is complete.
            let has_levels = n == 4 && matches!(kind, Kind::Mixed | Kind::Halving);
            assert_eq!(group.stats().of(OpType::Barrier), Count { calls: 1, bytes: has_levels.into() });
            assert_eq!(group.stats().total().calls, 5);
            assert_eq!(group.stats().iter().count(), 3);
            Ok(())
        });
    }
}

#[test]
fn all_transports_give_the_bits_of_one_process() {
    // Four micro-batches: on one rank, two on each of two ranks, one on each of four ranks.
    let one = reduced::<f32>(4, ReduceOp::Sum, 10_001);
    for kind in KINDS {
        for n in [2, 4] {
            let share = 4 / n;
            let sums = run_well(kind, n, |group| {
                let first = group.rank() * share;
                let mut sum: Vec<f32> = (0..10_001)
                    .map(|i| {
                        pairwise((first..first + share).map(|m| f32::sample(m, i)).collect(), |a, b| a + b)
                    })
                    .collect();
                group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                Ok(sum)
            });
            assert!(sums.iter().all(|sum| *sum == one), "{kind:?} on {n} ranks");
        }
    }
}

#[test]
fn more_ranks_than_cores_do_not_collapse() {
    for kind in KINDS {
        let start = std::time::Instant::now();
        run_well(kind, 8, |group| {
            for _ in 0..200 {
                group.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum)?;
            }
            Ok(())
        });
        let taken = start.elapsed();
        assert!(taken < std::time::Duration::from_secs(20), "{kind:?} took {taken:?}");
    }
}

#[test]
fn buffers_need_no_alignment() {
    struct Odd(Vec<u8>);
    impl HostBuffer for Odd {
        fn as_bytes(&self) -> &[u8] {
            &self.0[1..]
        }
        fn as_bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0[1..]
        }
    }
    run_well(Kind::SharedMemory, 3, |group| {
        let mut bytes = vec![0];
        bytes.extend(samples::<f64>(group.rank(), 101).into_iter().flat_map(f64::to_ne_bytes));
        let Odd(bytes) = group.all_reduce(Odd(bytes), f64::DTYPE, ReduceOp::Sum).wait()?;
        let values: Vec<f64> =
            bytes[1..].as_chunks().0.iter().map(|cell| f64::from_ne_bytes(*cell)).collect();
        assert_eq!(values, reduced::<f64>(3, ReduceOp::Sum, 101));
        Ok(())
    });
}
