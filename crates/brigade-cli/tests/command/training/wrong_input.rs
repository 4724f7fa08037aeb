//! What is refused, and in which words.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use crate::place::Place;

/// Runs a command that must end with `code` and one message that has all of `said`.
#[track_caller]
fn refused(place: &Place, command: &mut Command, code: i32, said: &[&str]) {
    let done = place.run(command);
    assert_eq!(done.code, Some(code), "{command:?}: {}", done.err);
    let messages: Vec<&str> = done.err.lines().filter(|line| line.starts_with("brigade: ")).collect();
    assert_eq!(messages.len(), 1, "{command:?}: {}", done.err);
    for part in said {
        assert!(messages[0].contains(part), "{part:?} is not in: {}", messages[0]);
    }
    assert!(!place.path("a/metrics.jsonl").exists());
}

#[test]
fn data() {
    let place = Place::new();
    fs::create_dir(place.path("nothing")).unwrap();
    fs::write(place.path("empty.txt"), "").unwrap();
    fs::write(place.path("latin.txt"), b"caf\xe9").unwrap();
    fs::write(place.path("broken.jsonl"), "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": }\n").unwrap();
    fs::write(place.path("picture.png"), "x").unwrap();
    for (source, said) in [
        ("nowhere.txt", ["nowhere.txt does not exist", ""]),
        ("*.nothing", ["*.nothing", "matches no file"]),
        ("nothing", ["nothing", "matches no file that can be read as text"]),
        ("empty.txt", ["no text in", "empty.txt"]),
        ("latin.txt", ["latin.txt is not UTF-8", "offset 3"]),
        ("broken.jsonl", ["broken.jsonl:3:", "a record is a JSON object like"]),
        ("picture.png", ["picture.png", "an unknown extension"]),
    ] {
        let mut command =
            place.brigade(&format!("train --config tiny.toml --data {source} --nproc-per-node 2 --out a"));
        refused(&place, &mut command, 2, &said);
        assert!(!place.path("a").exists());
    }
    for (set, said) in [
        ("data.source=[{path='text',weight=0}]", ["weight = 0 is not possible", "above 0"]),
        ("data.source=[{path='text',weight=-2}]", ["weight = -2 is not possible", "above 0"]),
        ("data.source=[{path='text'},{path='empty.txt'}]", ["no text in", "empty.txt"]),
        (
            "data.source=[{path='fine.jsonl',columns={text='body'}}]",
            ["fine.jsonl:1: there is no column `body`; there are: text.", "data.columns"],
        ),
        (
            "data.source=[{path='text',columns={txt='body'}}]",
            ["data.columns = { txt = \"body\" }", "prompt, completion, text"],
        ),
        (
            "data.source=[{path='cut.jsonl.gz'}]",
            ["cut.jsonl.gz is not a gzip file that can be read, after line 0", ""],
        ),
    ] {
        fs::write(place.path("fine.jsonl"), "{\"text\": \"a\"}\n").unwrap();
        fs::write(place.path("cut.jsonl.gz"), b"\x1f\x8b\x08\0\0").unwrap();
        let mut command =
            place.brigade(&format!("train --config tiny.toml --set {set} --nproc-per-node 2 --out a"));
        refused(&place, &mut command, 2, &said);
    }
}

#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
#[test]
fn backends_that_are_not_built() {
    let place = Place::new();
    for (backend, feature) in [("cuda", "feature `cuda`"), ("wgpu", "feature `wgpu`")] {
        let said = ["compute.backend (--backend)", feature, "cargo xtask train --backend"];
        refused(&place, &mut place.train(&format!("--backend {backend} --out a")), 2, &said);
    }
}

