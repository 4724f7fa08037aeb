//! What goes wrong in a running world, and what every rank then says.

use std::time::{Duration, Instant};

use brigade_comm::{DType, Element, Error, Group, OpType, ReduceOp, Result};

use crate::errors::{assert_all_say, errors_soon, says};
use crate::worlds::{HASTY, Kind, PATIENT, SOON, on_every_world, others_give_up, run};

on_every_world!(
    another_size_is_an_error_on_all_ranks,
    another_operation_is_an_error_on_all_ranks,
    another_type_or_root_or_reduction_is_an_error_on_all_ranks,
    a_rank_that_skips_an_operation_is_named,
    a_rank_that_warms_up_is_waited_for,
    a_missing_peer_of_a_transfer_is_named,
    a_transfer_of_another_size_is_an_error_on_both_ranks,
    a_message_beyond_the_limit_is_an_error_on_both_ranks,
    a_message_of_another_type_is_an_error_on_both_ranks,
    a_missing_sender_of_a_message_is_named,
    a_sender_that_leaves_is_missed,
    abort_ends_what_is_in_flight_everywhere,
    the_first_failure_is_final,
    a_call_that_cannot_be_tells_the_others,
    a_rank_that_leaves_is_missed,
    a_rank_that_left_before_it_spoke_is_missed,
);

/// The ranks' errors; none of them may have taken long.
fn errors(kind: Kind, n: usize, work: impl Fn(&Group) -> Result<()> + Sync) -> Vec<Error> {
    errors_soon(|| run(kind, n, PATIENT, work))
}

fn another_size_is_an_error_on_all_ranks(kind: Kind) {
    let errors = errors(kind, 3, |group| {
        group.barrier()?;
        let count = if group.rank() == 1 { 10 } else { 11 };
        group.all_reduce_in_place(&mut vec![0.0f32; count], ReduceOp::Sum)
    });
    assert_all_say(
        &errors,
        &["\"world\"", "all_reduce #1 (sum, f32, 44 bytes)", "all_reduce #1 (sum, f32, 40 bytes)"],
    );
    let mismatch = errors.iter().find_map(|error| match error {
        Error::Mismatch { rank, peer, ours, .. } => Some((*rank, *peer, ours.bytes)),
        _ => None,
    });
    let (rank, peer, bytes) = mismatch.unwrap();
    assert!(rank == 1 && bytes == 40 || peer == 1 && bytes == 44);
}

fn another_operation_is_an_error_on_all_ranks(kind: Kind) {
    let errors = errors(kind, 3, |group| match group.rank() {
        2 => group.barrier(),
        _ => group.all_gather_in_place(&mut [0u8; 3]),
    });
    assert_all_say(&errors, &["all_gather #0 (u8, 3 bytes)", "barrier #0", "rank 2"]);
}

fn another_type_or_root_or_reduction_is_an_error_on_all_ranks(kind: Kind) {
    let told = errors(kind, 2, |group| match group.rank() {
        0 => group.all_reduce_in_place(&mut [0.0f64; 3], ReduceOp::Sum),
        _ => group.all_reduce_in_place(&mut [0i64; 3], ReduceOp::Sum),
    });
    assert_all_say(&told, &["f64", "i64"]);
    let told = errors(kind, 2, |group| group.broadcast_in_place(&mut [0u8], group.rank()));
    assert_all_say(&told, &["root 0", "root 1"]);
    let told = errors(kind, 2, |group| {
        let op = [ReduceOp::Sum, ReduceOp::Max][group.rank()];
        group.all_reduce_in_place(&mut [0u8], op)
    });
    assert_all_say(&told, &["sum", "max"]);
}

/// A barrier that a loaded machine may be slow to complete.
fn together(group: &Group) -> Result<()> {
    group.use_init_timeout();
    group.barrier()?;
    group.use_step_timeout();
    Ok(())
}

