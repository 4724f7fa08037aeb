//! A job on hosts, with a script in place of `ssh`.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, exit};
use std::sync::atomic::AtomicBool;

use brigade_submit::{Answer, Console, Job, Ssh, missing_on_hosts, over_ssh};

use crate::jobs::{job, ssh};

const ROLE: &str = "hosts::a_job_on_hosts";

/// Not a test by itself: the job, in a process whose `PATH` leads to the script.
#[test]
fn a_job_on_hosts() {
    let Some(role) = env::var("TEST_ROLE").ok().filter(|role| role.starts_with(ROLE)) else { return };
    let fixed = Job { nodes: 2, gpus: 0, max_restarts: 0, ..job("train --out a") };
    let elastic = Job { least_nodes: Some(1), max_restarts: 1, ..fixed.clone() };
    let named = |address: &str| Ssh { address: Some(address.into()), ..ssh("one,two") };
    let (job, ssh) = match role.rsplit(' ').next() {
        Some("elastic") => (elastic, ssh("one,two")),
        Some("addressed") => (elastic, named("10.0.0.1")),
        _ => (fixed, ssh("one,two")),
    };
    if role.contains(" asked ") {
        let lacking = missing_on_hosts(&Ssh { folder: Some("/nowhere".into()), ..ssh }, &job);
        lacking.missing.iter().for_each(|line| eprintln!("missing: {line}"));
        lacking.notes.iter().for_each(|line| eprintln!("note: {line}"));
        exit(0);
    }
    let mut say = |line: &str| eprintln!("{line}");
    let mut console =
        Console { say: &mut say, interrupted: &AtomicBool::new(false), ask: &mut || Answer::Cancel };
    exit(over_ssh(&ssh, &job, &mut console).unwrap().into());
}

/// The code of a role's process, and what it said, with a script in place of `ssh`: after three options and their values come the host and what it runs.
fn run(role: &str, script: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ssh");
    std::fs::write(&path, format!("#!/bin/sh\ncd \"$DIR\"\n{script}")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", ROLE, "--nocapture"]).env("TEST_ROLE", format!("{ROLE} {role}"));
    let done = command.env("PATH", path).env("DIR", folder.path()).output().unwrap();
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn a_host_that_is_lost_for_a_while_is_no_failure() {
    // The first one waits until its input ends, if the other is lost.
    let (code, said) = run(
        "fixed",
        r#"
        echo >> "starts-$7"
        case "$7 $(wc -l < "starts-$7")" in
            *1) exit 75 ;;
            one\ 2) while read -r line; do :; done; exit 1 ;;
            two\ 2) exit 255 ;;
        esac
        "#,
    );
    assert_eq!(code, Some(0), "{said}");
    for line in [
        "preempted: starting again from the last checkpoint",
        "two: no connection, or the connection was lost",
        "a host was lost: it is tried again in 5 s",
    ] {
        assert_eq!(said.matches(line).count(), 1, "{line}: {said}");
    }
}

#[test]
fn an_elastic_job_goes_on_without_its_first_host() {
    let gone = r#"
        case "$7" in one) exit 255 ;; esac
        case "$8" in *"--node-rank 0 --rdzv-endpoint two:29400"*) exit 0 ;; esac
        while read -r line; do :; done
        exit 75
    "#;
    let (code, said) = run("elastic", gone);
    assert!(code == Some(0) && said.contains("node 0 is now on two, as one was lost"), "{code:?} {said}");
    let (code, said) = run("addressed", gone);
    assert!(code == Some(255) && said.contains("as --address 10.0.0.1 is its address"), "{code:?} {said}");
    let (code, said) = run("fixed", gone);
    assert!(code == Some(255) && !said.contains("node 0"), "{code:?} {said}");
}

#[test]
fn hosts_are_asked_before_a_job_begins() {
    let ask =
        |job: &str, answers: &str| run(&format!("asked {job}"), &format!("case $7 in {answers} esac")).1;
    let fine = r#"*) eval "$8" ;;"#;
    let script = "date +%s; case \"$8\" in *'command -v brigade'*) exit 127 ;; esac";
    assert!(!ask("fixed", "*) date +%s ;;").contains(": "), "{}", ask("fixed", "*) date +%s ;;"));
    // A shell understands what is asked.
    let said = ask("fixed", fine);
    for host in ["one", "two"] {
        assert!(
            said.contains(&format!("missing: {host}, where the job cannot start: exit status: 2: ")),
            "{said}"
        );
    }
    let said = ask("fixed", &format!("one) {script} ;; *) echo refused >&2; exit 255 ;;"));
    for line in [
        "missing: brigade on one, where it is not found; --program gives its path\n",
        "missing: a connection to two: refused\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    // An elastic job begins with fewer.
    let said = ask("elastic", "one) date +%s ;; *) exit 255 ;;");
    assert!(said.contains("note: a connection to two: ") && !said.contains("missing: "), "{said}");
    let said = ask("elastic", "*) exit 255 ;;");
    assert_eq!(said.matches("missing: a connection").count(), 2, "{said}");
    let said = ask("fixed", "one) date +%s ;; *) echo $(($(date +%s) - 600)) ;;");
    assert!(
        said.contains("note: the clock of one is ") && said.contains(" s ahead of that of two"),
        "{said}"
    );
}
