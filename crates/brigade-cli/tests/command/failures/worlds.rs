//! Ranks that somebody else started.

use std::process::Command;

use rustix::process::Signal;

use crate::place::{Done, Place, Running};
use crate::processes::{TOKEN, port, ranks, send};
use crate::runs::{newest, same_end};

fn rank(command: &mut Command, rank: usize, world: usize, port: u16) {
    let numbers = [("RANK", rank), ("WORLD_SIZE", world), ("MASTER_PORT", usize::from(port))];
    command.envs(numbers.map(|(name, number)| (name, number.to_string())));
    command.env("MASTER_ADDR", "127.0.0.1").env("BRIGADE_TOKEN", TOKEN);
}

/// Starts two ranks by hand and waits for both.
fn two(place: &Place, lines: [&str; 2]) -> [Done; 2] {
    let port = port();
    let running = [0, 1].map(|r| {
        let mut command = place.train(lines[r]);
        rank(&mut command, r, 2, port);
        place.start(&mut command)
    });
    running.map(|running| running.wait())
}

#[test]
fn ranks_by_hand_join_and_end_well() {
    let place = Place::new();
    for (name, extra) in [("auto", ""), ("tcp", "--transport tcp")] {
        let line = format!("--out {name} {extra}");
        let done = two(&place, [&line, &line]);
        for (rank, done) in done.iter().enumerate() {
            assert_eq!(done.code, Some(0), "rank {rank}: {}", done.err);
        }
        assert!(done[0].err.contains("torchrun's RANK, WORLD_SIZE, MASTER_ADDR"), "{}", done[0].err);
    }
    place.succeed(&mut place.train("--nproc-per-node 1 --out alone"));
    let weights = |name: &str| place.read(&format!("{name}/model.safetensors"));
    assert!(weights("auto") == weights("alone") && weights("tcp") == weights("alone"));
}

#[test]
fn a_rank_that_nobody_joins_says_what_made_it_one() {
    let place = Place::new();
    let mut command = place.train("--set comm.init_timeout_seconds=1 --out a");
    rank(&mut command, 0, 2, port());
    let done = place.run(&mut command);
    assert_eq!(done.code, Some(1), "{}", done.err);
    let source = "rank 0 of 2, from torchrun's RANK, WORLD_SIZE, MASTER_ADDR";
    assert_eq!(done.err.matches(source).count(), 2, "before it waits, and in the end: {}", done.err);
    for part in ["--standalone", "ranks [1] of 2 did not connect"] {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
}

#[test]
fn nodes_that_brigade_launches_form_one_world() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --out alone"));
    for (name, mesh) in [
        ("a", "--nproc-per-node 1"),
        ("two-levels", "--nproc-per-node 2 --dp 4 --zero 2 --collectives hierarchical"),
        ("replicas", "--nproc-per-node 2 --dp 4 --zero 3 --replicate 2"),
        ("stages", "--nproc-per-node 2 --dp 2 --pp 2 --zero 3"),
    ] {
        let port = port();
        let running = [0, 1].map(|node| {
            let line = format!(
                "{mesh} --nnodes 2 --node-rank {node} --rdzv-endpoint 127.0.0.1:{port} --out {name} --log-dir n{node}-{name}"
            );
            let mut command = place.train(&line);
            command.env("BRIGADE_TOKEN", TOKEN).env("BRIGADE_HOST_ID", format!("host-{node}"));
            place.start(&mut command)
        });
        for done in running.map(|running| running.wait()) {
            assert_eq!(done.code, Some(0), "{name}: {}", done.err);
        }
        let weights = place.read(&format!("{name}/model.safetensors"));
        assert!(weights == place.read("alone/model.safetensors"), "{name}");
    }
}