#[test]
fn settings() {
    let place = Place::new();
    fs::write(place.path("unknown.toml"), "[optimizer]\nlearning_rat = 1\n").unwrap();
    fs::write(place.path("broken.toml"), "[optimizer\n").unwrap();
    fs::write(place.path("tokenizer.json"), "{}").unwrap();
    for (line, said) in [
        ("--set model.vocabulary=100", ["data.tokenizer = bytes has 257 ids", "model.vocabulary = 100"]),
        ("--set data.tokenizer=bpe:300 --set model.vocabulary=257", ["bpe:300 has 300 ids", "at least 300"]),
        ("--set data.tokenizer=tokenizer.json", ["tokenizer.json", "tokenizer "]),
        ("--global-batch-size 10", ["--global-batch-size", "the nearest is 8 or 12"]),
        ("--dp 3", ["--dp", "3"]),
        (
            "--backend cpu --collectives nccl",
            ["comm.collectives (--collectives) = nccl", "on cpu it must be host"],
        ),
        // Without the feature, and with it where `mpirun` has not started the ranks.
        ("--collectives mpi", ["comm.collectives (--collectives) = mpi", "host"]),
        ("--set comm.order=engine", ["comm.order = engine", "it must be tree"]),
        ("--peak-tflops=-1", ["output.peak_tflops (--peak-tflops) = -1", ""]),
        ("--pp 2 --dp 2", ["pp 2 x dp 2", "start 4 ranks"]),
        ("--pp 3 --nproc-per-node 4", ["pp 3 x dp 1", "set --pp 2 --dp 2, or start 3 ranks"]),
        ("--chunks 9223372036854775807", ["pipeline.chunks (--chunks)", "at most 1024"]),
        ("--dp 9223372036854775807 --pp 4", ["mesh.dp (--dp)", "at most"]),
        (
            "--nproc-per-node 4 --zero 3 --replicate 3",
            ["mesh.replicate (--replicate) = 3", "it must divide dp = 4; the nearest is 2"],
        ),
        ("--replicate 2", ["mesh.replicate (--replicate) = 2", "--zero 1, 2 or 3"]),
        ("--pp 2 --set pipeline.stages=[2,1,1]", ["2 numbers are needed", "set --pp 3"]),
        (
            "--pp 5 --nproc-per-node 5",
            ["mesh.pp x pipeline.chunks (--pp, --chunks) = 5", "the model has 4 blocks"],
        ),
        ("--zero 4", ["zero.stage (--zero) = 4", "0 shards nothing"]),
        ("--pp 2 --chunks 2", ["pipeline.chunks (--chunks) is 2", "--schedule interleaved-1f1b"]),
        ("--pp 2 --schedule interleaved-1f1b", ["--chunks 2", "--schedule 1f1b"]),
        ("--pp 2 --schedule zbv --chunks 3", ["zbv has two chunks a rank", "--chunks 2"]),
        (
            "--pp 2 --schedule interleaved-1f1b --chunks 2 --global-batch-size 6",
            ["there are 3 (train.global_batch_size", "make it 2 or 4"],
        ),
        ("--pp 2 --set pipeline.stages=[4,0]", ["pipeline.stages = [4, 0]", "stage 1 would be empty"]),
        ("--pp 2 --set pipeline.stages=[2,1]", ["pipeline.stages = [2, 1]", "the model has 4 blocks"]),
        ("--recompute some", ["compute.recompute (--recompute) = some", "as in every-2"]),
        ("--set optimizer.lr=1", ["`optimizer.lr`", "did you mean `optimizer.learning_rate`?"]),
        (
            "--set schedule.name=cosin",
            [
                "`schedule.name`: it must be constant, linear, cosine or wsd",
                "not cosin; did you mean cosine?",
            ],
        ),
        (
            "--set optimizer.learning_rat=1",
            ["optimizer.learning_rat", "did you mean `optimizer.learning_rate`?"],
        ),
        ("--config unknown.toml", ["--config unknown.toml", "did you mean `optimizer.learning_rate`?"]),
        ("--config broken.toml", ["--config broken.toml is not TOML", ""]),
        ("--config none.toml", ["--config none.toml", "No such file"]),
        ("--set optimizer.name=muon", ["optimizer.name = muon", "use adamw, adam, sgd, lion"]),
        ("--set model.heads=3", ["model.heads = 3", "model.width = 16"]),
        ("--set data.validation_fraction=1.5", ["validation_fraction = 1.5", "below 1"]),
        ("--sync-every 0", ["train.sync_every (--sync-every) = 0", "at least 1"]),
        ("--set train.read_ahead=0", ["train.read_ahead = 0", "at least 1"]),
        ("--set train.readers=5000", ["train.readers = 5000", "at most 1024"]),
        (
            "--sync-every 3",
            [
                "train.steps (--steps) = 10",
                "a multiple of train.sync_every (--sync-every) = 3; the nearest is 9 or 12",
            ],
        ),
        (
            "--strategy local-sgd --inner-steps 2 --workers 3 --nproc-per-node 4",
            ["strategy.workers (--workers) = 3", "it must divide the 4 ranks; the nearest is 2"],
        ),
        (
            "--strategy local-sgd --nproc-per-node 1 --inner-steps 2",
            [
                "strategy.name (--strategy) = local-sgd",
                "needs at least 2 ranks, a worker each (--nproc-per-node 2)",
            ],
        ),
        ("--workers 2", ["strategy.workers (--workers) = 2", "--strategy local-sgd or diloco"]),
        (
            "--strategy async-server --servers 2 --nproc-per-node 2",
            [
                "strategy.servers (--servers) = 2",
                "at least one of the 2 ranks must be a worker; it must be \
            at most 1",
            ],
        ),
        (
            "--strategy async-server --nproc-per-node 1",
            ["strategy.servers (--servers) = 1", "start at least 2 (--nproc-per-node 2)"],
        ),
        ("--servers 1", ["strategy.servers (--servers) = 1", "only --strategy async-server has servers"]),
        (
            "--staleness 2",
            ["strategy.staleness (--staleness) = 2", "only --strategy async-server has servers"],
        ),
        (
            "--strategy async-server --nproc-per-node 3 --zero 1",
            ["zero.stage (--zero) = 1", "it must be 0, or --strategy sync"],
        ),
        (
            "--strategy async-server --nproc-per-node 4 --pp 2",
            ["mesh.pp (--pp) = 2", "one rank with the whole model; it must be 1"],
        ),
        (
            "--strategy async-server --nproc-per-node 4 --dp 4",
            ["mesh.dp (--dp) = 4", "leave 3 workers; it must be 3, or 0"],
        ),
        (
            "--strategy async-server --nproc-per-node 3 --compress int8",
            ["comm.compress (--compress) = int8", "it must be none, or --strategy sync"],
        ),
        (
            "--strategy async-server --nproc-per-node 3 --sync-every 2",
            ["train.sync_every (--sync-every) = 2", "workers push after every step; set 1"],
        ),
        (
            "--strategy async-server --nproc-per-node 3 --set strategy.delay_compensation=1",
            [
                "strategy.delay_compensation = 1",
                "with strategy.staleness (--staleness) = 0 no gradient is late",
            ],
        ),
        (
            "--strategy async-server --nproc-per-node 3 --staleness 1 --inner-steps 4",
            [
                "train.steps (--steps) = 10",
                "a multiple of strategy.inner_steps (--inner-steps) = 4; the nearest is 8 or 12",
            ],
        ),
        (
            "--strategy async-server --nproc-per-node 3 --staleness 1 --inner-steps 5 --set train.on_nonfinite=rollback",
            ["train.on_nonfinite = rollback", "it must be stop or skip, or --staleness 0"],
        ),
        (
            "--strategy diloco --inner-steps 5 --fragments 6",
            ["strategy.fragments (--fragments) = 6", "with 5 inner steps it must be from 1 to 5"],
        ),
        (
            "--strategy diloco --inner-steps 5 --fragments 2 --overlap-steps 2",
            [
                "strategy.overlap_steps (--overlap-steps) = 2",
                "an outer step ends every 2 steps; it must be less",
            ],
        ),
        (
            "--strategy local-sgd --workers 2 --nproc-per-node 2 --inner-steps 5 --overlap-steps 2",
            ["strategy.overlap_steps (--overlap-steps) = 2", "only --strategy diloco"],
        ),
        (
            "--strategy diloco --inner-steps 5 --overlap-steps 2 --set strategy.outer_mixing=2",
            ["strategy.outer_mixing = 2", "from 0 to 1; 0 keeps none"],
        ),
        ("--strategy diloco --inner-steps 0", ["strategy.inner_steps (--inner-steps) = 0", "at least 1"]),
        (
            "--strategy diloco --inner-steps 4",
            [
                "train.steps (--steps) = 10",
                "a multiple of strategy.inner_steps (--inner-steps) = 4; the nearest is 8 or 12",
            ],
        ),
        (
            "--strategy diloco --inner-steps 2 --checkpoint-every 5",
            [
                "checkpoint.every (--checkpoint-every) = 5",
                "strategy.inner_steps (--inner-steps) = 2; the nearest is 4 or 6",
            ],
        ),
        (
            "--strategy diloco --inner-steps 2 --sync-every 2",
            ["train.sync_every (--sync-every) = 2", "--inner-steps); set 1, or --strategy sync"],
        ),
        (
            "--strategy diloco --inner-steps 2 --set train.on_nonfinite=rollback",
            ["train.on_nonfinite = rollback", "it must be stop or skip, or --strategy sync"],
        ),
        (
            "--strategy diloco --inner-steps 2 --compress int8",
            ["comm.compress (--compress) = int8", "it must be none, or --strategy sync"],
        ),
        (
            "--strategy diloco --inner-steps 2 --set strategy.outer_momentum=1",
            ["strategy.outer_momentum = 1", "below 1"],
        ),
        (
            "--strategy diloco --inner-steps 2 --set strategy.outer_learning_rate=0",
            ["strategy.outer_learning_rate = 0", "above 0"],
        ),
        (
            "--strategy diloco --inner-steps 2 --workers 2 --global-batch-size 6",
            [
                "train.global_batch_size",
                "workers x dp x micro-batch size = 2 x 1 x 2 = 4; the nearest is 4 or 8",
            ],
        ),
        (
            "--strategy diloco --inner-steps 2 --workers 2 --pp 2 --dp 2 --nproc-per-node 4",
            ["workers 2 x pp 2 x dp 2", "with workers 2 x pp 2 set --dp 1, or start 8 ranks"],
        ),
        (
            "--strategy diloco --inner-steps 2 --workers 2 --zero 1 --replicate 2 --nproc-per-node 2",
            ["mesh.replicate (--replicate) = 2", "it must divide dp = 1; the nearest is 1"],
        ),
        ("--strategy diloco --inner-steps 2 --mesh auto", ["--mesh = auto", "--pp, --dp and --workers"]),
        ("--steps 0", ["train.steps (--steps) = 0", "at least 1"]),
        ("--set output.notify=['curl','-HAuthorization:x']", ["output.notify", "word 2 holds a secret"]),
        (
            "--set output.notify=['curl','-fsSu','me:x','https://host/']",
            ["output.notify", "word 3 holds a secret"],
        ),
        ("--set output.notify=['curl','https://host/?token=x']", ["output.notify", "word 2 holds a secret"]),
        ("--set output.notify=['curl','https://me:x@host/']", ["output.notify", "word 2 holds a secret"]),
        (
            "--set output.notify=['no-such-program','word']",
            ["output.notify = [\"no-such-program\", …] is not possible", "its name in PATH ("],
        ),
        (
            "--set output.notify=['./tiny.toml']",
            ["output.notify = [\"./tiny.toml\"] is not possible", "the path of one"],
        ),
        ("--set lora.alpha=3", ["[lora] with rank = 0, alpha = 3", "without a rank"]),
        ("--set train.freeze=['had.*']", ["train.freeze = had.*", "no parameter"]),
        (
            "--set optimizer.groups=[{pattern='had.*',frozen=true}]",
            ["optimizer.groups.pattern = had.*", "no parameter"],
        ),
        ("--out tiny.toml", ["--out tiny.toml", ""]),
        ("--out s3://bucket", ["output.dir (--out) = s3://bucket", "s3://bucket/runs/a"]),
        ("--out https://host/a", ["output.dir (--out) = https://host/a", "can only be read"]),
    ] {
        let own = if line.contains("--config") {
            "train --data text"
        } else {
            "train --config tiny.toml --data text"
        };
        let out = if line.contains("--out") { "" } else { "--out a" };
        let ranks = if line.contains("--nproc-per-node") { "" } else { "--nproc-per-node 2" };
        refused(&place, &mut place.brigade(&format!("{own} {ranks} {line} {out}")), 2, &said);
        assert!(!place.path("a").exists() && !place.path("s3:").exists(), "{line}");
    }
}