fn a_rank_that_skips_an_operation_is_named(kind: Kind) {
    let outcomes = run(kind, 3, HASTY, |group| {
        together(group)?;
        if group.rank() == 2 {
            others_give_up(group);
        }
        group.all_reduce_in_place(&mut [0.0f32; 5], ReduceOp::Sum)
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(says(&error, &["all_reduce #1 (sum, f32, 20 bytes)", "ranks [2] did not arrive"]), "{error}");
    }
}

fn a_rank_that_warms_up_is_waited_for(kind: Kind) {
    let outcomes = run(kind, 2, HASTY, |group| {
        group.use_init_timeout();
        let part = group.split("part", 0, group.rank() as u32)?;
        assert_eq!(part.op_timeout(), HASTY.init);
        if group.rank() == 1 {
            std::thread::sleep(HASTY.step * 2);
        }
        part.barrier()?;
        part.use_step_timeout();
        assert_eq!(group.op_timeout(), HASTY.step);
        if group.rank() == 1 {
            others_give_up(group);
        }
        group.barrier()
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(says(&error, &["barrier #1", "1.5", "ranks [1] did not arrive"]), "{error}");
    }
}

fn a_missing_peer_of_a_transfer_is_named(kind: Kind) {
    let outcomes = run(kind, 2, HASTY, |group| {
        if group.rank() == 1 {
            return group.recv(vec![0u8; 9], DType::U8, 0).wait().map(|_| ());
        }
        others_give_up(group);
        group.barrier()
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(says(&error, &["recv #0 (u8, 9 bytes)", "ranks [0] did not arrive"]), "{error}");
    }
}

fn a_transfer_of_another_size_is_an_error_on_both_ranks(kind: Kind) {
    let errors = errors(kind, 2, |group| {
        if group.rank() == 0 {
            group.send(vec![0.0f32; 7], f32::DTYPE, 1).wait()?;
        } else {
            group.recv(vec![0.0f32; 8], f32::DTYPE, 0).wait()?;
        }
        group.barrier()
    });
    assert_all_say(
        &errors,
        &["rank 1 called recv #0 (f32, 32 bytes)", "rank 0 called send #0 (f32, 28 bytes)"],
    );
}

fn a_message_beyond_the_limit_is_an_error_on_both_ranks(kind: Kind) {
    // The larger one is more than the links hold: the sender is in the middle of it.
    for (size, limit) in [(5 << 20, 1 << 20), (1, 0), (101, 100)] {
        let errors = errors(kind, 2, |group| {
            if group.rank() == 0 {
                group.send(vec![0u8; 3], DType::U8, 1).wait()?;
                group.send(vec![0u8; size], DType::U8, 1).wait()?;
            } else {
                assert_eq!(group.recv_message(0, 3).wait()?, [0; 3]);
                group.recv_message(0, limit).wait()?;
            }
            group.barrier()
        });
        let called = format!("rank 1 called recv_message #1 (u8, at most {limit} bytes)");
        assert_all_say(&errors, &[&called, &format!("rank 0 called send #1 (u8, {size} bytes)")]);
        assert!(matches!(errors[1], Error::Mismatch { rank: 1, peer: 0, .. }));
    }
}

fn a_message_of_another_type_is_an_error_on_both_ranks(kind: Kind) {
    let errors = errors(kind, 2, |group| {
        if group.rank() == 0 {
            group.send(vec![0.0f32; 7], f32::DTYPE, 1).wait()?;
        } else {
            group.recv_message(0, 100).wait()?;
        }
        group.barrier()
    });
    assert_all_say(
        &errors,
        &["rank 1 called recv_message #0 (u8, at most 100 bytes)", "rank 0 called send #0 (f32, 28 bytes)"],
    );
}

fn a_missing_sender_of_a_message_is_named(kind: Kind) {
    let outcomes = run(kind, 2, HASTY, |group| {
        if group.rank() == 1 {
            return group.recv_message(0, 9).wait().map(drop);
        }
        others_give_up(group);
        group.barrier()
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        let words = ["recv_message #0 (u8, at most 9 bytes)", "ranks [0] did not arrive"];
        assert!(says(&error, &words), "{error}");
    }
}

fn a_sender_that_leaves_is_missed(kind: Kind) {
    let errors = errors(kind, 2, |group| match group.rank() {
        0 => {
            group.send(vec![0u8; 5], DType::U8, 1).wait()?;
            group.barrier()?;
            Err(Error::Aborted { rank: 0, reason: "this rank only stops".into() })
        }
        _ => {
            let messages = [9, 1 << 20].map(|limit| group.recv_message(0, limit));
            group.barrier()?;
            messages.into_iter().try_for_each(|message| message.wait().map(drop))
        }
    });
    assert!(says(&errors[1], &["rank 0"]), "{}", errors[1]);
}

fn abort_ends_what_is_in_flight_everywhere(kind: Kind) {
    let errors = errors(kind, 3, |group| {
        if group.rank() == 1 {
            group.barrier()?;
            std::thread::sleep(Duration::from_millis(50));
            group.abort("the loss is not finite");
            return group.barrier();
        }
        let early = group.recv(vec![0u8; 4], DType::U8, 1);
        group.barrier()?;
        let outcome = group.all_reduce_in_place(&mut vec![0.0f32; 500_000], ReduceOp::Sum);
        let other = early.wait().unwrap_err();
        assert!(says(&other, &["rank 1", "the loss is not finite"]));
        outcome
    });
    assert_all_say(&errors, &["rank 1", "the loss is not finite"]);
    assert!(matches!(errors[0], Error::PeerFailed { peer: 1, .. }));
    assert!(matches!(errors[1], Error::Aborted { rank: 1, .. }));
}

fn the_first_failure_is_final(kind: Kind) {
    let errors = errors(kind, 2, |group| {
        let pair = group.split("pair", 0, 0)?;
        let first = match group.rank() {
            0 => group.barrier(),
            _ => group.all_gather_in_place(&mut [0u8; 2]),
        };
        let first = first.unwrap_err();
        let start = Instant::now();
        assert_eq!(group.barrier().unwrap_err(), first);
        assert_eq!(pair.barrier().unwrap_err(), first);
        assert_eq!(pair.all_gather(vec![0u8; 2], DType::U8).wait().unwrap_err(), first);
        assert_eq!(pair.send(vec![0u8], DType::U8, 1 - pair.rank()).wait().unwrap_err(), first);
        assert_eq!(group.split("more", 0, 0).unwrap_err(), first);
        assert!(start.elapsed() < SOON);
        Err(first)
    });
    assert_all_say(&errors, &["barrier #1", "all_gather #1"]);
}

fn a_call_that_cannot_be_tells_the_others(kind: Kind) {
    type Call = fn(&Group) -> Result<()>;
    let calls: [(Call, &[&str]); 7] = [
        (|group| group.all_gather_in_place(&mut [0.0f32; 3]), &["all_gather", "12 bytes are given", "8"]),
        (|group| group.broadcast_in_place(&mut [0u8], 2), &["broadcast", "root 2", "2 ranks"]),
        (|group| group.send(vec![0u8], DType::U8, 5).wait().map(drop), &["send", "peer 5"]),
        (|group| group.recv(vec![0u8], DType::U8, 1).wait().map(drop), &["recv", "peer 1", "itself"]),
        (|group| group.recv_message(1, 9).wait().map(drop), &["recv_message", "peer 1", "itself"]),
        (|group| group.recv_message(2, 9).wait().map(drop), &["recv_message", "peer 2", "2 ranks"]),
        (
            |group| group.all_reduce(vec![0u8; 7], DType::F32, ReduceOp::Sum).wait().map(drop),
            &["all_reduce", "7 bytes", "multiple of 4"],
        ),
    ];
    for (call, words) in calls {
        let errors = errors(kind, 2, |group| if group.rank() == 1 { call(group) } else { group.barrier() });
        assert_all_say(&errors, words);
        assert!(
            matches!(&errors[1], Error::InvalidArgument { operation, .. } if *operation != OpType::Barrier)
        );
    }
}

fn a_rank_that_leaves_is_missed(kind: Kind) {
    let start = Instant::now();
    let outcomes = run(kind, 3, PATIENT, |group| {
        group.barrier()?;
        match group.rank() {
            1 => Err(Error::Aborted { rank: 1, reason: "this rank only stops".into() }),
            _ => group.all_reduce_in_place(&mut vec![0.0f32; 300_000], ReduceOp::Sum),
        }
    });
    for rank in [0, 2] {
        let error = outcomes[rank].as_ref().unwrap_err();
        assert!(says(error, &["rank 1"]), "rank {rank} says: {error}");
    }
    assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
}

fn a_rank_that_left_before_it_spoke_is_missed(kind: Kind) {
    let errors = errors(kind, 3, |group| {
        let part = group.split("part", 0, group.rank() as u32)?;
        if group.rank() == 0 {
            drop(part);
            group.barrier()?;
            return group.barrier();
        }
        group.barrier()?;
        part.barrier()
    });
    assert_all_say(&errors, &["\"part\"", "rank 0 has left"]);
}

#[test]
fn a_panicking_thread_fails_its_world() {
    let mut groups = brigade_comm::threads(2, PATIENT);
    let other = groups.remove(0);
    let group = groups.remove(0);
    let panicking = std::thread::spawn(move || {
        let _group = group;
        std::panic::resume_unwind(Box::new("without a message on the terminal"));
    });
    let error = other.barrier().unwrap_err();
    assert!(says(&error, &["rank 1", "panicked"]), "{error}");
    assert!(panicking.join().is_err());
}

#[test]
fn what_was_called_ends_also_when_nobody_waits_for_it() {
    let sums: Vec<_> = run(Kind::Threads, 2, PATIENT, |group| {
        let pair = group.split("pair", 0, 0)?;
        drop(pair.all_reduce(vec![1.0f32; 100_000], f32::DTYPE, ReduceOp::Sum));
        drop(pair);
        group.barrier()
    });
    assert!(sums.into_iter().all(|outcome| outcome.is_ok()));
}
