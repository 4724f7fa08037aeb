//! Every cause of a slow run is found and named first, with a gain near the true one, and a healthy run gets no diagnosis.

use brigade_report::{HistoryRecord, RunEvent};
use brigade_runs::scaling::{Cause, Finding, diagnose};

use crate::simulated::{Simulated, chance};

/// What is found first.
#[track_caller]
fn first(simulated: &Simulated) -> Finding {
    let findings = diagnose(&simulated.run());
    findings.first().cloned().unwrap_or_else(|| panic!("nothing was found"))
}

/// Checks what is found first, where, by how much more would be trained, and words of the sentence.
#[track_caller]
fn check(simulated: &Simulated, cause: Cause, place: Option<usize>, gain: f64, words: &[&str]) {
    let found = first(simulated);
    assert_eq!((found.cause, found.place), (cause, place), "{found:?}");
    assert!((found.gain_percent - gain).abs() < 0.15 * gain, "{gain}% expected: {found:?}");
    for word in words {
        assert!(found.sentence.contains(word), "{word}: {}", found.sentence);
    }
}

#[test]
fn a_healthy_run_gets_no_diagnosis() {
    let pipeline = Simulated { pp: 2, dp: 2, micro_batches: 64, ..Simulated::default() };
    let one = Simulated { dp: 1, communication: (0.0, "all_reduce"), bytes: 0, ..Simulated::default() };
    for simulated in [Simulated::default(), pipeline, one] {
        assert_eq!(diagnose(&simulated.run()), []);
    }
    let mut run = Simulated { communication: (1.0, "all_reduce"), ..Simulated::default() }.run();
    run.records.truncate(4);
    assert_eq!(diagnose(&run), [], "four steps say nothing");
}

#[test]
fn a_slow_link() {
    let simulated = Simulated { communication: (0.5, "all_reduce"), ..Simulated::default() };
    check(
        &simulated,
        Cause::ExposedCommunication,
        None,
        49.0,
        &["mostly all_reduce", "train.global_batch_size"],
    );
    let gathers = Simulated { communication: (0.5, "all_gather"), ..Simulated::default() };
    check(&gathers, Cause::ExposedCommunication, None, 49.0, &["zero.prefetch = 2"]);
    let last = Simulated { communication: (0.5, "all_gather_scalars"), ..Simulated::default() };
    check(&last, Cause::ExposedCommunication, None, 49.0, &["the last rank", "brigade inspect timeline"]);
    assert!(!first(&last).sentence.contains("bf16"), "fewer bytes would not help");
}

#[test]
fn a_slow_rank_from_the_beginning_or_later() {
    let always =
        Simulated { compute: Box::new(|_, rank| if rank == 2 { 1.5 } else { 1.0 }), ..Simulated::default() };
    check(&always, Cause::SlowRank, Some(2), 49.0, &["rank 2 takes 1.5"]);
    assert!(!first(&always).sentence.contains("since"));
    let later = Simulated {
        compute: Box::new(|step, rank| if rank == 2 && step >= 21 { 1.5 } else { 1.0 }),
        ..Simulated::default()
    };
    check(&later, Cause::SlowRank, Some(2), 49.0, &["since step 21"]);
}

#[test]
fn workers_are_not_compared_with_servers() {
    for servers in [1, 3] {
        let simulated = Simulated {
            servers,
            compute: Box::new(move |_, rank| if rank < 4 - servers { 1.0 } else { 0.04 }),
            ..Simulated::default()
        };
        assert_eq!(diagnose(&simulated.run()), []);
    }
    let slow = Simulated {
        servers: 1,
        compute: Box::new(|_, rank| [1.0, 1.5, 1.0, 0.04][rank]),
        ..Simulated::default()
    };
    check(&slow, Cause::SlowRank, Some(1), 49.0, &["rank 1 takes 1.5"]);
}

