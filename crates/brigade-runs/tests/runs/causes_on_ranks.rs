//! Causes of a slow run that lie with single ranks: slow ones, jitter, hooks.

use brigade_runs::scaling::{Cause, diagnose};

use crate::causes::{check, first};
use crate::simulated::{Simulated, chance};

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
fn several_slow_ranks_are_named_together() {
    let of = |dp, slow: fn(usize) -> f64| Simulated {
        dp,
        compute: Box::new(move |_, rank| slow(rank)),
        ..Simulated::default()
    };
    let node = of(8, |rank| if rank >= 4 { 1.4 } else { 1.0 });
    check(&node, Cause::SlowRank, None, 39.0, &["ranks 4 to 7 take 1.", "(0% with rank "]);
    let most = of(8, |rank| if rank >= 3 { 1.4 } else { 1.0 });
    check(&most, Cause::SlowRank, None, 39.0, &["ranks 3 to 7 take 1."]);
    // What the next slowest costs cannot be had from one alone.
    let two = of(4, |rank| [1.0, 1.0, 1.3, 1.6][rank]);
    check(&two, Cause::SlowRank, None, 58.0, &["ranks 2 and 3 take 1.30 to 1.60", "(23% with rank 3 alone)"]);
    let stage = Simulated {
        pp: 2,
        dp: 4,
        micro_batches: 64,
        compute: Box::new(|_, rank| [1.0, 1.0, 1.0, 1.4, 1.0, 1.0, 1.0, 1.4][rank]),
        ..Simulated::default()
    };
    check(&stage, Cause::SlowRank, None, 38.0, &["ranks 3 and 7 take 1."]);
}

#[test]
fn what_takes_long_in_some_steps_alone() {
    let sometimes = |step: u64| if step.is_multiple_of(10) { 10.0 } else { 0.002 };
    let data = Simulated { data_wait: Box::new(move |step, _| sometimes(step)), ..Simulated::default() };
    check(
        &data,
        Cause::InputStarvation,
        None,
        109.0,
        &["ranks wait for data for 10.00 s in 11% of the steps (52%"],
    );
    let rest = move |step: u64, rank: usize| if rank == 1 { sometimes(step) } else { 0.004 };
    let collector = Simulated { rest: Box::new(rest), ..Simulated::default() };
    let words =
        ["rank 1 neither computes nor waits for 10.00 s in 11% of the steps, and the others wait for it"];
    check(&collector, Cause::HostStalls, Some(1), 109.0, &words);
    let mut link = Simulated::default().run();
    for record in link.records.iter_mut().filter(|record| record.step.is_multiple_of(10)) {
        record.step_seconds += 10.0;
        record.comm_wait_seconds += 10.0;
        *record.comm_wait_seconds_by.get_mut("all_reduce").unwrap() += 10.0;
        let seconds = record.rank_seconds.as_mut().unwrap();
        let all = seconds.step.iter_mut().chain(&mut seconds.comm_wait);
        all.for_each(|seconds| *seconds += 10.0);
    }
    let found = diagnose(&link).remove(0);
    assert_eq!(found.cause, Cause::ExposedCommunication, "{found:?}");
    assert!(
        found.sentence.contains(" in 11% of the steps") && (found.gain_percent - 109.0).abs() < 10.0,
        "{found:?}"
    );
    // Once or twice is no habit.
    let twice = |step: u64, _| if step == 20 || step == 40 { 10.0 } else { 0.002 };
    assert_eq!(diagnose(&Simulated { data_wait: Box::new(twice), ..Simulated::default() }.run()), []);
}

#[test]
fn nobody_waits_for_the_only_rank() {
    let simulated = Simulated {
        dp: 1,
        communication: (0.0, "all_reduce"),
        bytes: 0,
        rest: Box::new(|_, _| 0.25),
        ..Simulated::default()
    };
    check(&simulated, Cause::HostStalls, Some(0), 24.0, &["rank 0 neither computes nor waits for 250"]);
    assert!(!first(&simulated).sentence.contains("others"));
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

#[test]
fn ranks_that_are_late_for_a_moment_or_once_are_well() {
    let turn = |step: u64, rank: usize| step % 4 == rank as u64;
    let moments = move |step, rank| if turn(step, rank) { 1.0 + 0.3 * chance(step, 9).abs() } else { 1.0 };
    let twice = |step, rank| if (step == 40 && rank == 1) || (step == 50 && rank == 3) { 6.0 } else { 1.0 };
    assert_eq!(diagnose(&Simulated { compute: Box::new(moments), ..Simulated::default() }.run()), []);
    assert_eq!(diagnose(&Simulated { compute: Box::new(twice), ..Simulated::default() }.run()), []);
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
        found[0].sentence.contains("hooks block rank 0 for 240")
            && (found[0].gain_percent - 24.0).abs() < 3.0
    );
}

#[test]
fn a_collector_on_rank_0() {
    let simulated =
        Simulated { rest: Box::new(|_, rank| if rank == 0 { 0.254 } else { 0.004 }), ..Simulated::default() };
    check(&simulated, Cause::HostStalls, Some(0), 24.0, &["rank 0 neither computes nor waits for 250"]);
}
