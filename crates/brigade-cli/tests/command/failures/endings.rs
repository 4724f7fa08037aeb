//! How a run ends when it cannot go on.

use std::fs;
use std::time::Instant;

use rustix::process::Signal;

use crate::place::{Place, Running};
use crate::processes::{SOON, all_gone, ranks, send};

/// A run that would go on for hours, after its first steps, and its two ranks.
fn underway(place: &Place) -> (Running, Vec<u32>) {
    let mut running = place.start(&mut place.train("--nproc-per-node 2 --steps 10000000 --out a"));
    let metrics = place.path("a/metrics.jsonl");
    running.until("three steps are done", |_| {
        (fs::read_to_string(&metrics).ok()?.lines().count() > 2).then_some(())
    });
    let ranks = ranks(running.pid());
    assert_eq!(ranks.len(), 2);
    (running, ranks)
}

#[test]
fn a_killed_rank_ends_the_run_and_is_named_first() {
    for victim in [0, 1] {
        let place = Place::new();
        let (running, ranks) = underway(&place);
        let begin = Instant::now();
        assert!(send(ranks[victim], Signal::KILL));
        let done = running.wait();
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        assert_eq!(done.code, Some(1), "{}", done.err);
        let first = done.err.lines().find(|line| line.starts_with("brigade: ")).unwrap();
        assert!(
            first.starts_with(&format!("brigade: rank {victim} failed: killed by SIGKILL (9) after ")),
            "{}",
            done.err
        );
        all_gone(&ranks);
        assert!(!place.path("a/model.safetensors").exists());
    }
}

#[test]
fn an_interrupt_ends_all_ranks() {
    let place = Place::new();
    let (running, ranks) = underway(&place);
    let begin = Instant::now();
    assert!(send(running.pid(), Signal::INT));
    let done = running.wait();
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(done.code, Some(130), "{}", done.err);
    let said: Vec<&str> = done.err.lines().filter(|line| line.starts_with("brigade: ")).collect();
    assert!(said.len() == 1 && said[0].starts_with("brigade: interrupted by SIG"), "{}", done.err);
    all_gone(&ranks);
}

#[test]
fn a_loss_that_is_not_finite() {
    let place = Place::new();
    let line = "--nproc-per-node 2 --set optimizer.learning_rate=1e30 --set schedule.warmup_steps=0";
    let done = place.run(&mut place.train(&format!("{line} --out stop")));
    assert_eq!(done.code, Some(1), "{}", done.err);
    let said: Vec<&str> = done.err.lines().filter(|line| line.starts_with("brigade: ")).collect();
    assert_eq!(said.len(), 1, "{}", done.err);
    for part in ["step 2: the loss is not finite", "rank 0", "block `"] {
        assert!(said[0].contains(part), "{part}: {}", said[0]);
    }
    assert_eq!(place.metrics("stop").len(), 1);

    let done = place.succeed(&mut place.train(&format!("{line} --set train.on_nonfinite=skip --out skip")));
    assert!(done.err.contains("step 2: loss or gradient norm not finite, step skipped"), "{}", done.err);
    assert_eq!(place.metrics("skip").len(), 10);
}

#[test]
fn a_run_whose_checkpoints_are_lost_says_that_it_starts_again() {
    let place = Place::new();
    let line = "--nproc-per-node 1 --out a --resume auto";
    let done = place.succeed(&mut place.train(line));
    assert!(!done.err.contains("warning: "), "{}", done.err);
    // As if it had been killed, and its checkpoints had been in a container.
    fs::remove_dir_all(place.path("a/checkpoints")).unwrap();
    fs::remove_file(place.path("a/model.safetensors")).unwrap();
    let done = place.succeed(&mut place.train(line));
    let parts = [
        " holds metrics up to step 10, but checkpoint.dir = ",
        "a/checkpoints holds no checkpoint",
        "every 100 steps",
    ];
    for part in parts.into_iter().chain(["warning: "]) {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
}
