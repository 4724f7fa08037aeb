//! What a run survives, and how it ends where it cannot: signals, dead and stopped ranks, full disks, numbers that are
//! not finite.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use brigade::checkpoints::{
    PARAMETERS, RankShard, StagingDir, WriteItem, open_storage, publish, write_shard,
};
use rustix::process::Signal;

use crate::place::{Done, Place, Running};
use crate::processes::{SOON, all_gone, none_left_in, ranks, send, working_in};
use crate::runs::{checkpoint, dead_after, files, newest, same_end, trained};

/// A run that would go on for hours, at a learning rate that does not hang on its number of steps; after its first steps.
fn endless(place: &Place, line: &str) -> (Running, Vec<u32>) {
    let constant = "--set schedule.name=constant --steps 10000000";
    let mut running = place.start(&mut place.train(&format!("{constant} {line} --out a")));
    running.until("five steps are done", |_| (steps(place, "a") >= 5).then_some(()));
    let ranks = ranks(running.pid());
    (running, ranks)
}

/// Steps in `metrics.jsonl` so far.
fn steps(place: &Place, run: &str) -> usize {
    fs::read_to_string(place.path(&format!("{run}/metrics.jsonl"))).map_or(0, |text| text.lines().count())
}

/// The lines that a command says about how it ended.
fn said(done: &Done) -> Vec<&str> {
    done.err.lines().filter(|line| line.starts_with("brigade: ")).collect()
}

#[test]
fn a_preempted_run_saves_and_goes_on_to_the_same_weights() {
    for (signal, to_launcher) in
        [(Signal::TERM, true), (Signal::USR1, true), (Signal::TERM, false), (Signal::USR1, false)]
    {
        let place = Place::new();
        // No checkpoint but the one that the signal asks for.
        let (running, ranks) = endless(&place, "--nproc-per-node 2 --checkpoint-every 0");
        assert!(send(if to_launcher { running.pid() } else { ranks[1] }, signal));
        let done = running.wait();
        assert_eq!(done.code, Some(75), "{}", done.err);
        all_gone(&ranks);
        let step = newest(&place, "a").unwrap();
        assert!(done.err.contains(&format!("preempted after step {step}, which is saved")), "{}", done.err);
        assert!(!place.path("a/model.safetensors").exists() && !place.path("a/flight").exists());
        assert_eq!(place.succeed(&mut place.brigade("checkpoint verify a")).out.lines().count(), 1);

        let steps = step + 3;
        place.succeed(&mut place.brigade(&format!("train --resume a --steps {steps} --nproc-per-node 2")));
        let line = format!("--nproc-per-node 1 --set schedule.name=constant --steps {steps} --out whole");
        place.succeed(&mut place.train(&line));
        same_end(&place, "a", "whole");
    }
}

#[test]
fn a_second_signal_ends_the_run_at_once() {
    let place = Place::new();
    // A signal takes effect between two steps, and these are long.
    let (running, ranks) =
        endless(&place, "--nproc-per-node 2 --checkpoint-every 0 --global-batch-size 1024");
    let begin = Instant::now();
    assert!(send(running.pid(), Signal::TERM) && send(running.pid(), Signal::USR1));
    let done = running.wait();
    assert_eq!(done.code, Some(130), "{}", done.err);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(newest(&place, "a"), None);
    all_gone(&ranks);
}

#[test]
fn killed_ranks_are_started_again_and_reach_the_same_weights() {
    let place = Place::new();
    let line = "--steps 300 --set train.validate_every=0 --checkpoint-every 5";
    place.succeed(&mut place.train(&format!("{line} --nproc-per-node 1 --out whole")));
    let mut running =
        place.start(&mut place.train(&format!("{line} --nproc-per-node 2 --max-restarts 2 --out a")));
    let mut beyond = 0;
    let mut killed = Vec::new();
    for victim in [1, 0] {
        beyond =
            running.until("a checkpoint is saved", |_| newest(&place, "a").filter(|step| *step > beyond));
        let ranks = ranks(running.pid());
        assert!(send(ranks[victim], Signal::KILL));
        killed.extend(ranks);
        // Older checkpoints are removed when the run goes on.
        beyond += 20;
    }
    let done = running.wait();
    assert_eq!(done.code, Some(0), "{}", done.err);
    for part in [
        "rank 1 failed: killed by SIGKILL",
        "restart 1 of 2",
        "rank 0 failed: killed by SIGKILL",
        "restart 2 of 2",
    ] {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
    let goes_on = done.err.lines().filter(|line| line.starts_with("resuming from the checkpoint of step "));
    assert_eq!(goes_on.count(), 2, "{}", done.err);
    all_gone(&killed);
    same_end(&place, "a", "whole");
    place.succeed(&mut place.brigade("checkpoint verify a"));
}

#[test]
fn a_rank_that_fails_each_time_ends_the_run_after_the_last_restart() {
    let place = Place::new();
    let line = "--steps 10 --checkpoint-every 4 --max-restarts 1 --set optimizer.learning_rate=1e30 --out a";
    let done = place.run(&mut place.train(&format!("{line} --nproc-per-node 2")));
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.err.contains("restart 1 of 1") && !done.err.contains("restart 2"), "{}", done.err);
    assert!(said(&done).last().is_some_and(|last| last.contains("the loss is not finite")), "{}", done.err);
    none_left_in(&place.path(""));
}

