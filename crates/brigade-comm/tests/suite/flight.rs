//! What ranks record, and what their records show when something went wrong.

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use brigade_comm::flight::{self, FailureKind, FlightRecord, MAX_OPERATIONS, State};
use brigade_comm::{DType, Error, Group, OpType, ReduceOp, Result, Timeouts};

use crate::worlds::{Kind, PATIENT, on_every_world, others_give_up, run};

on_every_world!(
    operations_are_recorded,
    the_time_of_collectives_is_counted_once,
    another_operation_is_diagnosed,
    a_failure_of_its_own_is_diagnosed,
    ranks_that_wait_for_each_other_are_diagnosed,
);

/// One test for threads, which ask each other directly, and one for processes on two hosts.
macro_rules! on_both_control_planes {
    ($($test:ident),* $(,)?) => {
        mod among_threads {
            $(#[test] fn $test() { super::$test(crate::worlds::Kind::Threads) })*
        }
        mod among_hosts {
            $(#[test] fn $test() { super::$test(crate::worlds::Kind::Mixed) })*
        }
    };
}

on_both_control_planes!(
    a_missed_collective_is_diagnosed,
    a_missed_send_is_diagnosed,
    what_another_library_runs_is_diagnosed,
    a_chain_of_waits_is_followed_to_its_end,
);

const HASTY: Timeouts = Timeouts { step: Duration::from_millis(1000), ..PATIENT };

/// Runs `work` and gives what each rank has recorded after it.
fn records(
    kind: Kind,
    n: usize,
    timeouts: Timeouts,
    work: impl Fn(&Group) -> Result<()> + Sync,
) -> Vec<FlightRecord> {
    let records = Mutex::new(Vec::new());
    run(kind, n, timeouts, |group| {
        let outcome = work(group);
        records.lock().unwrap().push(group.flight_recorder().record());
        outcome
    });
    let mut records = records.into_inner().unwrap();
    records.sort_by_key(|record| record.rank);
    records
}

#[track_caller]
fn assert_diagnosis(records: &[FlightRecord], kind: FailureKind, ranks: &[usize], words: &[&str]) {
    let diagnosis = flight::diagnose(records);
    let text = diagnosis.to_string();
    assert!(diagnosis.kind == kind && diagnosis.ranks == ranks, "{diagnosis:?}");
    assert!(words.iter().all(|word| text.contains(word)) && text.lines().count() == 1, "{text}");
}

/// A rank that comes first has a collective under way until the last one comes; two at once count once, and transfers nothing.
fn the_time_of_collectives_is_counted_once(kind: Kind) {
    const LATE: Duration = Duration::from_millis(80);
    run(kind, 2, PATIENT, |group| {
        let flight = group.flight_recorder();
        let pair = group.split("pair", 0, 0)?;
        let sum = |group: &Group| group.all_reduce(vec![1.0f32; 100], DType::F32, ReduceOp::Sum);
        let (began, before) = (Instant::now(), flight.collective_time());
        let (least, most) = match group.rank() {
            0 => {
                let both = (sum(group), sum(&pair));
                group.send(vec![0u8; 70], DType::U8, 1).wait()?;
                both.0.wait()?;
                both.1.wait()?;
                (LATE / 2, began.elapsed())
            }
            _ => {
                group.recv_message(0, 100).wait()?;
                std::thread::sleep(LATE);
                let both = (sum(group), sum(&pair));
                both.0.wait()?;
                both.1.wait()?;
                (Duration::ZERO, began.elapsed() - LATE)
            }
        };
        let took = flight.collective_time() - before;
        // Times of the recorder are whole microseconds.
        let most = most + Duration::from_micros(2);
        assert!(least <= took && took <= most, "rank {}: {took:?} of {most:?}", group.rank());
        Ok(())
    });
}

fn operations_are_recorded(kind: Kind) {
    let records = records(kind, 2, PATIENT, |group| {
        let pair = group.split("pair", 0, 0)?;
        pair.all_reduce(vec![1.0f32; 1000], DType::F32, ReduceOp::Sum).wait()?;
        match pair.rank() {
            0 => pair.send(vec![0u8; 70], DType::U8, 1).wait().map(drop),
            _ => pair.recv_message(0, 100).wait().map(drop),
        }
    });
    for (rank, record) in records.iter().enumerate() {
        assert_eq!((record.rank, record.world_size, record.restart, &record.failure), (rank, 2, 0, &None));
        assert!(!record.host.is_empty() && record.began_at > 0);
        let names: Vec<_> = record.groups.iter().map(|group| (&group.name[..], &group.members[..])).collect();
        assert_eq!(names, [("world", &[0, 1][..]), ("pair", &[0, 1])]);
        let [gathered, reduced, passed] = &record.entries[..] else { panic!("{record:?}") };
        assert_eq!((gathered.group, gathered.call.operation), (0, OpType::AllGather));
        assert_eq!((reduced.group, reduced.call.bytes, reduced.state), (1, 4000, State::Done));
        assert_eq!((reduced.sent, reduced.received), (4000, 4000));
        assert_eq!((passed.peer, passed.call.sequence), (Some(1 - rank), 0));
        assert_eq!(if rank == 0 { passed.sent } else { passed.received }, 70);
        for entry in &record.entries {
            let (started, finished) = (entry.started.unwrap(), entry.finished.unwrap());
            assert!(entry.called <= started && started <= finished && finished <= record.recorded);
        }
        assert_eq!((record.groups[1].collectives, record.groups[1].transfers.len()), (1, 1));
    }
    assert_diagnosis(&records, FailureKind::Nothing, &[], &["nothing failed", "2 ranks"]);
}

fn what_another_library_runs_is_diagnosed(kind: Kind) {
    // Between them, not within the world: nothing of that may be in flight when it fails.
    let all_here = std::sync::Barrier::new(3);
    let records = records(kind, 3, PATIENT, |group| {
        let outside = group.external_recorder("gpus", 0, &[0, 1, 2]);
        outside.begin(OpType::AllGather, 8, DType::Bf16).done(true);
        let reduce = (group.rank() != 1).then(|| outside.begin(OpType::AllReduce, 20, DType::F32));
        all_here.wait();
        if group.rank() == 0 {
            reduce.inspect(|reduce| reduce.overdue());
            group.abort("late");
        }
        while group.failure().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(group.failure().unwrap())
    });
    assert!(records[2].failure.as_ref().unwrap().text.contains("late"));
    let missed = "rank 1 never called all_reduce #1 (sum, f32, 20 bytes) of group \"gpus\"";
    assert_diagnosis(&records, FailureKind::Missed, &[1], &[missed, "ranks 0, 2 wait in"]);
}

fn a_missed_collective_is_diagnosed(kind: Kind) {
    let records = records(kind, 3, HASTY, |group| {
        group.use_init_timeout();
        group.barrier()?;
        group.use_step_timeout();
        if group.rank() == 2 {
            others_give_up(group);
        }
        group.all_reduce_in_place(&mut [0.0f32; 5], ReduceOp::Sum)
    });
    let missed = "rank 2 never called all_reduce #1 (sum, f32, 20 bytes) of group \"world\"";
    assert_diagnosis(
        &records,
        FailureKind::Missed,
        &[2],
        &[missed, "ranks 0, 1 wait in", "its last one was barrier #0"],
    );
    // Missing records change little: those of the other ranks still show which rank it was.
    assert_diagnosis(&records[..2], FailureKind::Gone, &[2], &["rank 2 left no record", "all_reduce #1"]);
    assert_diagnosis(&records[1..], FailureKind::Missed, &[2], &[missed, "rank 1 wait"]);
    let table = flight::table(&records, 2);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains("rank 2"), "{table}");
    assert!(lines[2].matches("all_reduce #1 \"world\" failed").count() == 2, "{table}");
}

fn a_missed_send_is_diagnosed(kind: Kind) {
    let records = records(kind, 2, HASTY, |group| {
        if group.rank() == 1 {
            return group.recv(vec![0u8; 9], DType::U8, 0).wait().map(drop);
        }
        others_give_up(group);
        Ok(())
    });
    let words = ["rank 0 never sent what rank 1 waits for in recv #0 (u8, 9 bytes) from rank 0"];
    assert_diagnosis(&records, FailureKind::Unmatched, &[0], &words);
}

/// Rank 3 is busy; rank 2 waits for it, rank 1 for rank 2, rank 0 for all of them.
fn a_chain_of_waits_is_followed_to_its_end(kind: Kind) {
    let texts = Mutex::new(Vec::new());
    let records = records(kind, 4, HASTY, |group| {
        group.use_init_timeout();
        group.barrier()?;
        group.use_step_timeout();
        // A receive that is posted ahead is nothing that the rank waits for.
        let ahead = (group.rank() == 3).then(|| group.recv_message(0, 5));
        let outcome = match group.rank() {
            0 => group.all_reduce_in_place(&mut [0u8; 3], ReduceOp::Max),
            3 => {
                others_give_up(group);
                ahead.map_or(Ok(()), |ahead| ahead.wait().map(drop))
            }
            rank => group.recv(vec![0u8; 9], DType::U8, rank + 1).wait().map(drop),
        };
        texts.lock().unwrap().push(outcome.clone().unwrap_err().to_string());
        outcome
    });
    for text in texts.into_inner().unwrap() {
        assert!(text.starts_with("rank 3 never called its part of "), "{text}");
        assert!(text.contains("it is in no operation, since barrier #0"), "{text}");
    }
    let failure = records[0].failure.as_ref().unwrap();
    assert_eq!(failure.root.iter().map(|stalled| stalled.rank).collect::<Vec<_>>(), [3]);
    let diagnosis = flight::diagnose(&records);
    assert!(diagnosis.ranks == [3], "{diagnosis}");
}

fn another_operation_is_diagnosed(kind: Kind) {
    let records = records(kind, 3, PATIENT, |group| match group.rank() {
        2 => group.barrier(),
        _ => group.all_gather_in_place(&mut [0u8; 3]),
    });
    let diagnosis = flight::diagnose(&records);
    // A rank that arrives after two others have disagreed makes no call any more.
    assert!(diagnosis.kind == FailureKind::Mismatch && diagnosis.ranks.contains(&2), "{diagnosis:?}");
    let text = diagnosis.to_string();
    assert!(text.contains("barrier #0 (u8, 0 bytes)") && text.contains("all_gather #0"), "{text}");
}

fn a_failure_of_its_own_is_diagnosed(kind: Kind) {
    let records = records(kind, 3, PATIENT, |group| {
        group.barrier()?;
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
            group.abort("the loss is not finite\nat step 3");
        }
        group.barrier()
    });
    let words = ["rank 1 failed first", "the loss is not finite", "ranks 0, 2 waited for it in barrier #1"];
    assert_diagnosis(&records, FailureKind::Failed, &[1], &words);
}