#[test]
fn flags() {
    let place = Place::new();
    for (line, said) in [
        ("train --step 3", "'--steps'"),
        ("train --transport pigeon", "shared_memory"),
        ("train --schedule zigzag", "gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2 and zbv"),
        ("train --steps many", "--steps"),
        ("tain", "'train'"),
        ("", "Usage"),
    ] {
        let done = place.run(&mut place.brigade(line));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    }
    let help = place.succeed(&mut place.brigade("train --help")).out;
    for flag in
        ["--config", "--data", "--nproc-per-node", "--global-batch-size", "--set", "--dry-run", "Examples:"]
    {
        assert!(help.contains(flag), "{flag} in {help}");
    }
    assert!(place.succeed(&mut place.brigade("--version")).out.starts_with("brigade "));
}

#[test]
fn a_port_in_use() {
    let place = Place::new();
    let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = held.local_addr().unwrap().to_string();
    let mut command = place.train(&format!("--nproc-per-node 2 --rdzv-endpoint {address} --out a"));
    refused(&place, &mut command, 2, &[&address, "in use"]);
    let mut command = place.train(&format!("--nproc-per-node 1 --metrics-addr {address} --out a"));
    refused(&place, &mut command, 2, &["--metrics-addr", &address, "in use"]);
}

/// A corpus may take hours.
#[test]
fn what_would_end_a_run_is_found_before_its_data_is_prepared() {
    let place = Place::new();
    fs::create_dir(place.path("earlier")).unwrap();
    fs::write(place.path("earlier/metrics.jsonl"), "").unwrap();
    let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = held.local_addr().unwrap().to_string();
    let no_data = "train --config tiny.toml --data missing --nproc-per-node 1";
    for (line, said) in [
        ("--out earlier".to_owned(), "holds results of an earlier run"),
        ("--out tiny.toml".to_owned(), "is a file"),
        (format!("--out b --metrics-addr {address}"), "in use"),
        (format!("--out b --rdzv-endpoint {address}"), "in use"),
    ] {
        refused(&place, &mut place.brigade(&format!("{no_data} {line}")), 2, &[said]);
    }
    let mut command = place.train("--nproc-per-node 1 --out b");
    command.env("BRIGADE_CACHE_DIR", place.path("tiny.toml/cache"));
    refused(&place, &mut command, 2, &["data.cache_dir, or BRIGADE_CACHE_DIR", "tiny.toml/cache"]);
    let mut rank = place.brigade(&format!("{no_data} --out b").replace("--nproc-per-node 1", ""));
    rank.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    refused(&place, &mut rank, 2, &["BRIGADE_TOKEN is not set"]);
}

