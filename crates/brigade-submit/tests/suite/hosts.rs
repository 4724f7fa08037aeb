//! A job on hosts, with a script in place of `ssh`.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, exit};
use std::sync::atomic::AtomicBool;

use brigade_submit::{Answer, Console, Job, over_ssh};

use crate::jobs::{job, ssh};

const ROLE: &str = "hosts::a_job_on_hosts";

/// Not a test by itself: the job, in a process whose `PATH` leads to the script.
#[test]
fn a_job_on_hosts() {
    if env::var("TEST_ROLE").is_ok_and(|role| role == ROLE) {
        let job = Job { nodes: 2, gpus: 0, max_restarts: 0, ..job("train --out a") };
        let mut say = |line: &str| eprintln!("{line}");
        let mut console =
            Console { say: &mut say, interrupted: &AtomicBool::new(false), ask: &mut || Answer::Cancel };
        exit(over_ssh(&ssh("one,two"), &job, &mut console).unwrap().into());
    }
}

#[test]
fn a_host_that_is_lost_for_a_while_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("ssh");
    // After three options and their values comes the host. The first one waits until its input ends, if the other is lost.
    let text = r#"#!/bin/sh
        cd "$DIR"
        echo >> "starts-$7"
        case "$7 $(wc -l < "starts-$7")" in
            *1) exit 75 ;;
            one\ 2) while read -r line; do :; done; exit 1 ;;
            two\ 2) exit 255 ;;
        esac
    "#;
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", ROLE, "--nocapture"]).env("TEST_ROLE", ROLE);
    let done = command.env("PATH", path).env("DIR", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    for line in [
        "preempted: it starts again from what it has saved",
        "two: no connection, or the connection was lost",
        "a host was lost: it is tried again in 5 s",
    ] {
        assert_eq!(said.matches(line).count(), 1, "{line}: {said}");
    }
}