fn ranks_that_wait_for_each_other_are_diagnosed(kind: Kind) {
    let records = records(kind, 2, HASTY, |group| {
        let peer = 1 - group.rank();
        group.recv(vec![0u8; 9], DType::U8, peer).wait().map(drop)
    });
    assert!(records[0].failure.as_ref().unwrap().root.is_empty());
    let words = ["ranks 0, 1 wait for each other", "rank 0 in recv #0", "rank 1 in recv #0"];
    assert_diagnosis(&records, FailureKind::Circle, &[0, 1], &words);
}

#[test]
fn the_last_operations_and_those_in_flight_are_kept() {
    let more = MAX_OPERATIONS as u64 + 100;
    let records = records(Kind::Threads, 2, PATIENT, |group| {
        let old = (group.rank() == 0).then(|| group.recv(vec![0u8; 9], DType::U8, 1));
        for _ in 0..more {
            group.barrier()?;
        }
        let record = group.flight_recorder().record();
        assert_eq!(record.entries.len(), MAX_OPERATIONS + usize::from(group.rank() == 0));
        if let Some(old) = old {
            let (first, second) = (&record.entries[0], &record.entries[1]);
            assert_eq!((first.call.operation, first.state, first.id), (OpType::Recv, State::Started, 0));
            assert!(!first.waiting.as_ref().unwrap().awaited);
            assert_eq!(second.call.sequence, more - MAX_OPERATIONS as u64);
            group.barrier()?;
            return old.wait().map(drop);
        }
        group.barrier()?;
        group.send(vec![0u8; 9], DType::U8, 0).wait().map(drop)
    });
    assert!(records.iter().all(|record| record.entries.len() == MAX_OPERATIONS));
    assert_diagnosis(&records, FailureKind::Nothing, &[], &[]);
}