/// Each node has a folder of its own, of which the other one knows nothing.
#[test]
fn nodes_without_a_shared_folder_are_told_before_they_train() {
    let place = Place::new();
    let nodes = |lines: [&str; 2]| {
        let port = port();
        let running = [0, 1].map(|node| {
            let line = format!(
                "--nproc-per-node 1 --nnodes 2 --node-rank {node} --rdzv-endpoint 127.0.0.1:{port} \
                 --set comm.train_timeout_seconds=12 {}",
                lines[node]
            );
            place.start(place.train(&line).env("BRIGADE_TOKEN", TOKEN))
        });
        running.map(Running::wait)
    };
    for done in nodes(["--out a", "--out b"]) {
        assert_eq!(done.code, Some(2), "{}", done.err);
        for part in
            ["a/checkpoints does not appear in b/checkpoints, where rank 1 on ", "--out (or checkpoint.dir)"]
        {
            assert!(done.err.contains(part), "{part}: {}", done.err);
        }
    }
    for left in ["a/metrics.jsonl", "a/checkpoints", "b/checkpoints"] {
        assert!(!place.path(left).exists(), "{left}");
    }
    // Nothing is left that would be in the way of what the message says.
    for done in nodes(["--out a --log-dir a/logs", "--out a --log-dir b/logs"]) {
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    assert_eq!(newest(&place, "a"), Some(10));
    // A run that saves none goes on, and says it.
    let [first, _] = nodes(["--out c --checkpoint-every 0", "--out d --checkpoint-every 0"]);
    assert_eq!(first.code, Some(0), "{}", first.err);
    assert!(first.err.contains("checkpoints need a location that all nodes share"), "{}", first.err);
}

/// A rank of one node dies, then a whole launcher, which somebody starts again: all nodes go on from the newest
/// checkpoint, and end as if nothing had been.
#[test]
fn nodes_start_again_together() {
    let place = Place::new();
    let line = "--steps 300 --set train.validate_every=0 --checkpoint-every 10 --micro-batch-size 1";
    let port = port();
    let node = |node: usize| {
        let line = format!(
            "{line} --nproc-per-node 2 --pp 2 --max-restarts 4 --nnodes 2 --node-rank {node} --rdzv-endpoint 127.0.0.1:{port} \
             --out a --log-dir n{node}"
        );
        place.start(place.train(&line).env("BRIGADE_TOKEN", TOKEN))
    };
    let beyond = |running: &mut Running, step: u64| {
        running.until("a checkpoint", |_| newest(&place, "a").filter(|newest| *newest > step))
    };
    let (mut first, mut second) = (node(0), node(1));
    let step = beyond(&mut first, 0);
    assert!(send(ranks(second.pid())[1], Signal::KILL));
    let step = beyond(&mut first, step + 20);
    assert!(send(second.pid(), Signal::KILL));
    second = node(1);
    beyond(&mut first, step + 20);
    let done = [first, second].map(Running::wait);
    for done in &done {
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    for part in
        ["rank 3 failed: killed by SIGKILL (9)", "on node 1", "restart 1 of 4", "node 1", "restart 2 of 4"]
    {
        assert!(done[0].err.contains(part), "{part}: {}", done[0].err);
    }
    place.succeed(&mut place.train(&format!("{line} --nproc-per-node 1 --out whole")));
    same_end(&place, "a", "whole");
}

#[test]
fn a_rank_with_another_configuration_is_refused() {
    let place = Place::new();
    let done = two(&place, ["--seed 7 --out a", "--seed 8 --out a"]);
    for done in &done {
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains("rank 1 runs with a different configuration from rank 0"), "{}", done.err);
    }
    for done in &done {
        assert!(done.err.contains("on rank 1 `seed = 8`, on rank 0 `seed = 7`"), "{}", done.err);
    }
    assert!(!place.path("a").exists());
}

#[test]
fn a_rank_with_other_text_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("other")).unwrap();
    for name in std::fs::read_dir(place.path("text")).unwrap().map(|entry| entry.unwrap().file_name()) {
        let name = name.to_string_lossy();
        let text = place.text(&format!("text/{name}")).replace("usize", "isize");
        std::fs::write(place.path(&format!("other/{name}")), text).unwrap();
    }
    let port = port();
    let running = ["text", "other"].map(|data| {
        let mut command = place.brigade(&format!("train --config tiny.toml --out a --data {data}"));
        rank(&mut command, usize::from(data == "other"), 2, port);
        place.start(&mut command)
    });
    for done in running.map(|running| running.wait()) {
        assert_eq!(done.code, Some(1), "{}", done.err);
        assert!(
            done.err.contains("rank 1 runs with a different text (or tokenizer) from rank 0"),
            "{}",
            done.err
        );
    }
    assert!(!place.path("a/model.safetensors").exists());
}

