//! Kills at drawn instants: a few here, hundreds by `cargo xtask chaos`.

use std::fs;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustix::process::Signal;

use crate::place::{Place, Running};
use crate::processes::{none_left_in, ranks, send};
use crate::runs::same_end;

const KILLS: usize = 20;

/// In turns, so that each start goes on from another mesh's checkpoint.
const MESHES: [&str; 5] = [
    "--nproc-per-node 1 --pp 1 --dp 1",
    "--nproc-per-node 2 --dp 2 --zero 0",
    "--nproc-per-node 2 --dp 2 --zero 3",
    "--nproc-per-node 2 --pp 2 --dp 1",
    "--nproc-per-node 4 --pp 2 --dp 2 --zero 1",
];

/// A save after every second step: there is hardly an instant without one.
const RUN: &str = "--steps 60 --set train.validate_every=0 --checkpoint-every 2 --keep 2";

#[derive(Clone, Copy, Debug)]
enum Victim {
    Rank,
    Launcher,
    Both,
}

const VICTIMS: [Victim; 3] = [Victim::Rank, Victim::Launcher, Victim::Both];

/// What is waited for before a process is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Nothing: the run is just starting.
    Start,
    /// A save has begun.
    Writing,
    /// A checkpoint has become visible, and an older one may be going.
    Published,
    /// The last step is done.
    End,
}

const MOMENTS: [Moment; 6] =
    [Moment::Writing, Moment::Published, Moment::Start, Moment::Writing, Moment::End, Moment::Published];

/// Names in the run's folder of checkpoints.
fn names(place: &Place, run: &str) -> Vec<String> {
    let entries = fs::read_dir(place.path(&format!("{run}/checkpoints")));
    entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn visible(names: &[String]) -> Vec<&String> {
    names.iter().filter(|name| name.starts_with("step-")).collect()
}

impl Moment {
    fn has_come(self, place: &Place, run: &str, before: &[String]) -> bool {
        let now = || names(place, run);
        match self {
            Self::Start => true,
            Self::Writing => now().iter().any(|name| name.contains(".partial-") && !before.contains(name)),
            Self::Published => now().iter().any(|name| name.starts_with("step-") && !before.contains(name)),
            Self::End => {
                let metrics = fs::read_to_string(place.path(&format!("{run}/metrics.jsonl")));
                metrics.is_ok_and(|text| text.lines().count() >= 60)
            }
        }
    }
}

/// Waits for a moment and some more, and kills. False if the run was over before.
fn kill(
    place: &Place,
    run: &str,
    running: &mut Running,
    victim: Victim,
    moment: Moment,
    draw: &mut ChaCha8Rng,
) -> bool {
    let before = names(place, run);
    let begin = Instant::now();
    // Asked more often than `Running::until` would: a save takes milliseconds.
    while !moment.has_come(place, run, &before) {
        if running.is_over() {
            return false;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{moment:?} never comes");
        std::thread::sleep(Duration::from_micros(200));
    }
    let most = if matches!(moment, Moment::Start) { 200_000 } else { 3_000 };
    std::thread::sleep(Duration::from_micros(draw.next_u64() % most));
    let ranks = ranks(running.pid());
    let mut rank = || ranks.get(draw.next_u32() as usize % ranks.len().max(1)).copied();
    match victim {
        Victim::Rank => rank().is_some_and(|rank| send(rank, Signal::KILL)),
        Victim::Launcher => send(running.pid(), Signal::KILL),
        Victim::Both => {
            let rank = rank();
            send(running.pid(), Signal::KILL) | rank.is_some_and(|rank| send(rank, Signal::KILL))
        }
    }
}

#[test]
fn a_run_that_is_killed_again_and_again_ends_with_the_same_weights() {
    let place = Place::new();
    place.succeed(&mut place.train(&format!("{RUN} --nproc-per-node 1 --out whole")));
    let mut draw = ChaCha8Rng::seed_from_u64(4);
    let (mut kills, mut starts) = (0, 0);
    for run in 0.. {
        let run = format!("run-{run}");
        loop {
            // A run without a checkpoint is begun again with its configuration only.
            starts += usize::from(!visible(&names(&place, &run)).is_empty());
            let mesh = MESHES[starts % MESHES.len()];
            let line = format!("{RUN} {mesh} --resume auto --out {run}");
            let mut running = place.start(&mut place.train(&line));
            let (victim, moment) = (VICTIMS[kills % VICTIMS.len()], MOMENTS[kills % MOMENTS.len()]);
            let before = names(&place, &run);
            let killed = kills < KILLS && kill(&place, &run, &mut running, victim, moment, &mut draw);
            let done = running.wait();
            none_left_in(&place.path(""));
            let what = format!("kill {kills}, {victim:?} at {moment:?} of `{line}`");
            if done.code == Some(0) {
                break;
            }
            assert!(killed, "{what}: {}", done.err);
            kills += 1;
            let after = names(&place, &run);
            assert!(
                visible(&after).iter().max() >= visible(&before).iter().max(),
                "{what}: {before:?}, {after:?}"
            );
            if !visible(&after).is_empty() {
                let verified = place.run(&mut place.brigade(&format!("checkpoint verify {run}")));
                assert_eq!(verified.code, Some(0), "{what}: {}{}", verified.out, verified.err);
            }
        }
        starts += 1;
        same_end(&place, &run, "whole");
        let left = names(&place, &run);
        // A kill between the last save and the removals that follow it leaves one more.
        assert!((2..=3).contains(&left.len()) && visible(&left).len() == left.len(), "{left:?}");
        if kills >= KILLS {
            return;
        }
    }
}
