//! `brigade train --mesh auto --micro-batch-size auto`.

use rustix::process::Signal;
use serde_json::Value;

use crate::place::{Place, Running};
use crate::processes::{TOKEN, port, send};
use crate::runs::{dead_after, same_end};

/// What was chosen for a run.
fn choice(place: &Place, run: &str) -> Value {
    serde_json::from_slice(&place.read(&format!("{run}/auto.json"))).unwrap()
}

#[test]
fn a_run_with_what_was_chosen_has_the_bits_of_one_that_was_told_it_and_keeps_it_when_resumed() {
    let place = Place::new();
    let open = "--nproc-per-node 2 --mesh auto --micro-batch-size auto --checkpoint-every 4 --keep 0";
    let done = place.succeed(&mut place.train(&format!("{open} --out auto")));
    for said in
        ["--mesh auto: pp ", " tokens/s predicted, ", "--micro-batch-size auto: ", "the fastest that fits: "]
    {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    let chosen = choice(&place, "auto");
    let size = chosen["micro_batch_size"].as_u64().unwrap();
    let tried = chosen["tried"].as_array().unwrap();
    let rate = |trial: &Value| trial["ran"]["per_second"].as_f64().unwrap_or(0.0);
    let fastest = tried.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap();
    assert_eq!((chosen["ranks"].as_u64(), fastest["size"].as_u64()), (Some(2), Some(size)), "{chosen}");
    assert!(tried.len() > 1 && tried.iter().all(|trial| rate(trial) > 0.0), "{chosen}");

    // The same, said.
    let mesh: Vec<&str> =
        chosen["mesh"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let told = format!("--nproc-per-node 2 {} --micro-batch-size {size}", mesh.join(" "));
    place.succeed(&mut place.train(&format!("{told} --checkpoint-every 4 --out told")));
    assert!(!place.path("told/auto.json").exists());
    same_end(&place, "auto", "told");
    dead_after(&place, "auto", 4, "dead");
    let done = place.succeed(&mut place.train(&format!("{open} --resume auto --out dead")));
    let said = &done.err;
    assert!(said.contains("as before the run was resumed") && !said.contains("micro-batch size "), "{said}");
    same_end(&place, "dead", "told");
    assert_eq!(choice(&place, "dead")["micro_batch_size"], chosen["micro_batch_size"]);
}

/// Node 0 chooses for both: with different sizes their ranks would refuse each other.
#[test]
fn nodes_try_sizes_together_and_train_with_the_same_one() {
    let place = Place::new();
    let nodes = |lines: [&str; 2], name: &str| {
        let port = port();
        let running = [0, 1].map(|node| {
            let line = format!(
                "--nproc-per-node 1 --dp 2 --zero 2 --nnodes 2 --node-rank {node} --rdzv-endpoint 127.0.0.1:{port} \
                 --out {name} --log-dir n{node}-{name} {}",
                lines[node]
            );
            place.start(place.train(&line).env("BRIGADE_TOKEN", TOKEN))
        });
        running.map(Running::wait)
    };
    let auto = "--micro-batch-size auto";
    for done in nodes([auto; 2], "auto") {
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(done.err.contains("--micro-batch-size auto: "), "{}", done.err);
    }
    let chosen = choice(&place, "auto");
    let tried = chosen["tried"].as_array().unwrap();
    assert!(tried.len() > 1 && tried.iter().all(|trial| trial.get("ran").is_some()), "{chosen}");
    let told = format!("--micro-batch-size {}", chosen["micro_batch_size"]);
    assert!(nodes([&told; 2], "told").iter().all(|done| done.code == Some(0)));
    same_end(&place, "auto", "told");

    // No size works where the nodes have different settings.
    let other = format!("{auto} --set optimizer.learning_rate=0.5");
    let [first, second] = nodes([auto, &other], "other");
    for done in [&first, &second] {
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains("--micro-batch-size auto found no size that works"), "{}", done.err);
    }
    assert!(first.err.contains("on rank 0 `learning_rate = "), "{}", first.err);
    assert!(!place.path("other").exists());
}

#[test]
fn all_nodes_leave_the_size_open_or_none_does() {
    let place = Place::new();
    for lines in [["--micro-batch-size auto", ""], ["", "--micro-batch-size auto"]] {
        let port = port();
        let running = [0, 1].map(|node| {
            let line = format!(
                "--nproc-per-node 1 --dp 2 --nnodes 2 --node-rank {node} --rdzv-endpoint 127.0.0.1:{port} --out a --log-dir n{node} {}",
                lines[node]
            );
            place.start(place.train(&line).env("BRIGADE_TOKEN", TOKEN))
        });
        let [first, second] = lines.map(|line| if line.is_empty() { "nothing" } else { line });
        for done in running.map(Running::wait) {
            assert_eq!(done.code, Some(2), "{}", done.err);
            let said = format!(
                "what is decided before ranks start is {first} on node 0 and {second} on node 1; give the option to all nodes or to none"
            );
            assert!(done.err.contains(&said), "{}", done.err);
        }
    }
}

#[test]
fn a_node_that_is_lost_between_trials_ends_the_others() {
    let place = Place::new();
    let port = port();
    let [mut first, second] = [0, 1].map(|node| {
        let line = format!(
            "--nproc-per-node 1 --dp 2 --nnodes 2 --node-rank {node} --rdzv-endpoint 127.0.0.1:{port} --out a --log-dir n{node} \
             --micro-batch-size auto"
        );
        place.start(place.train(&line).env("BRIGADE_TOKEN", TOKEN))
    });
    first.until("a trial", |first| first.complained().contains("micro-batch size ").then_some(()));
    assert!(send(second.pid(), Signal::KILL));
    let done = first.wait();
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.err.contains("node 1 was lost before ranks were started: "), "{}", done.err);
}