#[test]
fn ranks_that_take_turns() {
    let late = |step: u64, rank: usize| {
        if chance(step, 99).abs() * 4.0 >= rank as f64 && chance(step, 99).abs() * 4.0 < rank as f64 + 1.0 {
            1.3
        } else {
            1.0
        }
    };
    check(
        &Simulated { compute: Box::new(late), ..Simulated::default() },
        Cause::Jitter,
        None,
        29.0,
        &["a different rank is last"],
    );
}

/// By chance one rank is late in more than half of the steps, and the other in the rest.
#[test]
fn two_ranks_that_take_uneven_turns() {
    let late = |step: u64, rank: usize| if (chance(step, 99) < 0.2) == (rank == 0) { 1.3 } else { 1.0 };
    let simulated = Simulated { dp: 2, compute: Box::new(late), ..Simulated::default() };
    assert_eq!(first(&simulated).cause, Cause::Jitter, "{:?}", first(&simulated));
}

#[test]
fn a_hook_on_rank_0() {
    let mut run = Simulated { between: Box::new(|_| 0.25), ..Simulated::default() }.run();
    run.records.iter_mut().for_each(|record| record.hook_seconds = Some(0.24));
    let found = diagnose(&run);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].cause, found[0].place), (Cause::HostStalls, Some(0)), "{found:?}");
    assert!(
        found[0].sentence.contains("hooks hold rank 0 for 240") && (found[0].gain_percent - 24.0).abs() < 3.0
    );
}

#[test]
fn a_collector_on_rank_0() {
    let simulated =
        Simulated { rest: Box::new(|_, rank| if rank == 0 { 0.254 } else { 0.004 }), ..Simulated::default() };
    check(&simulated, Cause::HostStalls, Some(0), 24.0, &["rank 0 neither computes nor waits for 250"]);
}

#[test]
fn a_slow_disk_under_the_data() {
    let one = Simulated {
        data_wait: Box::new(|_, rank| if rank == 1 { 0.4 } else { 0.0 }),
        ..Simulated::default()
    };
    check(&one, Cause::InputStarvation, Some(1), 39.0, &["rank 1 waits for data for 400"]);
    let all = Simulated { data_wait: Box::new(|_, _| 0.4), ..Simulated::default() };
    // A thread that reads all the time takes a step for a step, of which 1.02 s are left without the wait.
    let words = ["ranks wait for data", "too slow for 1 thread, ", "`train.readers = 2`"];
    check(&all, Cause::InputStarvation, None, 39.0, &words);
    let none = Simulated { data_wait: Box::new(|_, _| 0.4), train: "readers = 0\n", ..Simulated::default() };
    check(&none, Cause::InputStarvation, None, 39.0, &["nothing is read ahead; `train.readers = 1`"]);
}

#[test]
fn a_stage_with_twice_the_blocks() {
    let simulated = Simulated {
        pp: 2,
        dp: 2,
        micro_batches: 64,
        compute: Box::new(|_, rank| if rank >= 2 { 1.4 } else { 0.7 }),
        ..Simulated::default()
    };
    check(
        &simulated,
        Cause::StageImbalance,
        Some(1),
        31.0,
        &["stage 1 computes 2.00 times", "pipeline.balance"],
    );
}

#[test]
fn too_few_micro_batches_for_the_stages() {
    let simulated = Simulated { pp: 4, dp: 1, micro_batches: 4, ..Simulated::default() };
    // 3/4 of the work on top, of which twice as many micro-batches save 0.75 * (1 - (3/11) / (3/7)).
    check(&simulated, Cause::Bubble, None, 20.0, &["4 stages", "with 4 micro-batches"]);
}

#[test]
fn too_small_a_batch() {
    let simulated =
        Simulated { communication: (0.4, "all_reduce"), bytes: 1_000_000, ..Simulated::default() };
    check(&simulated, Cause::SmallBatch, None, 39.0, &["the batch is too small for this many ranks"]);
}

