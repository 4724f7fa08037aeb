//! Signals before there is anything to save.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::place::{Place, Running};
use crate::processes::{none_left_in, ranks, send, takes};

/// A run that prepares its text for a while, and would then train for hours.
const LONG: &str = "--nproc-per-node 2 --set data.tokenizer=bpe:2000 --steps 10000000 \
                    --set schedule.name=constant --out a";

fn endless(place: &Place) -> Running {
    let line = |number: usize| format!("fn number_{number}() -> usize {{ {} }}\n", number * number);
    let text: String = (0..60_000).map(line).collect();
    fs::write(place.path("text/long.rs"), text).unwrap();
    let mut running = place.start(&mut place.train(LONG));
    let pid = running.pid();
    running.until("the command takes signals", |_| takes(pid, Signal::TERM).then_some(()));
    running
}

#[test]
fn a_signal_at_any_moment_ends_a_run_with_a_code() {
    for (signal, code) in [(Signal::TERM, 75), (Signal::USR1, 75), (Signal::INT, 130)] {
        // Moments, not waits: while settings are read, while text is prepared, while ranks start, in the first steps.
        for moment in [0, 3, 30, 300, 1500, 3000] {
            let place = Place::new();
            let running = endless(&place);
            std::thread::sleep(Duration::from_millis(moment));
            assert!(send(running.pid(), signal));
            let done = running.wait();
            assert_eq!(done.code, Some(code), "{signal:?} after {moment} ms: {}", done.err);
            none_left_in(&place.path(""));
        }
    }
}

#[test]
fn a_rank_that_gets_a_signal_in_its_first_moment_leaves_in_order() {
    for victim in [0, 1] {
        let place = Place::new();
        let line = "--nproc-per-node 2 --steps 10000000 --set schedule.name=constant --out a";
        let mut running = place.start(&mut place.train(line));
        let launcher = running.pid();
        let rank = running.until("the rank is there", |_| ranks(launcher).get(victim).copied());
        assert!(send(rank, Signal::TERM));
        let done = running.wait();
        assert_eq!(done.code, Some(75), "rank {victim}: {}", done.err);
        assert!(done.err.contains("which is saved; --resume auto continues from there"), "{}", done.err);
        none_left_in(&place.path(""));
    }
}

#[test]
fn a_signal_while_sizes_are_tried_leaves_nothing_behind() {
    for (signal, code) in [(Signal::TERM, 75), (Signal::INT, 130)] {
        let place = Place::new();
        fs::create_dir(place.path("temporary")).unwrap();
        let entries = || fs::read_dir(place.path("temporary")).unwrap().count();
        let line = "--nproc-per-node 2 --micro-batch-size auto --out a";
        let mut running = place.start(place.train(line).env("TMPDIR", place.path("temporary")));
        running.until("a trial has begun", |_| (entries() > 0).then_some(()));
        assert!(send(running.pid(), signal));
        let done = running.wait();
        assert_eq!((done.code, entries()), (Some(code), 0), "{signal:?}: {}", done.err);
        assert!(!place.path("a").exists(), "{}", done.err);
        none_left_in(&place.path(""));
    }
}
