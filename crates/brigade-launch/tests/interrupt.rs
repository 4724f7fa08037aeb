//! What a rank does when it is interrupted: this test binary starts itself as a rank.
#![allow(clippy::unwrap_used)]

mod process;

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Stdio, exit},
    thread,
    time::Duration,
};

use brigade_launch::interrupt;
use process::{PATIENCE, exit_code, has_role, itself, signal};
use rustix::process::Signal;

/// Not a test by itself: a rank that polls the interrupt flag.
#[test]
fn interrupt_process() {
    if !has_role("interrupt_process") {
        return;
    }
    let interrupt = interrupt::install().unwrap();
    assert!(!interrupt::install().unwrap().is_set());
    println!("ready");
    while !interrupt.is_set() {
        thread::sleep(Duration::from_millis(5));
    }
    println!("told");
    if env::var("TEST_HANGS").is_ok() {
        thread::sleep(PATIENCE * 2);
    }
    exit(7);
}

#[test]
fn a_rank_is_told_and_then_ended() {
    for hangs in [false, true] {
        let mut command = itself("interrupt_process");
        if hangs {
            command.env("TEST_HANGS", "1");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        assert!(lines.any(|line| line.ends_with("ready")));
        signal(&child, Signal::TERM);
        assert!(lines.any(|line| line.ends_with("told")));
        assert_eq!(exit_code(&mut child), Some(if hangs { 130 } else { 7 }));
    }
}

#[test]
fn a_second_signal_ends_a_rank_at_once() {
    let mut child =
        itself("interrupt_process").env("TEST_HANGS", "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.ends_with("ready")));
    signal(&child, Signal::INT);
    assert!(lines.any(|line| line.ends_with("told")));
    signal(&child, Signal::INT);
    assert_eq!(exit_code(&mut child), Some(130));
}