/// A rank is stopped; the others give up, and everything says that it was that rank.
#[test]
fn a_stopped_rank_ends_the_run_inside_the_deadline_and_is_named() {
    for mesh in ["--nproc-per-node 3 --dp 3", "--nproc-per-node 3 --pp 3"] {
        let place = Place::new();
        let line =
            format!("{mesh} --global-batch-size 6 --set comm.train_timeout_seconds=2 --checkpoint-every 3");
        let (mut running, ranks) = endless(&place, &line);
        running.until("a checkpoint is saved", |_| newest(&place, "a"));
        assert!(send(ranks[1], Signal::STOP));
        let begin = Instant::now();
        let done = running.wait();
        assert_eq!(done.code, Some(1), "{mesh}: {}", done.err);
        assert!(begin.elapsed() < SOON, "{mesh}: {:?}", begin.elapsed());
        all_gone(&ranks);
        none_left_in(&place.path(""));
        let cause = ["rank 1 does not answer", "rank 1 has been stopped by SIGSTOP"];
        assert!(cause.iter().any(|cause| done.err.contains(cause)), "{mesh}: {}", done.err);
        fs::write(place.path("a/flight/rank-9.json"), "{").unwrap();
        let done = place.succeed(&mut place.brigade("inspect flight a"));
        assert!(done.err.contains("skipped") && done.err.contains("rank-9.json"), "{}", done.err);
        assert!(done.out.starts_with("rank 1 ") && done.out.lines().count() == 1, "{mesh}: {}", done.out);
        place.succeed(&mut place.brigade("checkpoint verify a"));
    }
    let shared = fs::read_dir("/dev/shm").map_or(0, |entries| {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.contains("brigade")).count()
    });
    assert_eq!(shared, 0, "shared memory is left");
}

/// Where even the operations' deadline is long, the launcher sees that nothing moves.
#[test]
fn a_silent_rank_ends_the_run() {
    let place = Place::new();
    let (running, ranks) = endless(&place, "--nproc-per-node 2 --checkpoint-every 0 --heartbeat-timeout 2");
    assert!(send(ranks[1], Signal::STOP));
    let begin = Instant::now();
    let done = running.wait();
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert!(done.err.contains("rank 1 has sent no heartbeat for 2 s"), "{}", done.err);
    all_gone(&ranks);
}

#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    let place = Place::new();
    let (mut running, _) =
        endless(&place, "--nproc-per-node 3 --dp 3 --global-batch-size 6 --checkpoint-every 3");
    running.until("a checkpoint is saved", |_| newest(&place, "a"));
    assert_eq!(working_in(&place.path("")).len(), 4);
    assert!(send(running.pid(), Signal::KILL));
    assert_eq!(running.wait().code, None);
    none_left_in(&place.path(""));
    place.succeed(&mut place.brigade("checkpoint verify a"));
    let step = newest(&place, "a").unwrap();
    let done = place.succeed(&mut place.brigade(&format!("train --resume a --steps {}", step + 2)));
    assert!(done.err.contains(&format!("resuming from the checkpoint of step {step}")), "{}", done.err);
}

/// Runs a training whose checkpoints go to a small file system of its own, which nobody else sees; copies them to `kept`.
/// `None` where that is not allowed.
fn on_a_small_disk(place: &Place, options: &str, line: &str) -> Option<Done> {
    let small = place.path("small");
    fs::create_dir_all(&small).unwrap();
    let allowed = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "tmpfs"]).arg(&small).output();
    if !allowed.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: a small file system cannot be mounted here ({allowed:?})");
        return None;
    }
    let train = place.train(line);
    let mut command = place.brigade("");
    command = {
        let mut shell = Command::new("unshare");
        let script = format!(
            "mount -t tmpfs -o {options} tmpfs small || exit 99; \"$@\"; code=$?; rm -rf kept; cp -r small kept; exit $code"
        );
        shell.args(["-m", "sh", "-c", &script, "sh"]).arg(train.get_program()).args(train.get_args());
        shell.current_dir(place.path("")).env_clear();
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    };
    Some(place.run(&mut command))
}