#[test]
fn a_rank_without_the_secret_is_refused() {
    let place = Place::new();
    let port = port();
    let running = [0, 1].map(|r| {
        let mut command = place.train("--out a --set comm.init_timeout_seconds=3");
        rank(&mut command, r, 2, port);
        if r == 1 {
            command.env("BRIGADE_TOKEN", "another-secret-than-theirs");
        }
        place.start(&mut command)
    });
    for done in running.map(|running| running.wait()) {
        assert_eq!(done.code, Some(1), "{}", done.err);
        assert!(done.err.contains("brigade: "), "{}", done.err);
    }
    let mut none = place.train("--out a");
    rank(&mut none, 1, 2, port);
    let done = place.run(none.env_remove("BRIGADE_TOKEN"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("BRIGADE_TOKEN is not set"), "{}", done.err);
}

#[test]
fn results_of_an_earlier_run_are_safe_from_ranks_by_hand() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let [first, second] = two(&place, ["--out a", "--out a"]);
    assert_eq!(first.code, Some(2), "{}", first.err);
    assert!(first.err.contains("--out a holds results of an earlier run"), "{}", first.err);
    assert_eq!(second.code, Some(1), "{}", second.err);
    assert!(second.err.contains("rank 0 aborted: --out a holds results"), "{}", second.err);
    assert_eq!(place.metrics("a").len(), 1);
}

#[test]
fn rank_0_of_another_launcher_tells_how_the_run_ended() {
    let too_fast = "--set optimizer.learning_rate=1e30 --set schedule.warmup_steps=0";
    let told = |line: &str, code: i32, state: &str| {
        let place = Place::new();
        let mut command = place.train(line);
        command.args(["--set", "output.notify=['sh', '-c', 'cat >told']"]);
        rank(&mut command, 0, 1, port());
        let ended = place.run(&mut command);
        assert_eq!(ended.code, Some(code), "{}", ended.err);
        let history = std::fs::read_to_string(place.path("a/history.jsonl")).unwrap_or_default();
        assert!(history.lines().last().unwrap_or_default().contains(state), "{history}");
        let told = place.path("told").exists().then(|| place.text("told"))?;
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["exit_code"].as_i64(), Some(code.into()));
        assert!(told["run"].as_str().unwrap().ends_with('a'), "{told}");
        told["event"].as_str().map(str::to_owned)
    };
    assert_eq!(told("--out a", 0, "\"event\":\"finished\"").as_deref(), Some("finished"));
    assert_eq!(told(&format!("--out a {too_fast}"), 1, "\"event\":\"failed\"").as_deref(), Some("failed"));
    assert_eq!(told("--out a --pp 2", 2, ""), None, "a mistake is not the end of a run");
    let place = Place::new();
    let mut command = place.train("--out a --set output.notify=['no-such-program']");
    rank(&mut command, 0, 1, port());
    let ended = place.run(&mut command);
    let said = "output.notify = [\"no-such-program\"] is not possible";
    assert!(ended.code == Some(2) && ended.err.contains(said), "{:?} {}", ended.code, ended.err);
    assert!(!place.path("a").exists(), "it has begun");
}