#[test]
fn too_small_a_batch_for_the_delay_of_the_network() {
    let of = |delay| Simulated {
        communication: (0.4, "all_reduce"),
        bytes: 15_000_000,
        network_delay: Some(delay),
        ..Simulated::default()
    };
    // 20 delays in ten sums.
    check(&of(0.012), Cause::SmallBatch, None, 39.0, &["the batch is too small for this many ranks"]);
    check(&of(0.002), Cause::ExposedCommunication, None, 39.0, &["send the same bytes for more targets"]);
}

#[test]
fn a_reduction_after_each_micro_batch() {
    let settings = "[zero]\nstage = 2\nreduce_every = \"micro_batch\"\n";
    let simulated = Simulated { communication: (0.8, "reduce_scatter"), settings, ..Simulated::default() };
    // 7 of 8 reductions.
    check(
        &simulated,
        Cause::RepeatedReduction,
        None,
        62.0,
        &["zero.reduce_every = \"step\"", "8 times less"],
    );
}

#[test]
fn checkpoints_too_often() {
    let simulated = Simulated { checkpoints: Some((1.0, 4)), ..Simulated::default() };
    check(&simulated, Cause::Checkpoints, None, 24.5, &["one every 4 steps", "checkpoint.every = 79"]);
    let strategies = [
        ("[strategy]\nname = \"sync\"\ninner_steps = 50\n", "sync_every = 2\n", 80),
        ("[strategy]\nname = \"diloco\"\ninner_steps = 4\n", "", 80),
        ("[strategy]\nname = \"async-server\"\nstaleness = 4\ninner_steps = 25\n", "", 100),
        ("[strategy]\nname = \"async-server\"\nstaleness = 0\ninner_steps = 25\n", "", 79),
    ];
    for (settings, train, every) in strategies {
        let simulated = Simulated { checkpoints: Some((1.0, 4)), settings, train, ..Simulated::default() };
        let found = first(&simulated).sentence;
        assert!(found.contains(&format!("`checkpoint.every = {every}` would leave 1%")), "{found}");
    }
}

#[test]
fn validation_between_steps() {
    let mut run = Simulated {
        between: Box::new(|step| if step % 5 == 0 { 2.0 } else { 0.01 }),
        ..Simulated::default()
    }
    .run();
    for record in &mut run.records {
        record.validation_loss = record.step.is_multiple_of(5).then_some(1.0);
    }
    let found = diagnose(&run).remove(0);
    assert_eq!(found.cause, Cause::OutsideSteps, "{found:?}");
    assert!(
        found.sentence.contains("train.validate_every") && (found.gain_percent - 38.0).abs() < 5.0,
        "{found:?}"
    );
}

#[test]
fn what_is_missing_between_steps_is_no_loss() {
    // A night before the run is resumed, and steps whose lines cannot be read.
    let night = |step| if step == 20 { 30_000.0 } else { 0.01 };
    let mut run = Simulated { between: Box::new(night), ..Simulated::default() }.run();
    let [before, after] = [19, 20].map(|at| run.records[at].time.unwrap());
    let restarted = |restart, time| {
        let mut record = run.history[0].clone();
        if let RunEvent::Started { restart: own, .. } = &mut record.event {
            *own = restart;
        }
        HistoryRecord { time, ..record }
    };
    let [by_itself, by_hand] = [1, 0].map(|restart| restarted(restart, (before + after) / 2.0));
    run.history.push(by_itself);
    assert_eq!(diagnose(&run).remove(0).cause, Cause::OutsideSteps);
    run.history.push(by_hand);
    assert_eq!(diagnose(&run), []);
    for at in [30, 25, 10] {
        run.records.remove(at);
    }
    assert_eq!(diagnose(&run), []);
}

#[test]
fn the_worst_of_two_comes_first() {
    let simulated = Simulated {
        communication: (0.2, "all_reduce"),
        compute: Box::new(|_, rank| if rank == 3 { 1.6 } else { 1.0 }),
        ..Simulated::default()
    };
    let found: Vec<Cause> = diagnose(&simulated.run()).into_iter().map(|finding| finding.cause).collect();
    assert_eq!(found, [Cause::SlowRank, Cause::ExposedCommunication]);
}
