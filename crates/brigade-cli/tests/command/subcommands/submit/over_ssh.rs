//! Jobs over SSH.

use rustix::process::Signal;

use super::{brigade, hosts, program};
use crate::place::Place;
use crate::processes::send;

/// A job on hosts ends with the command that runs it.
#[test]
fn ctrl_c_ends_a_job_on_hosts_that_nobody_is_asked_about() {
    let place = Place::new();
    hosts(&place, "touch begun; while read -r line; do :; done; touch ended; exit 75");
    let line = "submit --to ssh --hosts one --nodes 1 --gpus 0 -- train --out a --config tiny.toml --nproc-per-node 1";
    let mut running = place.start(&mut brigade(&place, line));
    running.until("the host runs it", |_| place.path("begun").exists().then_some(()));
    assert!(send(running.pid(), Signal::INT));
    let done = running.wait();
    assert_eq!(done.code, Some(75), "{}", done.err);
    assert!(done.err.contains("the ranks save and end") && place.path("ended").exists(), "{}", done.err);
}

/// Shells stand for the hosts and for what connects them, all ranks are real. One test, as node 0's port is always the same.
#[test]
fn hosts_by_ssh_train_the_weights_of_one_process() {
    let place = Place::new();
    place.succeed(&mut place.train("--out one --nproc-per-node 1"));
    let train = |out: &str, more: &str, nodes: &str, unless: &str, ranks: usize| {
        hosts(&place, &format!("case $7 in localhost) {unless} ;; esac; exec sh -c \"$8\""));
        let line = format!(
            "submit --to ssh --hosts 127.0.0.1,localhost --nodes {nodes} --gpus 0 --program {} -- train --config tiny.toml --data text --out {out} --nproc-per-node 1 {more}",
            env!("CARGO_BIN_EXE_brigade")
        );
        let done = place.succeed(&mut brigade(&place, &line));
        let weights = place.read(&format!("{out}/model.safetensors"));
        assert!(weights == place.read("one/model.safetensors"), "{out}");
        let history = place.text(&format!("{out}/history.jsonl"));
        assert!(history.contains(&format!("\"ranks\":{ranks}")), "{out}: {history}");
        done.err
    };
    train("two", "", "2", ":", 2);
    for (out, unless, ranks, said) in [
        // The second host is never there.
        ("alone", "exit 255", 1, "no connection, or the connection was lost; it is tried again in 5 s"),
        (
            "bare",
            "exit 127",
            1,
            "exit code 127 (command not found; --program gives its path); it is tried again in 60 s",
        ),
        // It comes later.
        ("late", "[ -e tried ] || { touch tried; exit 255; }", 2, "it is tried again in 5 s"),
    ] {
        let last_call = if ranks == 2 { "--last-call 100" } else { "--last-call 1" };
        let err = train(out, last_call, "1:2", unless, ranks);
        assert!(err.contains(said), "{out}: {err}");
    }
}

#[test]
fn a_host_without_the_program_ends_the_others_at_once() {
    let place = Place::new();
    // The first host waits until its input ends.
    hosts(&place, "case $7 in one) while read -r line; do :; done; exit 75 ;; *) exit 127 ;; esac");
    let line = "submit --to ssh --hosts one,two --nodes 2 --gpus 0 --restarts 0 -- train --out a --config tiny.toml --nproc-per-node 1";
    let done = place.run(&mut brigade(&place, line));
    assert_eq!(done.code, Some(127), "{}", done.err);
    assert!(
        done.err.contains("two: exit code 127 (command not found; --program gives its path)"),
        "{}",
        done.err
    );
}

/// A launcher that nobody hears any more may have the port for a while.
#[test]
fn only_a_job_that_has_never_run_ends_with_wrong_usage() {
    let place = Place::new();
    hosts(&place, "echo >> starts; case $(wc -l < starts) in 1) exit 75 ;; 2) exit 2 ;; esac");
    let line = "submit --to ssh --hosts one --nodes 1 --gpus 0 -- train --out a --config tiny.toml --nproc-per-node 1";
    let done = place.succeed(&mut brigade(&place, line));
    assert!(done.err.contains("failed with code 2: restart 1 of 3"), "{}", done.err);
    assert_eq!(place.text("starts").lines().count(), 3);
    hosts(&place, "exit 2");
    assert_eq!(place.run(&mut brigade(&place, line)).code, Some(2));
}

#[test]
fn hosts_that_are_not_ready_are_named_before_a_job_begins() {
    let place = Place::new();
    program(&place, "ssh", "case $7 in one) date +%s; exit 127 ;; *) echo refused >&2; exit 255 ;; esac");
    let job =
        "--to ssh --hosts one,two --nodes 2 --gpus 0 -- train --out a --config tiny.toml --nproc-per-node 1";
    let done = place.run(&mut brigade(&place, &format!("submit {job}")));
    let said = "nothing was submitted, as the job needs: brigade on one, where it is not found; --program gives its path; a connection to two: refused";
    assert!(done.code == Some(1) && done.err.contains(said), "{:?} {}", done.code, done.err);
    let done = place.run(&mut brigade(&place, &format!("submit --dry-run {job}")));
    let said = "missing: a connection to two: refused\n";
    assert!(done.code == Some(1) && done.out.contains(said), "{:?} {}", done.code, done.out);
    // The clock of one host.
    program(&place, "ssh", "case $7 in one) date +%s ;; *) echo 1000 ;; esac");
    let done = place.run(&mut brigade(&place, &format!("submit --dry-run {job}")));
    assert!(
        done.out.contains("\nthe clock of one is ") && done.out.contains(" s ahead of that of two"),
        "{}",
        done.out
    );
}
