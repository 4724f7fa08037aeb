//! The watchdog: an operation that is overdue or fails, or a failure of another rank, aborts everything, once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_comm::flight::{self, ExternalOp, FailureKind, FlightRecord, State};
use brigade_comm::{DType, Timeouts};
use brigade_cuda::{Error, Event, Watchdog, WatchedWork, WorkHandle, WorkInfo};

use crate::harness::{SOON, TestRank, alone, assert_contains, communicator_counts, eventually, world};

/// A deadline that passes soon.
const SHORT: Duration = Duration::from_millis(200);

/// A watchdog that records the failures it reports, and sees a remote failure once `remote_failed` is set.
struct Watched {
    watchdog: Watchdog,
    reported: Arc<Mutex<Vec<String>>>,
    remote_failed: Arc<AtomicBool>,
}

fn watched(rank: &TestRank) -> Watched {
    let (reported, remote_failed) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (record, look) = (reported.clone(), remote_failed.clone());
    let watchdog = Watchdog::new(
        move |reason| record.lock().unwrap().push(reason.to_owned()),
        move || look.load(SeqCst).then(|| "rank 7 has failed".to_owned()),
    )
    .unwrap();
    watchdog.register(&rank.comm);
    Watched { watchdog, reported, remote_failed }
}

/// Starts an all-reduce.
fn start(rank: &TestRank, watchdog: &Watchdog, buffer: &mut [f32], timeout: Duration) -> WorkHandle {
    start_after(rank, watchdog, buffer, timeout, None, None)
}

fn start_after(
    rank: &TestRank,
    watchdog: &Watchdog,
    buffer: &mut [f32],
    timeout: Duration,
    ready: Option<Arc<Event>>,
    flight_entry: Option<ExternalOp>,
) -> WorkHandle {
    // SAFETY: callers keep it until the stream is done or aborted.
    unsafe { rank.all_reduce(buffer) }.unwrap();
    let event = Arc::new(Event::new(&rank.context).unwrap());
    rank.stream.record(&event).unwrap();
    let info = WorkInfo {
        name: "all_reduce",
        group: rank.comm.group().to_owned(),
        sequence: 7,
        bytes: size_of_val(buffer),
    };
    watchdog.watch(WatchedWork { info, ready, done: event, timeout, flight_entry })
}

fn aborted(rank: &TestRank) -> Option<String> {
    match rank.comm.async_error() {
        Err(Error::Aborted { reason }) => Some(reason),
        // A communicator that is closed has no errors left; its calls say why.
        _ => None,
    }
}

stand_in_test!(finished_operations_are_removed, [], {
    world(2, |rank| {
        let Watched { watchdog, reported, .. } = watched(&rank);
        let mut buffer = [1.0; 4];
        for _ in 0..5 {
            let handle = start(&rank, &watchdog, &mut buffer, SOON);
            handle.wait().unwrap();
            assert!(handle.is_done().unwrap());
        }
        assert_eq!(buffer, [32.0; 4]);
        eventually("the removal", || watchdog.in_flight() == 0);
        assert_eq!((watchdog.check(), watchdog.failure()), (Ok(()), None));
        rank.comm.finalize(SOON).unwrap();
        drop(watchdog);
        assert!(reported.lock().unwrap().is_empty());
    });
    assert_eq!(communicator_counts(), (2, 2, 2, 0));
});

