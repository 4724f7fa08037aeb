//! What a rank does when it is interrupted or preempted.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    process::{Child, ChildStdout, Command, Stdio, exit},
    thread,
    time::Duration,
};

use brigade_launch::interrupt::{self, InterruptKind};
use rustix::process::Signal;

use crate::process::{PATIENCE, exit_code, has_role, itself, signal};

const ROLE: &str = "interrupt::interrupt_process";
const HOLDING: &str = "interrupt::holding_process";

/// Not a test by itself: a rank that polls the interrupt flag.
#[test]
fn interrupt_process() {
    if !has_role(ROLE) {
        return;
    }
    let interrupt = interrupt::install().unwrap();
    assert!(!interrupt::install().unwrap().is_set());
    println!("ready");
    while !interrupt.is_set() {
        thread::sleep(Duration::from_millis(5));
    }
    println!("told {:?}", interrupt.kind().unwrap());
    if env::var("TEST_HANGS").is_ok() {
        thread::sleep(PATIENCE * 2);
    }
    exit(7);
}

/// A rank that is ready, and the lines that it prints.
fn rank(set_up: impl FnOnce(&mut Command)) -> (Child, impl Iterator<Item = String>) {
    let mut command = itself(ROLE);
    command.env_remove("BRIGADE_LAUNCHED");
    set_up(&mut command);
    ready(command)
}

fn ready(mut command: Command) -> (Child, impl Iterator<Item = String>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = |out: ChildStdout| BufReader::new(out).lines().map(|line| line.unwrap());
    let mut lines = lines(child.stdout.take().unwrap());
    assert!(lines.any(|line| line.ends_with("ready")));
    (child, lines)
}

fn hangs(command: &mut Command) {
    command.env("TEST_HANGS", "1").env("BRIGADE_PREEMPTION_GRACE", "1000");
}

/// Not a test by itself: a process that was started with signals held back, until it is told to go on, and then becomes what `TEST_BECOMES`
/// says.
#[test]
fn holding_process() {
    if !has_role(HOLDING) {
        return;
    }
    println!("ready");
    io::stdin().read_line(&mut String::new()).unwrap();
    if env::var("TEST_BECOMES").as_deref() == Ok("rank") {
        let interrupt = interrupt::install().unwrap();
        interrupt.mark_preparing();
        if env::var("TEST_BEGINS").is_ok() {
            interrupt.mark_training();
        }
        println!("told {:?}", interrupt.kind());
    } else {
        interrupt::exit_on_signal().unwrap();
        println!("ready to leave");
    }
    thread::sleep(PATIENCE * 2);
}

fn holding(set_up: impl FnOnce(&mut Command)) -> (Child, impl Iterator<Item = String>) {
    let mut command = itself(HOLDING);
    set_up(command.stdin(Stdio::piped()));
    // In a test, this is one thread of several: what is held back is for the process that it starts.
    interrupt::block_signals();
    let held = ready(command);
    interrupt::unblock_signals();
    held
}

fn go_on(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
}

const ENDS: [(Signal, i32); 3] = [(Signal::TERM, 75), (Signal::USR1, 75), (Signal::INT, 130)];

#[test]
fn what_has_nothing_to_save_leaves_with_a_code() {
    for (kind, code) in ENDS {
        let (mut child, mut lines) = holding(|_| {});
        signal(&child, kind);
        go_on(&mut child);
        assert_eq!(exit_code(&mut child), Some(code), "{kind:?} while it was held back");
        assert!(!lines.any(|line| line.contains("to leave")), "{kind:?}");

        let (mut child, mut lines) = holding(|_| {});
        go_on(&mut child);
        assert!(lines.any(|line| line.ends_with("ready to leave")));
        signal(&child, kind);
        assert_eq!(exit_code(&mut child), Some(code), "{kind:?}");
    }
}

#[test]
fn a_rank_hears_of_what_was_held_back_and_has_nothing_to_lose_before_it_begins() {
    for (begins, code) in [(false, 75), (true, 1)] {
        let (mut child, mut lines) = holding(|command| {
            command.env("TEST_BECOMES", "rank").env("BRIGADE_PREEMPTION_GRACE", "0.2");
            if begins {
                command.env("TEST_BEGINS", "1");
            }
        });
        signal(&child, Signal::TERM);
        go_on(&mut child);
        assert!(lines.any(|line| line == "told Some(Preempt)"));
        assert_eq!(exit_code(&mut child), Some(code));
    }
}

#[test]
fn a_rank_is_told_and_then_ended() {
    for (kind, said) in [
        (Signal::INT, InterruptKind::Stop),
        (Signal::TERM, InterruptKind::Preempt),
        (Signal::USR1, InterruptKind::Preempt),
    ] {
        let (mut child, mut lines) = rank(|_| {});
        signal(&child, kind);
        assert!(lines.any(|line| line == format!("told {said:?}")));
        assert_eq!(exit_code(&mut child), Some(7));
    }
    let (mut child, _lines) = rank(hangs);
    signal(&child, Signal::INT);
    assert_eq!(exit_code(&mut child), Some(130));
}

#[test]
fn a_preempted_rank_has_its_own_grace() {
    let (mut child, mut lines) = rank(|command| {
        command.env("TEST_HANGS", "1").env("BRIGADE_PREEMPTION_GRACE", "5");
    });
    signal(&child, Signal::TERM);
    assert!(lines.any(|line| line == "told Preempt"));
    thread::sleep(Duration::from_millis(1200));
    assert!(child.try_wait().unwrap().is_none(), "it has longer than one that is interrupted");
    assert_eq!(exit_code(&mut child), Some(1));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("preempted, but not saved within the grace period of 5 s"), "{said}");
}

#[test]
fn a_second_signal_to_stop_ends_a_rank_at_once() {
    for first in [Signal::INT, Signal::TERM, Signal::USR1] {
        let (mut child, mut lines) = rank(hangs);
        signal(&child, first);
        assert!(lines.any(|line| line.starts_with("told ")));
        signal(&child, Signal::INT);
        assert_eq!(exit_code(&mut child), Some(130));
    }
}

/// A cluster may signal a rank and its launcher, Brigade's or another one, which passes the signal on.
#[test]
fn a_rank_takes_a_repeated_preemption_as_one() {
    for launched in ["1", ""] {
        let (mut child, mut lines) = rank(|command| {
            hangs(command);
            command.env("BRIGADE_LAUNCHED", launched);
        });
        signal(&child, Signal::TERM);
        assert!(lines.any(|line| line == "told Preempt"));
        signal(&child, Signal::TERM);
        signal(&child, Signal::USR1);
        thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none());
        signal(&child, Signal::INT);
        assert_eq!(exit_code(&mut child), Some(130));
    }
}

#[test]
fn a_grace_that_is_no_number_is_named() {
    let output = itself(ROLE).env("BRIGADE_PREEMPTION_GRACE", "soon").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("BRIGADE_PREEMPTION_GRACE") && text.contains("soon"),
        "{text}"
    );
}
