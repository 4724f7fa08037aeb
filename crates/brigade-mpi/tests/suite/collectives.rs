//! Collectives have the results, the bits and the counts of the engine in memory.

use std::thread;

use brigade_comm::{
    DType, Element, HostBuffer, MemoryGroup, ProcessGroup, ReduceOp, Timeouts, Work, in_memory,
};
use half::{bf16, f16};

use crate::ranks::run;

/// Values whose sum depends on the order of the additions.
fn noise(rank: usize, i: usize) -> f64 {
    ((rank * 7919 + i * 104_729) % 1013) as f64 * 0.1 + 1e-3 * (rank as f64)
}

fn given<T>(rank: usize, elements: usize, of: impl Fn(f64) -> T) -> Vec<T> {
    (0..elements).map(|i| of(noise(rank, i))).collect()
}

/// What each rank of a world in memory gives, for a rank of a world over MPI.
fn expected<R: Send>(rank: usize, size: usize, work: impl Fn(&dyn ProcessGroup) -> R + Sync) -> R {
    let run = |group: &MemoryGroup| work(&**group);
    let mut results: Vec<R> = thread::scope(|scope| {
        let groups = in_memory(size, Timeouts::default());
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || run(&group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    results.swap_remove(rank)
}

fn bytes<T: Element>(work: Work<Vec<T>>) -> Vec<u8> {
    work.wait().unwrap().as_bytes().to_vec()
}

/// Lengths around what is sent at once, of every rank: none, few, more than a round of small messages, more than a piece.
const LENGTHS: [usize; 6] = [0, 1, 7, 1001, 70_003, 2_500_001];

#[test]
fn sums_have_the_bits_of_the_tree() {
    run("collectives::sums_have_the_bits_of_the_tree", &[2, 3, 4, 5], |rank| {
        fn all<T: Element>(group: &dyn ProcessGroup, of: impl Fn(f64) -> T + Copy) -> Vec<Vec<u8>> {
            let (rank, size) = (group.rank(), group.size());
            let mut found = Vec::new();
            for length in LENGTHS {
                for op in [ReduceOp::Sum, ReduceOp::Max] {
                    found.push(bytes(group.all_reduce(given(rank, length, of), T::DTYPE, op)));
                    let slice = length.min(100_000) * T::DTYPE.size();
                    let sum = bytes(group.reduce_scatter(
                        given(rank, length.min(100_000) * size, of),
                        T::DTYPE,
                        op,
                    ));
                    found.push(sum[rank * slice..(rank + 1) * slice].to_vec());
                }
            }
            found
        }
        fn check<T: Element>(group: &dyn ProcessGroup, of: impl Fn(f64) -> T + Copy + Sync) {
            let found = all(group, of);
            assert!(found == expected(group.rank(), group.size(), |group| all(group, of)), "{}", T::DTYPE);
        }
        let group = &*rank.tree;
        check(group, |x| x as f32);
        check(group, |x| x);
        check(group, bf16::from_f64);
        check(group, f16::from_f64);
        check(group, |x| x as i64 * 1_000_003);
        check(group, |x| x as u8);
    });
}

#[test]
fn a_reduce_scatter_of_several_pieces_has_the_bits_of_the_tree() {
    run("collectives::a_reduce_scatter_of_several_pieces_has_the_bits_of_the_tree", &[2, 3], |rank| {
        let sum = |group: &dyn ProcessGroup| {
            let (rank, size, slice) = (group.rank(), group.size(), 3_000_017);
            let sum = given(rank, slice * size, |x| x as f32);
            let sum = group.reduce_scatter(sum, DType::F32, ReduceOp::Sum).wait().unwrap();
            sum[rank * slice..(rank + 1) * slice].as_bytes_vec()
        };
        assert!(sum(&*rank.tree) == expected(rank.tree.rank(), rank.tree.size(), sum));
    });
}

trait AsBytesVec {
    fn as_bytes_vec(&self) -> Vec<u8>;
}

impl AsBytesVec for [f32] {
    fn as_bytes_vec(&self) -> Vec<u8> {
        self.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

/// A buffer whose numbers lie at odd addresses.
struct Odd(Vec<u8>);

impl HostBuffer for Odd {
    fn as_bytes(&self) -> &[u8] {
        &self.0[1..]
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0[1..]
    }
}

#[test]
fn sums_of_mpi_are_near_equal_on_all_ranks_and_the_same_twice() {
    let name = "collectives::sums_of_mpi_are_near_equal_on_all_ranks_and_the_same_twice";
    run(name, &[2, 3, 4], |rank| {
        let group = rank.engine();
        let (this, size) = (group.rank(), group.size());
        for length in [1, 1000, 300_007] {
            let sum = || group.all_reduce(given(this, length, |x| x as f32), DType::F32, ReduceOp::Sum);
            let found = sum().wait().unwrap();
            assert_eq!(found, sum().wait().unwrap(), "twice");
            let exact = |i: usize| (0..size).map(|rank| noise(rank, i)).sum::<f64>();
            let near = |(i, x): (usize, &f32)| (f64::from(*x) - exact(i)).abs() < 1e-6 * exact(i) + 1e-6;
            assert!(found.iter().enumerate().all(near));
            let all =
                group.all_gather(vec![found.iter().map(|x| f64::from(*x)).sum::<f64>(); size], DType::F64);
            assert!(all.wait().unwrap().windows(2).all(|pair| pair[0] == pair[1]), "on all ranks");
            let odd: Vec<u8> =
                given(this, length, |x| x as f32).iter().flat_map(|x| x.to_le_bytes()).collect();
            let odd = Odd([vec![0], odd].concat());
            let odd = group.all_reduce(odd, DType::F32, ReduceOp::Sum).wait().unwrap();
            assert_eq!(odd.as_bytes(), found.as_bytes_vec(), "at odd addresses");

            let slice = || group.reduce_scatter(given(this, length * size, |x| x), DType::F64, ReduceOp::Sum);
            let found = slice().wait().unwrap();
            let own = |i: usize| this * length + i;
            let exact = |i: usize| (0..size).map(|rank| noise(rank, own(i))).sum::<f64>();
            assert!((0..length).all(|i| (found[own(i)] - exact(i)).abs() < 1e-9));
            let odd: Vec<u8> =
                given(this, length * size, |x| x).iter().flat_map(|x| x.to_le_bytes()).collect();
            let odd = group.reduce_scatter(Odd([vec![0], odd].concat()), DType::F64, ReduceOp::Sum);
            let odd = &odd.wait().unwrap().0[1..][8 * this * length..8 * (this + 1) * length];
            let found: Vec<u8> =
                found[this * length..(this + 1) * length].iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!(odd, found, "at odd addresses");
        }
        // What MPI has no numbers for is added as ever.
        let halves = given(this, 1000, bf16::from_f64);
        let found = group.all_reduce(halves.clone(), DType::Bf16, ReduceOp::Sum).wait().unwrap();
        assert_eq!(found, rank.tree.all_reduce(halves, DType::Bf16, ReduceOp::Sum).wait().unwrap());
    });
}

#[test]
fn bytes_move_as_in_memory_and_are_counted_the_same() {
    run("collectives::bytes_move_as_in_memory_and_are_counted_the_same", &[1, 2, 3, 5], |rank| {
        let moved = |group: &dyn ProcessGroup| {
            let (rank, size) = (group.rank(), group.size());
            let mut found = Vec::new();
            for length in [0, 1, 300, 400_000] {
                let all = || given(rank, length * size, |x| x as i64);
                found.push(bytes(group.all_gather(all(), DType::I64)));
                found.push(bytes(group.all_to_all(all(), DType::I64)));
                for root in 0..size {
                    found.push(bytes(group.broadcast(all(), DType::I64, root)));
                    let gathered = bytes(group.gather(all(), DType::I64, root));
                    found.push(if rank == root { gathered } else { Vec::new() });
                }
                found.push(bytes(group.all_reduce(all(), DType::I64, ReduceOp::Sum)));
                group.barrier().unwrap();
            }
            (found, group.stats())
        };
        let (found, stats) = moved(&*rank.tree);
        let (bytes, counts) = expected(rank.tree.rank(), rank.tree.size(), moved);
        assert!(found == bytes);
        assert_eq!(stats, counts);
    });
}

#[test]
fn groups_of_a_split_work_at_the_same_time() {
    run("collectives::groups_of_a_split_work_at_the_same_time", &[4, 5], |rank| {
        let world = &rank.tree;
        let (this, size) = (world.rank(), world.size());
        let parity = world.split(["even", "odd"][this % 2], this as u32 % 2, (size - this) as u32).unwrap();
        let members: Vec<i64> = (0..size as i64).rev().filter(|rank| *rank % 2 == this as i64 % 2).collect();
        assert_eq!((parity.size(), parity.name()), (members.len(), ["even", "odd"][this % 2]));
        let mut all = vec![0; parity.size()];
        all[parity.rank()] = this as i64;
        // In flight together, and waited for in another order than they were called in.
        let later = world.all_reduce(vec![1i64; 100_000], DType::I64, ReduceOp::Sum);
        let gathered = parity.all_gather(all, DType::I64);
        let last = parity.all_reduce(vec![this as i64], DType::I64, ReduceOp::Max);
        assert_eq!(last.wait().unwrap(), [members[0].max(members[members.len() - 1])]);
        assert_eq!(gathered.wait().unwrap(), members);
        assert_eq!(later.wait().unwrap(), vec![size as i64; 100_000]);
        let alone = parity.split("alone", parity.rank() as u32, 0).unwrap();
        assert_eq!((alone.rank(), alone.size()), (0, 1));
        alone.barrier().unwrap();
        assert_eq!(alone.all_gather(vec![7i64], DType::I64).wait().unwrap(), [7]);
    });
}