#[test]
fn sizes_are_tried_for_workers_that_meet_rarely() {
    let place = Place::new();
    let line = "--strategy diloco --inner-steps 4 --fragments 2 --nproc-per-node 2 --micro-batch-size auto --steps 8 --set train.validate_every=0 \
                --checkpoint-every 0";
    place.succeed(&mut place.train(&format!("{line} --out a")));
    assert!(choice(&place, "a")["tried"].as_array().unwrap().len() > 1);
}

#[test]
fn what_cannot_be_chosen_is_said() {
    let place = Place::new();
    for (line, said) in [
        ("--mesh auto --pp 2", "cannot be used with"),
        ("--mesh best", "[possible values: auto]"),
        ("--cluster 1x1xCPU", "--mesh"),
        (
            "--mesh auto --cluster 1x3xCPU --nproc-per-node 2",
            "--cluster 1x3xCPU has 3 devices, but there are 2 ranks",
        ),
        ("--mesh auto --cluster 1x2xH1000 --nproc-per-node 2", "there is no kind H1000"),
        ("--mesh auto --nproc-per-node 64", "--global-batch-size = 8 is not possible"),
        ("--micro-batch-size auto --nproc-per-node 3", "3 data-parallel ranks"),
        ("--micro-batch-size all", "it must be a whole number of at least 0"),
        (
            "--micro-batch-size auto --nnodes 1:2 --node-rank 0 --rdzv-endpoint 127.0.0.1:1 --nproc-per-node 1",
            "--micro-batch-size auto tries sizes on a fixed number of nodes, and --nnodes is 1:2",
        ),
        ("--micro-batch-size auto --nproc-per-node 1 --set model.heads=3", "model.heads = 3"),
        (
            "--micro-batch-size auto --nproc-per-node 1 --strategy diloco --workers 2 --coordinator 127.0.0.1:1",
            "within the run of the other workers",
        ),
        (
            "--micro-batch-size auto --nproc-per-node 2 --strategy diloco --inner-steps 4 --steps 8 --set train.validate_every=0 --checkpoint-every 3",
            "checkpoint.every (--checkpoint-every) = 3",
        ),
        (
            "--mesh auto --strategy async-server --nproc-per-node 3",
            "strategy.name = async-server, but only steps in which all ranks make an update together are planned",
        ),
        (
            "--mesh auto --sync-every 2 --nproc-per-node 2",
            "train.sync_every = 2, but only steps in which all ranks make an update together are planned",
        ),
    ] {
        let done = place.run(&mut place.train(&format!("{line} --out a")));
        assert!(done.code == Some(2) && done.err.contains(said), "{line}: {:?} {}", done.code, done.err);
        assert!(!place.path("a").exists(), "{line}");
        let tried = done.err.lines().find(|said| said.starts_with("micro-batch size "));
        assert_eq!(tried, None, "{line}: nothing is tried");
    }
    let done =
        place.succeed(&mut place.train("--mesh auto --micro-batch-size auto --nproc-per-node 2 --dry-run"));
    assert!(done.err.contains("in this dry run; a run would try sizes"), "{}", done.err);
    // PowerSGD cannot take gradients as ZeRO-2 and 3 give them.
    let line = "--mesh auto --compress powersgd --nproc-per-node 4 --global-batch-size 1024 --micro-batch-size 1 --dry-run";
    place.succeed(&mut place.train(line));
    // Without ZeRO nothing is gathered.
    for ranks in [1, 2] {
        let line = format!("--mesh auto --set comm.compress_gathers=int8 --nproc-per-node {ranks} --dry-run");
        place.succeed(&mut place.train(&line));
    }
}