/// There is room for one checkpoint (128 KiB in two files): by its bytes, which is known before one is written; and by
/// the number of files, which shows in the middle of a save.
#[test]
fn a_disk_that_fills_while_checkpoints_are_saved() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --out whole"));
    let line =
        "--nproc-per-node 2 --checkpoint-every 4 --keep 0 --set checkpoint.dir=small --overwrite --out a";
    for (options, reason) in [("size=260k", "bytes free"), ("nr_inodes=9", "the disk is full: cannot")] {
        let Some(done) = on_a_small_disk(&place, options, line) else { return };
        let verified = || place.succeed(&mut place.brigade("checkpoint verify kept")).out;
        assert_eq!(done.code, Some(1), "{options}: {}", done.err);
        let failed = "the checkpoint could not be saved: ";
        assert!(
            said(&done)[0].contains(failed) && said(&done)[0].contains(reason),
            "{options}: {}",
            done.err
        );
        assert_eq!(verified().split_whitespace().collect::<Vec<_>>(), ["step", "4", "whole"], "{options}");
        let kept = files(&place.path("kept")).into_keys().filter(|file| !file.starts_with("step-00000004/"));
        assert_eq!(kept.collect::<Vec<_>>(), [".brigade.lock"], "{options}: a part is left");
        assert!(!place.path("a/model.safetensors").exists());

        let line = format!("{line} --set checkpoint.on_failure=continue");
        let Some(done) = on_a_small_disk(&place, options, &line) else { return };
        assert_eq!(done.code, Some(0), "{options}: {}", done.err);
        assert_eq!(done.err.matches(failed).count(), 2, "{options}: steps 8 and 10: {}", done.err);
        assert_eq!(verified().split_whitespace().collect::<Vec<_>>(), ["step", "4", "whole"], "{options}");
        same_end(&place, "a", "whole");
    }
}

/// The disk of results has no room for the weights; checkpoints are on another one.
#[test]
fn weights_that_cannot_be_written_do_not_take_the_last_checkpoint_along() {
    for ranks in [1, 2] {
        let place = Place::new();
        let line = format!(
            "--nproc-per-node {ranks} --checkpoint-every 10 --set checkpoint.on_failure=continue --set checkpoint.dir=ext \
             --out small/a"
        );
        let Some(done) = on_a_small_disk(&place, "size=52k", &line) else { return };
        assert_eq!(done.code, Some(1), "{}", done.err);
        assert!(said(&done)[0].contains("model.safetensors"), "{}", done.err);
        assert!(!place.path("kept/a/model.safetensors").exists());
        let verified = place.succeed(&mut place.brigade("checkpoint verify ext"));
        assert_eq!(verified.out.split_whitespace().collect::<Vec<_>>(), ["step", "10", "whole"]);
    }
}

/// `brigade train` where no file can grow beyond that of the weights: metrics and events reach the limit in the middle of the
/// run, as they would on a full disk, and the weights still fit.
fn with_limited_files(place: &Place, line: &str, bytes: u64) -> Done {
    let train = place.train(line);
    let mut command = Command::new("sh");
    // Without the signal, writing beyond the limit is an error. The limit is in units of 512 bytes.
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", bytes.div_ceil(512));
    command.args(["-c", &script, "sh"]).arg(train.get_program()).args(train.get_args());
    command.current_dir(place.path("")).env_clear();
    command.envs(train.get_envs().filter_map(|(name, value)| Some((name, value?))));
    place.run(&mut command)
}

#[test]
fn metrics_that_cannot_be_written_end_the_run_or_leave_gaps() {
    let place = Place::new();
    let line = "--nproc-per-node 1 --steps 100 --checkpoint-every 0";
    place.succeed(&mut place.train(&format!("{line} --out whole")));
    let size = |file: &str| fs::metadata(place.path(file)).unwrap().len();
    let most = size("whole/model.safetensors");
    assert!(size("whole/metrics.jsonl") > most + 512, "metrics reach the limit");

    let failed = "cannot write";
    let done = with_limited_files(&place, &format!("{line} --out a"), most);
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(said(&done)[0].contains(failed) && said(&done)[0].contains("File too large"), "{}", done.err);
    assert!(!place.path("a/model.safetensors").exists());

    let line = format!("{line} --set checkpoint.on_failure=continue --out b");
    let done = with_limited_files(&place, &line, most);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(done.err.matches("File too large").count(), 1, "said once: {}", done.err);
    assert_eq!(place.read("b/model.safetensors"), place.read("whole/model.safetensors"));
    let steps: Vec<_> = place.metrics("b").iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert!(steps.len() > 10 && steps.len() < 100, "{steps:?}");
    assert!(steps.is_sorted_by(|a, b| a < b), "whole lines, in order: {steps:?}");
}