#[test]
fn a_full_disk() {
    let place = Place::new();
    fs::create_dir(place.path("small")).unwrap();
    let small = place.path("small");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=48k", "tmpfs"]).arg(&small).output();
    if !mount.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: a small file system cannot be mounted here ({mount:?})");
        return;
    }
    let _mounted = Mounted(small);
    let mut command = place.train("--nproc-per-node 2 --checkpoint-every 0 --out small/a");
    refused(&place, &mut command, 1, &["rank 0: ", "small/a/", "No space left"]);
    let mut command = place.train("--nproc-per-node 2 --out a --set data.tokenizer=bpe:300");
    let data: String = (0..9000).map(|n| format!("number {n}\n")).collect();
    fs::write(place.path("text/long.txt"), data).unwrap();
    refused(
        &place,
        command.env("BRIGADE_CACHE_DIR", place.path("small/cache")),
        2,
        &["the disk is full", "small/cache"],
    );
}

struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_negative_number_names_its_flag_and_what_is_allowed() {
    let place = Place::new();
    let lines = [
        "train --steps -1",
        "train --dp -1",
        "train --pp -1",
        "train --zero -1",
        "train --chunks -1",
        "train --seed -1",
        "train --micro-batch-size -1",
        "train --global-batch-size -1",
        "train --checkpoint-every -1",
        "train --keep -1",
        "train --nproc-per-node -1",
        "train --nnodes -1",
        "train --node-rank -1",
        "train --max-restarts -1",
        "plan schedule --micro-batches 4 --pp -1",
        "plan schedule --pp 4 --micro-batches -1",
        "generate --model a --tokens -1",
        "generate --model a --top-k -1",
        "generate --model a --seed -1",
        "checkpoint verify a --step -1",
    ];
    for line in lines {
        let done = place.run(&mut place.brigade(line));
        let flag = line.split(' ').rev().nth(1).unwrap();
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        let named = done.err.contains(&format!("invalid value '-1' for '{flag} <"));
        assert!(
            named && (done.err.contains("number of at least ") || done.err.contains("number from ")),
            "{line}: {}",
            done.err
        );
    }
}

#[test]
fn a_flag_of_other_programs_is_answered_with_the_setting() {
    let place = Place::new();
    for (flag, setting) in [
        ("--lr", "optimizer.learning_rate"),
        ("--weight-decay", "optimizer.weight_decay"),
        ("--max-steps", "train.steps"),
    ] {
        let done = place.run(&mut place.train(&format!("{flag} 1")));
        let said = format!("tip: give it as a setting: --set {setting}=VALUE");
        assert!(done.code == Some(2) && done.err.contains(&said), "{}", done.err);
    }
}

#[test]
fn warnings_in_files_have_no_colours_and_quiet_silences_them() {
    let place = Place::new();
    for (flags, is_told) in [("", true), ("--quiet", false)] {
        fs::create_dir_all(place.path("cache/dead.building")).unwrap();
        let line = format!(
            "{flags} --nproc-per-node 1 --steps 1 --out a --overwrite --set data.validation_fraction=0.{}",
            1 + u8::from(is_told)
        );
        let done = place.succeed(&mut place.train(&line));
        assert_eq!(done.err.contains("dead.building, left by a process that died"), is_told, "{}", done.err);
        assert!(!done.err.contains('\u{1b}'), "{:?}", done.err);
    }
}
