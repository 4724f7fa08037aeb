//! The trait of process groups, on each engine: byte streams between threads, and buffers exchanged in memory.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use brigade_comm::{
    DType, Element, Error, HostBuffer, OpArgs, OpType, ProcessGroup, ReduceOp, Result, Timeouts, Work,
    in_memory, threads,
};
use half::{bf16, f16};

use crate::errors::{assert_all_say, errors_soon};
use crate::worlds::{HASTY, PATIENT, SOON};

type Engine = fn(usize, Timeouts) -> Vec<Arc<dyn ProcessGroup>>;

fn streams(n: usize, timeouts: Timeouts) -> Vec<Arc<dyn ProcessGroup>> {
    threads(n, timeouts).into_iter().map(|group| Arc::new(group) as Arc<dyn ProcessGroup>).collect()
}

fn memory(n: usize, timeouts: Timeouts) -> Vec<Arc<dyn ProcessGroup>> {
    in_memory(n, timeouts).into_iter().map(|group| Arc::new(group) as Arc<dyn ProcessGroup>).collect()
}

macro_rules! on_every_engine {
    ($($test:ident),* $(,)?) => {
        mod streams {
            $(#[test] fn $test() { super::$test(super::streams) })*
        }
        mod memory {
            $(#[test] fn $test() { super::$test(super::memory) })*
        }
    };
}

on_every_engine!(
    operations_give_what_they_should,
    transfers_keep_their_order,
    large_messages_cross,
    groups_are_split,
    what_is_sent_is_counted,
    differing_calls_are_errors_on_all_ranks,
    differing_transfers_are_errors_on_both_ranks,
    impossible_calls_are_errors_on_all_ranks,
    an_absent_rank_is_named_at_the_deadline,
    an_absent_sender_is_named_at_the_deadline,
    a_rank_that_leaves_is_missed,
    a_panic_ends_all,
    abort_ends_what_is_in_flight,
    a_buffer_that_panics_ends_all,
    dropped_work_still_happens,
);

/// Runs `work` on every rank.
fn run<T: Send>(
    engine: Engine,
    n: usize,
    timeouts: Timeouts,
    work: impl Fn(Arc<dyn ProcessGroup>) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let ranks = engine(n, timeouts).into_iter().map(|group| scope.spawn(move || work(group)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The ranks' errors; none of them may have taken long.
fn errors(engine: Engine, n: usize, work: impl Fn(Arc<dyn ProcessGroup>) -> Result<()> + Sync) -> Vec<Error> {
    errors_soon(|| run(engine, n, PATIENT, work))
}

fn value(rank: usize, i: usize) -> f32 {
    ((rank * 7919 + i * 104_729) % 1013) as f32 * 0.1 + 1e-3
}

fn operations_give_what_they_should(engine: Engine) {
    for n in [1, 2, 3, 5] {
        run(engine, n, PATIENT, |group| {
            let (rank, all) = (group.rank(), 0..n as i64);
            let sums = group.all_reduce(vec![rank as i64, 1], DType::I64, ReduceOp::Sum).wait().unwrap();
            assert_eq!(sums, [all.clone().sum(), n as i64]);
            let most = group.all_reduce(vec![rank as i64], DType::I64, ReduceOp::Max).wait().unwrap();
            assert_eq!(most, [n as i64 - 1]);
            let given: Vec<i64> = all.clone().map(|i| 10 * rank as i64 + i).collect();
            let slices = group.reduce_scatter(given, DType::I64, ReduceOp::Sum).wait().unwrap();
            assert_eq!(slices[rank], all.clone().map(|from| 10 * from + rank as i64).sum::<i64>());
            let mut own = vec![-1; n];
            own[rank] = rank as i64;
            let gathered: Vec<i64> = all.clone().collect();
            assert_eq!(group.all_gather(own.clone(), DType::I64).wait().unwrap(), gathered);
            let outgoing: Vec<i64> = all.clone().map(|to| 10 * rank as i64 + to).collect();
            let incoming: Vec<i64> = all.map(|from| 10 * from + rank as i64).collect();
            assert_eq!(group.all_to_all(outgoing, DType::I64).wait().unwrap(), incoming);
            for root in 0..n {
                let slices = group.gather(own.clone(), DType::I64, root).wait().unwrap();
                assert_eq!(slices, if rank == root { gathered.clone() } else { own.clone() });
                let got = group.broadcast(vec![rank as u8; 5], DType::U8, root).wait().unwrap();
                assert_eq!(got, [root as u8; 5]);
            }
            let scalars = group.all_gather_scalars(&[rank as f64, 0.5]).wait().unwrap();
            assert_eq!(scalars, (0..n).flat_map(|from| [from as f64, 0.5]).collect::<Vec<_>>());
            let empty = group.all_reduce(Vec::<f32>::new(), DType::F32, ReduceOp::Sum).wait().unwrap();
            assert!(empty.is_empty());
            group.barrier().unwrap();
        });
    }
}

/// Every rank's bits of every reduction, for lengths around the sizes at which engines cut buffers.
fn bits<T: Element>(engine: Engine, n: usize, of: fn(f32) -> T) -> Vec<Vec<u8>> {
    run(engine, n, PATIENT, |group| {
        let mut found = Vec::new();
        for length in [1, 255, 40_009, 5 * 16_384 + 1] {
            let given: Vec<T> = (0..length).map(|i| of(value(group.rank(), i))).collect();
            let sum = group.all_reduce(given, T::DTYPE, ReduceOp::Sum).wait().unwrap();
            found.extend_from_slice(sum.as_bytes());
        }
        let given: Vec<T> = (0..1000 * n).map(|i| of(value(group.rank(), i))).collect();
        let slices = group.reduce_scatter(given, T::DTYPE, ReduceOp::Sum).wait().unwrap();
        found.extend_from_slice(slices[1000 * group.rank()..][..1000].to_vec().as_bytes());
        found
    })
}

#[test]
fn engines_give_equal_bits() {
    for n in [1, 2, 3, 4, 7, 34] {
        assert!(bits(streams, n, |x| x) == bits(memory, n, |x| x), "f32 on {n} ranks");
        assert!(bits(streams, n, bf16::from_f32) == bits(memory, n, bf16::from_f32), "bf16 on {n} ranks");
    }
    assert!(bits(streams, 5, f16::from_f32) == bits(memory, 5, f16::from_f32), "f16");
    assert!(bits(streams, 5, f64::from) == bits(memory, 5, f64::from), "f64");
}

#[test]
fn engines_agree_on_what_is_counted() {
    for n in [1, 2, 3, 5, 34] {
        let stats = |engine: Engine| {
            run(engine, n, PATIENT, |group| {
                for length in [0, 1, 7, 100_000] {
                    group.all_reduce(vec![1.0f32; length], DType::F32, ReduceOp::Sum).wait().unwrap();
                    group.broadcast(vec![1.0f32; length], DType::F32, n - 1).wait().unwrap();
                    group.all_gather(vec![1.0f32; length * n], DType::F32).wait().unwrap();
                    group.reduce_scatter(vec![1.0f32; length * n], DType::F32, ReduceOp::Sum).wait().unwrap();
                    group.gather(vec![1.0f32; length * n], DType::F32, 0).wait().unwrap();
                    group.all_to_all(vec![1.0f32; length * n], DType::F32).wait().unwrap();
                }
                group.barrier().unwrap();
                let ops = [
                    OpType::AllReduce,
                    OpType::Broadcast,
                    OpType::AllGather,
                    OpType::ReduceScatter,
                    OpType::Gather,
                    OpType::AllToAll,
                ];
                (ops.map(|op| group.stats().of(op)), group.stats().of(OpType::Barrier).calls)
            })
        };
        assert_eq!(stats(streams), stats(memory), "{n} ranks");
    }
}

fn transfers_keep_their_order(engine: Engine) {
    run(engine, 3, PATIENT, |group| {
        let (rank, n) = (group.rank(), group.size());
        let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
        let early: Vec<_> = (0..3).map(|_| group.recv_message(before, 100)).collect();
        let sums = group.all_reduce(vec![1i64], DType::I64, ReduceOp::Sum);
        let sends: Vec<_> = (0..6u8).map(|i| group.send(vec![i; usize::from(i)], DType::U8, next)).collect();
        for (i, message) in early.into_iter().enumerate() {
            assert_eq!(message.wait().unwrap(), vec![i as u8; i]);
        }
        for i in 3..6u8 {
            let got = group.recv(vec![0; usize::from(i)], DType::U8, before).wait().unwrap();
            assert_eq!(got, vec![i; usize::from(i)]);
        }
        sends.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
        assert_eq!(sums.wait().unwrap(), [n as i64]);
    });
}

/// Neighbours send each other large messages before either receives.
fn large_messages_cross(engine: Engine) {
    const BYTES: usize = 3 << 20;
    run(engine, 2, PATIENT, |group| {
        let peer = 1 - group.rank();
        let sends: Vec<_> =
            (0..2).map(|i| group.send(vec![group.rank() as u8 + i; BYTES], DType::U8, peer)).collect();
        for i in 0..2 {
            assert!(group.recv_message(peer, BYTES).wait().unwrap() == vec![peer as u8 + i; BYTES]);
        }
        sends.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
    });
}

fn groups_are_split(engine: Engine) {
    run(engine, 5, PATIENT, |group| {
        let rank = group.rank();
        let part = group.split(&format!("part {}", rank % 2), rank as u32 % 2, 10 - rank as u32).unwrap();
        let members: Vec<usize> = (0..5).rev().filter(|member| member % 2 == rank % 2).collect();
        assert_eq!((part.size(), members[part.rank()]), (members.len(), rank));
        let ranks = part.all_gather_scalars(&[rank as f64]).wait().unwrap();
        assert_eq!(ranks, members.iter().map(|member| *member as f64).collect::<Vec<_>>());
        // One group inside another, and operations of several in flight at once.
        let alone = part.split("alone", rank as u32, 0).unwrap();
        let (a, b) = (alone.all_gather_scalars(&[1.0]), group.all_gather_scalars(&[2.0]));
        assert_eq!((a.wait().unwrap().len(), b.wait().unwrap().len()), (1, 5));
    });
    let told = errors(engine, 2, |group| group.split(["this", "that"][group.rank()], 0, 0).map(drop));
    assert_all_say(&told, &["split by color 0", "names the group"]);
}

fn what_is_sent_is_counted(engine: Engine) {
    run(engine, 2, PATIENT, |group| {
        let peer = 1 - group.rank();
        for bytes in [70, 1 << 20] {
            let sent = group.send(vec![0u8; bytes], DType::U8, peer);
            group.recv_message(peer, bytes).wait().unwrap();
            drop(sent.wait().unwrap());
        }
        let stats = group.stats();
        assert_eq!((stats.of(OpType::Send).calls, stats.of(OpType::Send).bytes), (2, 70 + (1 << 20)));
        assert_eq!((stats.of(OpType::RecvMessage).calls, stats.of(OpType::RecvMessage).bytes), (2, 0));
    });
}

fn differing_calls_are_errors_on_all_ranks(engine: Engine) {
    let told = errors(engine, 3, |group| {
        group.barrier()?;
        let length = if group.rank() == 1 { 10 } else { 11 };
        group.all_reduce(vec![0.0f32; length], DType::F32, ReduceOp::Sum).wait().map(drop)
    });
    assert_all_say(&told, &["all_reduce #1 (sum, f32, 44 bytes)", "all_reduce #1 (sum, f32, 40 bytes)"]);
    // Ranks that call while another finds the mismatch fail as well.
    for _ in 0..50 {
        let told = errors(engine, 6, |group| {
            let length = if group.rank() == 5 { 10 } else { 11 };
            group.all_reduce(vec![0.0f32; length], DType::F32, ReduceOp::Sum).wait().map(drop)
        });
        assert_all_say(&told, &["44 bytes", "40 bytes"]);
    }
    let told =
        errors(engine, 2, |group| group.broadcast(vec![0u8], DType::U8, group.rank()).wait().map(drop));
    assert_all_say(&told, &["root 0", "root 1"]);
}

fn differing_transfers_are_errors_on_both_ranks(engine: Engine) {
    for (sent, is_message, words) in [
        (9, false, "recv #0 (u8, 5 bytes)"),
        (9, true, "recv_message #0 (u8, at most 5 bytes)"),
        (1 << 20, true, "recv_message #0 (u8, at most 5 bytes)"),
    ] {
        let told = errors(engine, 2, |group| match group.rank() {
            0 => {
                group.send(vec![0u8; sent], DType::U8, 1).wait()?;
                group.barrier()
            }
            _ if is_message => group.recv_message(0, 5).wait().map(drop),
            _ => group.recv(vec![0u8; 5], DType::U8, 0).wait().map(drop),
        });
        assert_all_say(&told, &[words, &format!("send #0 (u8, {sent} bytes)")]);
    }
}

fn impossible_calls_are_errors_on_all_ranks(engine: Engine) {
    type Call = fn(&dyn ProcessGroup) -> Work<Vec<u8>>;
    let calls: [(Call, &str); 4] = [
        (|group| group.all_reduce(vec![0; 5], DType::F32, ReduceOp::Sum), "a multiple of 4"),
        (|group| group.all_gather(vec![0; 5], DType::U8), "in 2 equal slices"),
        (|group| group.broadcast(vec![0; 5], DType::U8, 2), "root 2 is given"),
        (|group| group.send(vec![0; 5], DType::U8, group.rank()), "the caller itself"),
    ];
    for (call, words) in calls {
        let told = errors(engine, 2, |group| match group.rank() {
            0 => call(&*group).wait().map(drop),
            _ => group.barrier(),
        });
        assert_all_say(&told, &[words]);
    }
}

fn an_absent_rank_is_named_at_the_deadline(engine: Engine) {
    let gone = Barrier::new(3);
    let told = run(engine, 3, HASTY, |group| {
        let outcome = match group.rank() {
            2 => Ok(()),
            _ => group.all_reduce(vec![0.0f32; 5], DType::F32, ReduceOp::Sum).wait().map(drop),
        };
        gone.wait();
        outcome.and(group.barrier()).unwrap_err()
    });
    assert_all_say(&told, &["all_reduce #0 (sum, f32, 20 bytes) after 1.5s", "ranks [2] did not arrive"]);
}

fn an_absent_sender_is_named_at_the_deadline(engine: Engine) {
    let gone = Barrier::new(2);
    let told = run(engine, 2, HASTY, |group| {
        let outcome = match group.rank() {
            0 => Ok(()),
            _ => group.recv_message(0, 9).wait().map(drop),
        };
        gone.wait();
        outcome.and(group.barrier()).unwrap_err()
    });
    assert_all_say(&told, &["recv_message #0", "ranks [0] did not arrive"]);
}

fn a_rank_that_leaves_is_missed(engine: Engine) {
    let told = run(engine, 3, PATIENT, |group| match group.rank() {
        2 => None,
        _ => Some(group.barrier().unwrap_err()),
    });
    assert_all_say(&told.into_iter().flatten().collect::<Vec<_>>(), &["rank 2 has left", "barrier #0"]);
    // The same for a handle that outlives its group.
    let told = run(engine, 2, PATIENT, |group| {
        let message = (group.rank() == 1).then(|| group.recv_message(0, 9));
        drop(group);
        message.map(|message| message.wait().unwrap_err())
    });
    assert_all_say(&told.into_iter().flatten().collect::<Vec<_>>(), &["rank 0 has left"]);
}

fn a_panic_ends_all(engine: Engine) {
    let told = run(engine, 2, PATIENT, |group| {
        if group.rank() == 1 {
            let own = thread::spawn(move || {
                let _group = group;
                panic!("a bug");
            });
            assert!(own.join().is_err());
            return None;
        }
        Some(group.barrier().unwrap_err())
    });
    assert_all_say(&told.into_iter().flatten().collect::<Vec<_>>(), &["rank 1", "panicked"]);
}

fn abort_ends_what_is_in_flight(engine: Engine) {
    let told = errors(engine, 3, |group| {
        let part = group.split("all", 0, 0)?;
        let receive = part.recv_message((part.rank() + 1) % 3, 9);
        if group.rank() == 1 {
            group.abort("enough");
        }
        let error = receive.wait().unwrap_err();
        assert!(part.failure().is_some() && matches!(group.barrier(), Err(later) if later == error));
        Err(error)
    });
    assert_all_say(&told, &["rank 1", "enough"]);
}

/// Memory that cannot be written.
struct Broken(Vec<u8>);

impl HostBuffer for Broken {
    fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        panic!("no memory")
    }
}

fn a_buffer_that_panics_ends_all(engine: Engine) {
    let told = errors(engine, 2, |group| match group.rank() {
        0 => group.all_reduce(Broken(vec![0; 4]), DType::F32, ReduceOp::Sum).wait().map(drop),
        _ => group.all_reduce(vec![0.0f32], DType::F32, ReduceOp::Sum).wait().map(drop),
    });
    assert_all_say(&told, &["panicked"]);
}

fn dropped_work_still_happens(engine: Engine) {
    run(engine, 3, PATIENT, |group| {
        drop(group.all_reduce(vec![0.0f32; 9], DType::F32, ReduceOp::Sum));
        let next = (group.rank() + 1) % 3;
        drop(group.send(vec![7u8; 3], DType::U8, next));
        let message = group.recv_message((group.rank() + 2) % 3, 3);
        let work = group.all_gather_scalars(&[0.0]);
        let start = Instant::now();
        while !work.is_completed() {
            assert!(start.elapsed() < SOON);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((message.wait().unwrap(), work.wait().unwrap().len()), (vec![7; 3], 3));
        group.barrier().unwrap();
    });
}

#[test]
fn arguments_of_another_operation_are_refused() {
    let args = OpArgs::new(OpType::AllReduce, DType::F32);
    assert!(args.call(4, 0, &[0, 1]).unwrap_err().contains("a reduction is needed"));
    let args = OpArgs { root: Some(0), ..OpArgs::new(OpType::AllGather, DType::F32) };
    assert!(args.call(8, 0, &[0, 1]).unwrap_err().contains("a root is given"));
    let args = OpArgs { limit: 9, peer: Some(1), ..OpArgs::new(OpType::RecvMessage, DType::U8) };
    assert_eq!(args.call(0, 0, &[0, 1]).unwrap().bytes, 9);
}

/// Each engine's errors are the crate's.
#[test]
fn a_failure_is_known_first_hand_by_its_rank_alone() {
    for engine in [streams, memory] as [Engine; 2] {
        let told = run(engine, 2, PATIENT, |group| {
            if group.rank() == 0 {
                group.abort("enough");
            }
            group.barrier().unwrap_err()
        });
        assert!(matches!(told[0], Error::Aborted { rank: 0, .. }), "{told:?}");
        assert!(matches!(told[1], Error::PeerFailed { peer: 0, .. }), "{told:?}");
    }
}