stand_in_test!(a_deadline_names_the_operation_and_aborts, ["STAND_IN_STUCK" = "2"], {
    alone(|rank| {
        let Watched { watchdog, reported, .. } = watched(&rank);
        let mut buffer = [1.0; 4];
        start(&rank, &watchdog, &mut buffer, SOON).wait().unwrap();
        let handle = start(&rank, &watchdog, &mut buffer, SHORT);
        // On a busy machine, its deadline may have passed already.
        assert_ne!(handle.is_done(), Ok(true));
        eventually("the failure", || watchdog.failure().is_some());
        let text = watchdog.failure().unwrap().to_string();
        assert_contains(
            &text,
            &["all_reduce (number 7, 16 bytes) on group \"world\" did not finish within 0.2 s"],
        );
        let aborted = Err(Error::Aborted { reason: text.clone() });
        assert_eq!((watchdog.check(), handle.wait()), (aborted.clone(), aborted.clone()));
        rank.stream.synchronize_within(SOON).unwrap();
        // SAFETY: nothing is enqueued.
        assert_eq!(unsafe { rank.all_reduce(&mut buffer) }, aborted);
        drop(watchdog);
        assert_eq!(*reported.lock().unwrap(), [text]);
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(waiting_on_the_host_also_ends_at_the_deadline, ["STAND_IN_STUCK" = "1"], {
    alone(|rank| {
        let Watched { watchdog, .. } = watched(&rank);
        let mut buffer = [1.0; 4];
        let error = start(&rank, &watchdog, &mut buffer, SHORT).wait().unwrap_err();
        assert_contains(
            &error.to_string(),
            &["aborted because of an earlier failure", "all_reduce", "0.2 s"],
        );
        rank.stream.synchronize_within(SOON).unwrap();
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(an_asynchronous_error_aborts, ["STAND_IN_ASYNC_ERROR" = "2"], {
    alone(|rank| {
        let Watched { watchdog, reported, .. } = watched(&rank);
        let mut buffer = [1.0; 4];
        start(&rank, &watchdog, &mut buffer, SOON).wait().unwrap();
        let error = start(&rank, &watchdog, &mut buffer, SOON).wait().unwrap_err();
        let text = watchdog.failure().unwrap().to_string();
        assert_contains(
            &text,
            &["all_reduce (number 7, 16 bytes) on group \"world\"", "ncclRemoteError", "a peer has gone"],
        );
        assert_eq!(error, Error::Aborted { reason: text });
        rank.stream.synchronize_within(SOON).unwrap();
        eventually("the callback", || reported.lock().unwrap().len() == 1);
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(a_failure_of_this_rank_is_reported_once, [], {
    alone(|rank| {
        let Watched { watchdog, reported, remote_failed } = watched(&rank);
        watchdog.fail("the loss is not finite");
        watchdog.fail("something later");
        remote_failed.store(true, SeqCst);
        let reason = "the loss is not finite".to_owned();
        assert_eq!(watchdog.check(), Err(Error::Aborted { reason: reason.clone() }));
        eventually("the abort", || communicator_counts() == (1, 0, 0, 1));
        assert_eq!(aborted(&rank), None);
        drop(watchdog);
        assert_eq!(*reported.lock().unwrap(), [reason]);
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(a_failure_of_another_rank_ends_the_wait, ["STAND_IN_STUCK" = "1"], {
    alone(|rank| {
        let Watched { watchdog, reported, remote_failed } = watched(&rank);
        let mut buffer = [1.0; 4];
        let handle = start(&rank, &watchdog, &mut buffer, SOON);
        remote_failed.store(true, SeqCst);
        let error = handle.wait().unwrap_err();
        assert_eq!(error, Error::Aborted { reason: "rank 7 has failed".to_owned() });
        rank.stream.synchronize_within(SOON).unwrap();
        drop(watchdog);
        assert!(reported.lock().unwrap().is_empty());
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(communicators_registered_after_a_failure_are_aborted, [], {
    alone(|rank| {
        let watchdog = Watchdog::new(|_| panic!("a test's panic"), || None).unwrap();
        watchdog.fail("too late");
        watchdog.register(&rank.comm);
        eventually("the abort", || communicator_counts() == (1, 0, 0, 1));
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

// Computing the input may take longer than the deadline (up to four times as long).
stand_in_test!(a_deadline_starts_when_the_input_is_ready, ["STAND_IN_STUCK" = "1"], {
    const DEADLINE: Duration = Duration::from_secs(1);
    alone(|rank| {
        let Watched { watchdog, .. } = watched(&rank);
        let (flag, mut buffer) = (AtomicU32::new(0), [1.0; 4]);
        // SAFETY: it lives until the stream is done.
        unsafe { rank.stream.wait_value32(flag.as_ptr() as u64, 1) }.unwrap();
        let ready = Arc::new(Event::new(&rank.context).unwrap());
        rank.stream.record(&ready).unwrap();
        let handle = start_after(&rank, &watchdog, &mut buffer, DEADLINE, Some(ready), None);
        std::thread::sleep(DEADLINE + SHORT);
        assert_eq!((watchdog.check(), handle.is_done()), (Ok(()), Ok(false)));
        let start = Instant::now();
        flag.store(1, SeqCst);
        assert_contains(&handle.wait().unwrap_err().to_string(), &["all_reduce", "1 s"]);
        assert!(start.elapsed() >= DEADLINE, "{:?}", start.elapsed());
        rank.stream.synchronize_within(SOON).unwrap();
    });
    assert_eq!(communicator_counts(), (1, 0, 0, 1));
});

stand_in_test!(the_flight_recorder_shows_which_rank_missed_an_operation, [], {
    let timeouts = Timeouts { init: SOON, step: SOON, ..Timeouts::default() };
    let groups = brigade_comm::threads(2, timeouts);
    let finished = AtomicBool::new(false);
    let records = world(2, |rank| {
        let group = groups[rank.rank].clone();
        let (abort, look) = (group.clone(), group.clone());
        let remote_failure = move || look.failure().map(|error| error.to_string());
        let watchdog = Watchdog::new(move |reason| abort.abort(reason), remote_failure).unwrap();
        watchdog.register(&rank.comm);
        let flight = group.external_recorder("world (NCCL)", 0, &[0, 1]);
        let mut buffer = [1.0; 4];
        let mut start = |timeout| {
            let entry = flight.begin(brigade_comm::OpType::AllReduce, 16, DType::F32);
            start_after(&rank, &watchdog, &mut buffer, timeout, None, Some(entry))
        };
        start(SOON).wait().unwrap();
        eventually("the removal", || watchdog.in_flight() == 0);
        if rank.rank == 0 {
            start(SHORT).wait().unwrap_err();
            finished.store(true, SeqCst);
        }
        eventually("the failure", || finished.load(SeqCst) && group.failure().is_some());
        rank.comm.abort("over");
        rank.stream.synchronize_within(SOON).unwrap();
        group.flight_recorder().record()
    });
    let [missed, missing] = &records[..] else { panic!("{records:?}") };
    let states = |record: &FlightRecord| record.entries.iter().map(|entry| entry.state).collect::<Vec<_>>();
    assert_eq!((states(missed), states(missing)), (vec![State::Done, State::Started], vec![State::Done]));
    let waiting = missed.entries[1].waiting.as_ref().unwrap();
    assert!(waiting.overdue && waiting.absent == [1], "{waiting:?}");
    let diagnosis = flight::diagnose(&records);
    assert_eq!((diagnosis.kind, &diagnosis.ranks[..]), (FailureKind::Missed, &[1][..]), "{diagnosis}");
    assert_contains(&diagnosis.to_string(), &["rank 1", "all_reduce #1", "world (NCCL)"]);
});