/// What is older than a record is known by its number alone.
#[test]
fn a_record_that_has_wrapped_still_tells() {
    let records = records(Kind::Threads, 2, HASTY, |group| {
        group.use_init_timeout();
        let pair = group.split("pair", 0, 0)?;
        pair.barrier()?;
        for _ in 0..MAX_OPERATIONS {
            group.barrier()?;
        }
        group.use_step_timeout();
        match group.rank() {
            0 => pair.barrier(),
            _ => {
                others_give_up(group);
                Ok(())
            }
        }
    });
    assert!(records[1].entries.iter().all(|entry| entry.group == 0));
    assert_diagnosis(
        &records,
        FailureKind::Missed,
        &[1],
        &["never called barrier #1 (u8, 0 bytes) of group \"pair\""],
    );
}

#[test]
fn a_record_survives_its_file() {
    let folder = std::env::temp_dir().join(format!("brigade-flight-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("rank-0.json");
    let group = brigade_comm::threads(1, PATIENT).remove(0);
    group.barrier().unwrap();
    let flight = group.flight_recorder();
    drop(group);
    flight.write(&path).unwrap();
    let record = flight::read(&path).unwrap();
    assert_eq!(record.entries, flight.record().entries);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);

    let text = fs::read_to_string(&path).unwrap();
    let refused = |text: &str, words: &str| {
        fs::write(&path, text).unwrap();
        let error = flight::read(&path).unwrap_err();
        assert!(matches!(error, Error::FlightRecord { .. }) && error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains("rank-0.json"), "{error}");
    };
    refused(
        &text.replacen("\"version\":1", "\"version\":9", 1),
        "format version 9, but this program reads 1",
    );
    refused(&text.replacen("\"world_size\":1", "\"world_size\":0", 1), "contradict");
    refused(&text.replacen("\"group\":0", "\"group\":7", 1), "contradict");
    refused(&text[..text.len() / 2], "not a flight record");
    refused("", "not a flight record");
    refused(&" ".repeat(flight::MAX_FILE_BYTES as usize + 1), "longer than");
    let error = flight.write(&folder.join("nowhere/rank-0.json")).unwrap_err();
    assert!(matches!(error, Error::FlightRecord { .. }), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn no_records_are_no_diagnosis() {
    assert_diagnosis(&[], FailureKind::NoRecords, &[], &["no flight records"]);
    assert_eq!(flight::table(&[], 3), "");
}