#[test]
fn numbers_that_stay_infinite_end_the_run_at_the_limit() {
    let place = Place::new();
    trained(&place, "whole", "--nproc-per-node 2");
    dead_after(&place, "whole", 4, "a");
    let line = "train --resume a --nproc-per-node 2 --set optimizer.learning_rate=1e30 --set train.on_nonfinite=rollback";
    let done = place.run(&mut place.brigade(&format!("{line} --set train.nonfinite_limit=2")));
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert_eq!(
        done.err.matches("rolled back to the checkpoint of step 4, continuing with the data after").count(),
        2,
        "{}",
        done.err
    );
    assert!(
        said(&done)[0].contains("step 6: ") && said(&done)[0].contains("train.nonfinite_limit = 2"),
        "{}",
        done.err
    );
    // Nothing is lost: with a better learning rate the run goes on as if that had not been.
    let line = "train --resume a --nproc-per-node 2 --set optimizer.learning_rate=2e-3 --set train.on_nonfinite=stop";
    place.succeed(&mut place.brigade(line));
    same_end(&place, "a", "whole");

    let line = "--nproc-per-node 2 --set optimizer.learning_rate=1e30 --set train.on_nonfinite=rollback --checkpoint-every 4";
    let done = place.run(&mut place.train(&format!("{line} --out b")));
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(said(&done)[0].contains("there is no checkpoint yet to roll back to"), "{}", done.err);
}

/// One letter stands in one place of the text, and its embedding is not a number: one batch of an epoch is bad.
#[test]
fn a_bad_batch_is_left_behind() {
    let place = Place::new();
    let text = place.text("text/05.rs");
    fs::write(place.path("text/05.rs"), text.replacen("usize", "Zsize", 1)).unwrap();
    let line = "--nproc-per-node 2 --set model.tied_head=false --steps 20 --set train.on_nonfinite=rollback";
    trained(&place, "a", line);
    fs::remove_file(place.path("a/model.safetensors")).unwrap();
    for step in [8, 12, 16, 20] {
        fs::remove_dir_all(place.path(&format!("a/checkpoints/step-{step:08}"))).unwrap();
    }
    spoil(&place.path("a/checkpoints"), &place, usize::from(b'Z'));
    let done = place.succeed(&mut place.brigade("train --resume a --nproc-per-node 2"));
    assert_eq!(
        done.err.matches("loss or gradient norm not finite; rolled back to the checkpoint").count(),
        1,
        "{}",
        done.err
    );
    let metrics = place.metrics("a");
    let steps: Vec<_> = metrics.iter().map(|record| record["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=20).collect::<Vec<_>>());
    assert!(metrics.iter().all(|record| record["loss"].as_f64().unwrap().is_finite()));
    let shown = place.succeed(&mut place.brigade("checkpoint show a")).out;
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["nonfinite", "1"])), "{shown}");
    let batches =
        shown.lines().find_map(|line| line.strip_prefix("data")?.split_whitespace().next()?.parse().ok());
    assert!(batches.is_some_and(|batches: u64| batches > 20), "{shown}");
}

/// Makes the embedding of a token in the checkpoint of step 4 something else than numbers.
fn spoil(checkpoints: &Path, place: &Place, token: usize) {
    let saved = checkpoint(place, "a", 4);
    let state = saved.manifest().state.clone();
    let mut items = Vec::new();
    for unit in &state.units {
        for slot in &unit.slots {
            let mut values = vec![0.0; unit.elements];
            saved.read(&unit.name, slot, 0..unit.elements, &mut values).unwrap();
            if let Some(table) = unit.parameters.iter().find(|parameter| parameter.name.ends_with(".wte"))
                && slot == PARAMETERS
            {
                let width = table.shape[1];
                values[table.start + token * width..][..width].fill(f32::NAN);
            }
            items.push(WriteItem { unit: unit.name.clone(), slot: slot.clone(), start: 0, values });
        }
    }
    let storage = open_storage(checkpoints.to_str().unwrap()).unwrap();
    let staging = StagingDir::new(4).unwrap();
    let entry = write_shard(&*storage, &staging, 0, &RankShard { items }).unwrap();
    publish(&*storage, &staging, state, vec![entry]).unwrap();
}
