//! Processes that tests start, wait for and signal.

use std::{
    env,
    io::Read,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything here may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// This test binary, running only the test that is named as the role.
pub fn itself(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", role, "--nocapture"]).env("TEST_ROLE", role);
    command
}

pub fn has_role(role: &str) -> bool {
    env::var("TEST_ROLE").is_ok_and(|given| given == role)
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

/// The exit code; fails the test if the process takes too long.
pub fn exit_code(child: &mut Child) -> Option<i32> {
    let mut status = None;
    wait_until("the process ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

/// The exit code and everything that a process wrote to standard error; fails the test if it takes too long.
pub fn end(mut child: Child) -> (Option<i32>, String) {
    let mut stderr = child.stderr.take().unwrap();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    let code = exit_code(&mut child);
    (code, reader.join().unwrap())
}

/// Runs all cases at the same time; they mostly wait.
pub fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, case: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for value in cases {
            let case = &case;
            scope.spawn(move || case(value));
        }
    });
}
