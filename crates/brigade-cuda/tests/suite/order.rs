//! Operations run on streams, asynchronously, in the order that events and values impose.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use brigade_comm::DType;
use brigade_comm::ReduceOp::Sum;
use brigade_cuda::{Error, Event, GroupCall, Stream};

use crate::harness::{SOON, address, alone, communicator_counts, eventually, world};

/// How long to watch for something that must not happen.
const A_WHILE: Duration = Duration::from_millis(30);

stand_in_test!(an_event_completes_after_the_operation_before_it, ["STAND_IN_POLLS" = "10"], {
    world(2, |rank| {
        for round in 0..20 {
            let (mut send, mut recv) = ([round as f32; 4], [-1.0f32; 4]);
            let event = Event::new(&rank.context).unwrap();
            assert!(event.is_done().unwrap());
            let (from, into) = (address(&mut send), address(&mut recv));
            // SAFETY: both live until the event is done.
            let enqueue = |call: &GroupCall<'_>| unsafe { call.all_reduce(from, into, 4, DType::F32, Sum) };
            rank.enqueue("all_reduce", enqueue).unwrap();
            rank.stream.record(&event).unwrap();
            eventually("the event", || event.is_done().unwrap());
            assert_eq!(recv, [2.0 * round as f32; 4]);
        }
        rank.comm.finalize(SOON).unwrap();
    });
    assert_eq!(communicator_counts(), (2, 2, 2, 0));
});

stand_in_test!(a_stream_waits_for_an_event_of_another, [], {
    world(2, |rank| {
        let second = Stream::new(&rank.context).unwrap();
        let (mut send, mut sum, mut all) = ([1i64; 2], [0i64; 2], [0i64; 4]);
        let event = Event::new(&rank.context).unwrap();
        let (a, b, c) = (address(&mut send), address(&mut sum), address(&mut all));
        // SAFETY: all live until the second stream is done.
        let reduce = |call: &GroupCall<'_>| unsafe { call.all_reduce(a, b, 2, DType::I64, Sum) };
        let gather = |call: &GroupCall<'_>| unsafe { call.all_gather(b, c, 2, DType::I64) };
        rank.enqueue("all_reduce", reduce).unwrap();
        rank.stream.record(&event).unwrap();
        second.wait_event(&event).unwrap();
        rank.comm.enqueue("all_gather", &second, SOON, gather).unwrap();
        second.synchronize_within(SOON).unwrap();
        assert_eq!(all, [2; 4]);
        rank.comm.finalize(SOON).unwrap();
    });
});

stand_in_test!(a_stream_waits_for_a_value, [], {
    alone(|rank| {
        let flag = AtomicU32::new(u32::MAX);
        let (mut send, mut recv) = ([3u8; 4], [0u8; 4]);
        let (from, into) = (address(&mut send), address(&mut recv));
        // SAFETY: all live until the stream is done. The counter wraps: 1 comes after its largest value.
        unsafe { rank.stream.wait_value32(flag.as_ptr() as u64, 1) }.unwrap();
        let enqueue = |call: &GroupCall<'_>| unsafe { call.all_reduce(from, into, 4, DType::U8, Sum) };
        rank.enqueue("all_reduce", enqueue).unwrap();
        std::thread::sleep(A_WHILE);
        assert!(!rank.stream.is_done().unwrap());
        let error = rank.stream.synchronize_within(A_WHILE).unwrap_err();
        assert!(matches!(error, Error::Timeout { waited: A_WHILE, .. }), "{error}");
        // SAFETY: only the stream writes to it, which waits.
        assert_eq!(unsafe { std::ptr::read_volatile(&raw const recv) }, [0; 4]);
        flag.store(2, SeqCst);
        rank.stream.synchronize_within(SOON).unwrap();
        assert_eq!(recv, [3; 4]);
        rank.comm.finalize(SOON).unwrap();
    });
});

stand_in_test!(a_context_waits_for_an_event, [], {
    alone(|rank| {
        let compute = Stream::new(&rank.context).unwrap();
        let (flag, before, after) = (AtomicU32::new(0), event(&rank), event(&rank));
        let communicated = event(&rank);
        // SAFETY: it lives until the stream is done.
        unsafe { rank.stream.wait_value32(flag.as_ptr() as u64, 1) }.unwrap();
        rank.stream.record(&communicated).unwrap();
        compute.record(&before).unwrap();
        rank.context.wait_event(&communicated).unwrap();
        compute.record(&after).unwrap();
        eventually("what was enqueued before", || before.is_done().unwrap());
        std::thread::sleep(A_WHILE);
        assert!(!after.is_done().unwrap());
        flag.store(1, SeqCst);
        let start = Instant::now();
        eventually("what was enqueued after", || after.is_done().unwrap());
        assert!(start.elapsed() < SOON);
        rank.comm.finalize(SOON).unwrap();
    });
});

fn event(rank: &crate::harness::TestRank) -> Event {
    Event::new(&rank.context).unwrap()
}
