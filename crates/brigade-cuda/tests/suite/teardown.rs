//! How communicators end: exactly once, whatever happens.

use std::time::{Duration, Instant};

use brigade_comm::DType;
use brigade_cuda::{Communicator, Context, Error, GroupCall, Stream, UniqueId, Watchdog, nccl};

use crate::harness::{
    SOON, TestRank, address, alone, assert_contains, communicator_counts, count, eventually, world,
};

/// A deadline that passes soon.
const SHORT: Duration = Duration::from_millis(200);

fn all_reduce(rank: &TestRank, buffer: &mut [f32]) -> Result<(), Error> {
    // SAFETY: callers keep it until the stream is done or aborted.
    unsafe { rank.all_reduce(buffer) }
}

stand_in_test!(a_rank_that_nobody_joins_times_out, [], {
    let context = Context::new(0).unwrap();
    let id = UniqueId::new(nccl().unwrap()).unwrap();
    let start = Instant::now();
    let error = Communicator::init(nccl().unwrap(), &context, "dp", &id, 0, 2, SHORT).err().unwrap();
    assert!(start.elapsed() >= SHORT);
    assert_contains(&error.to_string(), &["joining a group on group \"dp\" did not finish within 0.2 s"]);
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(an_operation_that_stays_in_progress_times_out, ["STAND_IN_IN_PROGRESS" = "2"], {
    alone(|mut rank| {
        let mut buffer = [1.0; 4];
        all_reduce(&rank, &mut buffer).unwrap();
        rank.timeout = SHORT;
        let error = all_reduce(&rank, &mut buffer).unwrap_err();
        assert_contains(&error.to_string(), &["all_reduce on group \"world\" did not finish within 0.2 s"]);
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

// NCCL connects ranks in their first operation together, which blocks the host until the other rank gets there.
stand_in_test!(a_first_operation_that_nobody_joins_times_out, ["STAND_IN_CONNECTS" = "1"], {
    world(2, |mut rank| match rank.rank {
        0 => {
            rank.timeout = SHORT;
            let error = all_reduce(&rank, &mut [1.0; 4]).unwrap_err();
            assert_contains(
                &error.to_string(),
                &["all_reduce on group \"world\" did not finish within 0.2 s"],
            );
        }
        _ => rank.comm.abort("over"),
    });
    assert_eq!(communicator_counts(), (2, 0, 0, 2));
});

// NCCL may still write the result afterwards.
stand_in_test!(a_split_that_not_all_ranks_join_times_out, [], {
    world(2, |rank| {
        if rank.rank == 0 {
            let error = rank.comm.split("dp", Some(0), 0, SHORT).err().unwrap();
            assert_contains(
                &error.to_string(),
                &["splitting off group \"dp\" on group \"world\" did not finish within 0.2 s"],
            );
        }
        rank.comm.abort("over");
    });
    assert_eq!(communicator_counts(), (2, 0, 0, 2));
});

stand_in_test!(a_call_that_fails_is_named, ["STAND_IN_CALL_FAILS" = "2"], {
    alone(|rank| {
        let mut buffer = [1.0; 4];
        all_reduce(&rank, &mut buffer).unwrap();
        let text = all_reduce(&rank, &mut buffer).unwrap_err().to_string();
        let parts =
            ["all_reduce on group \"world\": ncclAllReduce", "ncclInternalError", "operation 2 is set"];
        assert_contains(&text, &parts);
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(a_part_of_a_group_call_that_fails_is_named, [], {
    alone(|rank| {
        let mut buffer = [0u8; 4];
        let address = address(&mut buffer);
        // SAFETY: nothing is enqueued.
        let enqueue = |call: &GroupCall<'_>| unsafe { call.send(address, 4, DType::U8, 5) };
        let text = rank.enqueue("a transfer", enqueue).unwrap_err().to_string();
        assert_contains(
            &text,
            &["a transfer on group \"world\": ncclSend", "ncclInvalidArgument", "no rank 5 of 1"],
        );
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(finalizing_that_hangs_is_aborted, ["STAND_IN_FINALIZE" = "hangs"], {
    alone(|rank| {
        let error = rank.comm.finalize(SHORT).unwrap_err();
        assert_contains(
            &error.to_string(),
            &["closing a communicator on group \"world\" did not finish within 0.2 s"],
        );
    });
    assert_eq!(communicator_counts(), (1, 1, 0, 1));
});

stand_in_test!(dropping_finalizes, [], {
    world(2, |rank| drop(rank.comm));
    assert_eq!(communicator_counts(), (2, 2, 2, 0));
});

stand_in_test!(dropping_in_a_panic_aborts, [], {
    alone(|rank| {
        let comm = rank.comm;
        let panics = std::thread::spawn(move || {
            let _comm = comm;
            panic!("a test's panic");
        });
        panics.join().unwrap_err();
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(an_abort_ends_the_waits_of_another_thread, ["STAND_IN_IN_PROGRESS" = "1"], {
    alone(|rank| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| all_reduce(&rank, &mut [1.0; 4]));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiter.is_finished());
            rank.comm.abort("rank 3 has gone");
            let aborted = Err(Error::Aborted { reason: "rank 3 has gone".to_owned() });
            assert_eq!(waiter.join().unwrap(), aborted);
            assert_eq!(all_reduce(&rank, &mut [1.0; 4]), aborted);
        });
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        rank.comm.abort("again");
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(an_abort_frees_a_stream, ["STAND_IN_STUCK" = "1"], {
    world(2, |rank| {
        let mut buffer = [1.0; 4];
        all_reduce(&rank, &mut buffer).unwrap();
        assert!(rank.stream.synchronize_within(SHORT).is_err());
        rank.comm.abort("stuck");
        rank.stream.synchronize_within(SOON).unwrap();
    });
    assert_eq!(communicator_counts(), (2, 0, 0, 2));
});

// An abort stops waiting for the call of another thread after two seconds.
stand_in_test!(
    an_abort_waits_while_another_thread_reads_why_its_call_failed,
    ["STAND_IN_CALL_FAILS" = "1", "STAND_IN_LAST_ERROR" = "4000"],
    {
        alone(|rank| {
            std::thread::scope(|scope| {
                let fails = scope.spawn(|| all_reduce(&rank, &mut [1.0; 4]));
                eventually("the failure", || count("failure") == 1);
                rank.comm.abort("rank 3 has gone");
                assert!(fails.join().unwrap().is_err());
            });
        });
        assert_eq!(communicator_counts(), (1, 0, 0, 1));
    }
);

stand_in_test!(a_stream_of_another_gpu_is_refused, [], {
    world(2, |rank| {
        let elsewhere = Stream::new(&Context::new(1 - rank.rank).unwrap()).unwrap();
        let text = rank.comm.enqueue("all_reduce", &elsewhere, SOON, |_| ()).unwrap_err().to_string();
        assert_contains(&text, &["all_reduce", "the stream does not belong to the GPU of group \"world\""]);
    });
    assert_eq!(communicator_counts(), (2, 2, 2, 0));
});

stand_in_test!(an_abort_interrupts_finalizing, ["STAND_IN_FINALIZE" = "hangs"], {
    alone(|rank| {
        let watchdog = Watchdog::new(|_| (), || None).unwrap();
        watchdog.register(&rank.comm);
        let comm = rank.comm;
        let finishes = std::thread::spawn(move || comm.finalize(SOON));
        eventually("finalizing", || count("finalize") == 1);
        watchdog.fail("rank 3 has gone");
        assert_eq!(finishes.join().unwrap(), Err(Error::Aborted { reason: "rank 3 has gone".to_owned() }));
    });
    assert_eq!(communicator_counts(), (1, 1, 0, 1));
});

stand_in_test!(an_abort_and_finalizing_at_once_end_a_communicator_once, ["STAND_IN_POLLS" = "6"], {
    const ROUNDS: i64 = 100;
    alone(|rank| {
        let nccl = nccl().unwrap();
        for round in 0..ROUNDS {
            let id = UniqueId::new(nccl).unwrap();
            let comm = Communicator::init(nccl, &rank.context, "world", &id, 0, 1, SOON).unwrap();
            let watchdog = Watchdog::new(|_| (), || None).unwrap();
            watchdog.register(&comm);
            watchdog.fail("a race");
            // Longer in each round, so that the abort comes before, during and after.
            let delay = Duration::from_micros(u64::try_from(round).unwrap() * 5);
            let start = Instant::now();
            while start.elapsed() < delay {
                std::hint::spin_loop();
            }
            if let Err(error) = comm.finalize(SOON) {
                assert_eq!(error, Error::Aborted { reason: "a race".to_owned() });
            }
            drop(watchdog);
            eventually("one end", || count("destroy") + count("abort") == round + 1);
        }
        rank.comm.finalize(SOON).unwrap();
    });
    let (made, _, destroyed, aborted) = communicator_counts();
    assert_eq!((made, destroyed + aborted), (ROUNDS + 1, ROUNDS + 1));
    println!("{destroyed} destroyed, {aborted} aborted");
});

/// Starts to make a communicator of one rank.
fn begin_init() -> Result<Communicator, Error> {
    let nccl = nccl().unwrap();
    Communicator::begin_init(nccl, &Context::new(0).unwrap(), "world", &UniqueId::new(nccl).unwrap(), 0, 1)
}

stand_in_test!(settings_that_would_wait_forever_are_refused, ["NCCL_COMM_BLOCKING" = "1"], {
    let text = begin_init().err().unwrap().to_string();
    assert_contains(&text, &["NCCL_COMM_BLOCKING=1", "no deadline", "unset it"]);
    assert_eq!(communicator_counts(), (0, 0, 0, 0));
});

stand_in_test!(such_settings_in_a_file_are_refused, ["STAND_IN_FILE" = "NCCL_P2P_USE_CUDA_MEMCPY=1"], {
    let text = begin_init().err().unwrap().to_string();
    assert_contains(&text, &["NCCL_P2P_USE_CUDA_MEMCPY=1", "NCCL_CONF_FILE", "/etc/nccl.conf"]);
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(
    such_settings_are_allowed_if_they_are_off,
    ["NCCL_SHM_USE_CUDA_MEMCPY" = "0", "NCCL_COMM_BLOCKING" = ""],
    {
        begin_init().unwrap().wait_ready(SOON).unwrap().finalize(SOON).unwrap();
        assert_eq!(communicator_counts(), (1, 1, 1, 0));
    }
);
