//! `brigade submit`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;

use crate::place::{Done, Place};
use crate::processes::send;

const SLURM: &str = "submit --to slurm --nodes 2 --gpus 0";
const TRAIN: &str = "-- train --config tiny.toml --data text --out runs/My_run --nproc-per-node 2";

/// A program of the system's, which is a script here.
fn program(place: &Place, name: &str, body: &str) {
    let path = place.path(&format!("bin/{name}"));
    fs::create_dir_all(place.path("bin")).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// A script in place of `ssh`, of hosts that are ready: after three options and their values come the host and what it runs.
fn hosts(place: &Place, body: &str) {
    program(place, "ssh", &format!("case \"$8\" in *'command -v'*) date +%s; exit ;; esac\n{body}"));
}

/// The command, with these programs before all others, or with no others at all.
fn brigade(place: &Place, line: &str) -> Command {
    let mut command = place.brigade(line);
    command.env("PATH", format!("{}:/usr/bin:/bin", place.path("bin").display()));
    command
}

#[test]
fn a_job_is_rendered_submitted_and_followed() {
    let place = Place::new();
    let done = place.succeed(&mut brigade(&place, &format!("{SLURM} --render job {TRAIN}")));
    assert!(done.out.starts_with("job/slurm.sh\nsubmit:  sbatch --parsable job/slurm.sh\n"), "{}", done.out);
    let script = place.text("job/slurm.sh");
    let done = place.succeed(&mut brigade(&place, &format!("{SLURM} --render {TRAIN}")));
    assert!(
        done.out.starts_with("my-run/slurm.sh\n") && place.text("my-run/slurm.sh") == script,
        "{}",
        done.out
    );
    assert!(
        script.contains("#SBATCH --job-name=my-run\n")
            && script
                .contains(" brigade train --max-restarts 3 --preemption-grace 300 --resume auto --config"),
        "{script}"
    );
    // What lies in the folder is nobody's business.
    fs::write(place.path("slurm.sh"), "mine").unwrap();
    program(&place, "sbatch", "cp $2 submitted.sh; echo 7");
    program(&place, "scontrol", "echo JobId=7 JobState=COMPLETED");
    fs::write(place.path("my-run-7.log"), "step 1/10\n").unwrap();
    let done = place.succeed(&mut brigade(&place, &format!("{SLURM} {TRAIN}")));
    assert_eq!((place.text("submitted.sh"), place.text("slurm.sh")), (script, "mine".into()));
    assert!(
        done.err.contains("submitted my-run, which slurm knows as 7")
            && done.err.contains("to cancel it: scancel 7"),
        "{}",
        done.err
    );
    assert_eq!(done.out, "step 1/10\n");
    program(&place, "scontrol", "echo JobId=7 JobState=FAILED");
    assert_eq!(place.run(&mut brigade(&place, &format!("{SLURM} {TRAIN}"))).code, Some(1));
    program(&place, "sbatch", "echo no such partition >&2; exit 1");
    let done = place.run(&mut brigade(&place, &format!("{SLURM} {TRAIN}")));
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("no such partition"), "{}", done.err);
}

#[test]
fn ctrl_c_leaves_a_job_that_nobody_cancels() {
    let place = Place::new();
    program(&place, "sbatch", "echo 7");
    program(&place, "scontrol", "echo asked >>asked; echo JobId=7 JobState=RUNNING");
    program(&place, "scancel", "echo $1 >cancelled");
    let mut running = place.start(&mut brigade(&place, &format!("{SLURM} {TRAIN}")));
    running.until("it follows the job", |_| place.path("asked").exists().then_some(()));
    assert!(send(running.pid(), Signal::INT));
    let done = running.wait();
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("the job runs on") && !place.path("cancelled").exists(), "{}", done.err);
    let done = place.succeed(&mut brigade(&place, &format!("{SLURM} --detach {TRAIN}")));
    assert!(done.err.contains("submitted"), "{}", done.err);
}

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

#[test]
fn what_the_cluster_lacks_is_said_before_anything_is_submitted() {
    let place = Place::new();
    let line = "submit --to trainjob --nodes 2 --gpus 8 --image b:1 --volume data:/data -- train --global-batch-size 128 --out /data/a";
    let kubectl = r#"case "$*" in
        *create*) touch created; echo trainjob.trainer.kubeflow.org/a ;;
        *secret/*) echo 'Error from server (NotFound): secrets not found' >&2; exit 1 ;;
        *resourcequota*) echo '{ "items": [ { "metadata": { "name": "team" }, "spec": { "hard": { "requests.nvidia.com/gpu": "8" } } } ] }' ;;
    esac"#;
    program(&place, "kubectl", kubectl);
    let done = place.run(&mut brigade(&place, line));
    assert_eq!(done.code, Some(1), "{}", done.err);
    for said in [
        "nothing was submitted, as the job needs: secret/brigade-token, which is not in the cluster; ",
        "resourcequota/team allows 8 of requests.nvidia.com/gpu, of which 0 is used; the job needs 2 x 8 (--gpus)",
    ] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    assert!(!place.path("created").exists());
    // What cannot be asked is no reason not to try.
    let kubectl = r#"case "$*" in
        *create*) echo trainjob.trainer.kubeflow.org/a ;;
        *trainjob*) echo Complete ;;
        *) echo 'Error from server (Forbidden): no' >&2; exit 1 ;;
    esac"#;
    program(&place, "kubectl", kubectl);
    let done = place.succeed(&mut brigade(&place, line));
    for said in
        ["not checked: whether there is secret/brigade-token", "not checked: the quotas of the namespace"]
    {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
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

#[test]
fn results_may_go_to_a_bucket_that_vertex_mounts() {
    let place = Place::new();
    let line = "submit --to vertex --region europe-west4 --nodes 1 --gpus 8 --gpu-kind a100-80gb --image b:1 --render jobs -- train --global-batch-size 64 --out";
    place.succeed(&mut brigade(&place, &format!("{line} gs://bucket/a")));
    let job = String::from_utf8(place.read("jobs/vertex.json")).unwrap();
    assert!(job.contains("/gcs/bucket/a") && job.contains("checkpoint.dir=gs://bucket/a"), "{job}");
    // Checkpoints that the settings put elsewhere stay there.
    fs::write(place.path("saved.toml"), "[checkpoint]\ndir = \"gs://other/c\"\n").unwrap();
    let done = place.succeed(&mut brigade(&place, &format!("{line} gs://bucket/a --config saved.toml")));
    let job = String::from_utf8(place.read("jobs/vertex.json")).unwrap();
    let settings = r#""checkpoint.dir=\"gs://other/c\"""#;
    assert!(job.contains(settings) && !job.contains("gs://bucket/a") && !job.contains("--config"), "{job}");
    let said = "the settings of saved.toml are part of the command, as the nodes do not see that file";
    assert!(done.err.contains(said), "{}", done.err);
    // A file that only the nodes have may say another place.
    let done =
        place.succeed(&mut brigade(&place, &format!("{line} gs://bucket/a --config gs://bucket/b.toml")));
    assert!(
        done.err.contains("not checked: whether the file of --config sets checkpoint.dir"),
        "{}",
        done.err
    );
    // A run that is resumed alone keeps its own place.
    let resumed = line.replace(" --global-batch-size 64 --out", " --resume gs://bucket/a");
    let done = place.succeed(&mut brigade(&place, &resumed));
    let said = "not checked: whether the settings of gs://bucket/a have a checkpoint.dir";
    assert!(done.err.contains(said), "{}", done.err);
    let done = place
        .succeed(&mut brigade(&place, &format!("{resumed} --set checkpoint.dir=gs://bucket/a/checkpoints")));
    assert!(!done.err.contains(said), "{}", done.err);
    fs::write(place.path("lost.toml"), "[checkpoint]\ndir = \"/tmp/lost\"\n").unwrap();
    let done = place.run(&mut brigade(&place, &format!("{line} gs://bucket/a --config lost.toml")));
    assert!(
        done.code == Some(2) && done.err.contains("checkpoint.dir /tmp/lost is not possible"),
        "{}",
        done.err
    );
    let done = place.run(&mut brigade(&place, &format!("{line} s3://bucket/a")));
    assert!(done.code == Some(2) && done.err.contains("s3://bucket/a"), "{}", done.err);
}

#[test]
fn settings_of_a_file_that_containers_do_not_see_are_part_of_the_command() {
    let place = Place::new();
    let line = "submit --to jobset --nodes 2 --gpus 8 --image b:1 --volume data:/data --render jobs";
    let file = "[train]\nglobal_batch_size = 64\n[data]\nsources = [\"/data/a b\"]\n[data.columns]\ntext = \"body\"\n[output]\ndir = \"\"\n";
    fs::write(place.path("some.toml"), file).unwrap();
    let train = "train --config some.toml --set train.global_batch_size=128 --out /data/a";
    place.succeed(&mut brigade(&place, &format!("{line} -- {train}")));
    let job: serde_json::Value = serde_json::from_slice(&place.read("jobs/jobset.json")).unwrap();
    let args =
        &job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["args"];
    let args: Vec<&str> = args.as_array().unwrap().iter().filter_map(|arg| arg.as_str()).collect();
    let sets: Vec<&str> = args.windows(2).filter(|pair| pair[0] == "--set").map(|pair| pair[1]).collect();
    assert_eq!(
        sets,
        [
            "train.global_batch_size=64",
            r#"data.sources=["/data/a b"]"#,
            r#"data.columns={ text = "body" }"#,
            "train.global_batch_size=128"
        ]
    );
    assert!(!args.contains(&"--config"), "{args:?}");
    // Where they are secrets, or the program is another one, they cannot be.
    let secret = "hf_abcdefghijklmnopqrstuvwx";
    fs::write(place.path("secret.toml"), format!("[model]\npath = \"{secret}\"\n")).unwrap();
    let program = line.replace("--render", "--program program --render");
    for (line, said) in [
        (
            format!("{line} -- {}", train.replace("some", "secret")),
            "the settings of --config secret.toml, which become part of the command",
        ),
        (
            format!("{program} -- --config some.toml --out /data/a"),
            "--config some.toml is not possible: the nodes do not see the files of this machine",
        ),
    ] {
        let done = place.run(&mut brigade(&place, &line));
        assert!(done.code == Some(2) && done.err.contains(said), "{:?} {}", done.code, done.err);
        assert!(!done.err.contains(secret), "{}", done.err);
    }
}

#[test]
fn pods_of_a_restricted_pytorchjob_need_an_operator_that_is_set_up_for_it() {
    let place = Place::new();
    let said = "--pytorch-init-container-template-file";
    for (line, is_said) in [
        ("--to pytorchjob --nodes 2 --restricted", true),
        ("--to pytorchjob --nodes 2", false),
        ("--to pytorchjob --nodes 1 --restricted", false),
        ("--to jobset --nodes 2 --restricted", false),
    ] {
        let rest = "--gpus 8 --image b:1 --volume data:/data --render jobs -- train --global-batch-size 128 --out /data/a";
        let done = place.succeed(&mut brigade(&place, &format!("submit {line} {rest}")));
        assert_eq!(done.err.contains(said), is_said, "{line}: {}", done.err);
    }
}

#[test]
fn what_cannot_be_submitted_is_refused_before() {
    let place = Place::new();
    for (line, said) in [
        (
            "--to slurm --gpus 0 --render a -- launch --bogus -- ./x",
            "the command after --: unexpected argument '--bogus' found",
        ),
        (
            "--to slurm --gpus 0 --render a -- launch",
            "the command after --: the following required arguments were not provided",
        ),
        (
            "--to ssh --hosts a,b --nodes 2 --gpus 0 --detach -- train --out /shared/a",
            "--detach cannot be used with --to ssh",
        ),
    ] {
        let done = place.run(&mut brigade(&place, &format!("submit {line}")));
        assert!(done.code == Some(2) && done.err.contains(said), "{line}: {:?} {}", done.code, done.err);
        assert!(!place.path("a").exists(), "{line}");
    }
}

fn dry_run(place: &Place, line: &str) -> Done {
    // No other programs than the test's own.
    place.run(place.brigade(&format!("submit --dry-run {line}")).env("PATH", place.path("bin")))
}

#[test]
fn a_dry_run_says_whether_the_model_fits_and_what_is_missing() {
    let place = Place::new();
    let job = "--to jobset --nodes 2 --gpus 8 --gpu-kind h100-80gb --image ghcr.io/me/brigade:1 --volume data:/data";
    let large = "--set model.sequence_length=2048 --set model.width=4096 --set model.layers=32 --set model.heads=32 --global-batch-size 64 --zero 3";
    program(&place, "kubectl", "echo created by the server \"$@\"");
    let done = dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a {large}"));
    assert_eq!(done.code, Some(0), "{}", done.err);
    for said in [
        "# jobset.json",
        "\"JobSet\"",
        "2x8xH100-80GB: 2 nodes of 8 H100-80GB",
        "The command as it is, pp 1 dp 16 zero 3",
        "hours as it is",
        "cost: give the price that you pay with --price-per-gpu-hour",
        "submit:  kubectl create -f jobset.json",
        "kubectl would take the job",
        "not checked: whether ghcr.io/me/brigade:1 has the backend cuda",
    ] {
        assert!(done.out.contains(said), "{said}: {}", done.out);
    }
    program(&place, "kubectl", "echo asked: \"$@\", and the quota is exceeded >&2; exit 1");
    let done = dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a {large}"));
    for said in [
        "missing: the cluster did not accept it: kubectl create --dry-run=server -f ",
        "/jobset.json ended with exit status: 1: asked: create --dry-run=server -f ",
        "/jobset.json, and the quota is exceeded",
    ] {
        assert!(done.code == Some(1) && done.out.contains(said), "{}{}", done.out, done.err);
    }
    let server = r#"case "$*" in *" secret/"*) echo 'Error from server (NotFound): secrets "brigade-token" not found' >&2; exit 1 ;; esac"#;
    program(&place, "kubectl", server);
    let done = dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a {large}"));
    let said = "missing: secret/brigade-token, which is not in the cluster\n";
    assert!(done.code == Some(1) && done.out.contains(said), "{}{}", done.out, done.err);
    program(&place, "kubectl", "exit 0");
    // The GPU hours that are shown are rounded.
    let large_job = format!("{job} -- train --config tiny.toml --out /data/runs/a {large} --steps 100000");
    let done = dry_run(&place, &format!("--price-per-gpu-hour 2.5 {large_job}"));
    let number = |after: &str| {
        let rest = done.out.split_once(after).unwrap_or_else(|| panic!("{after}: {}", done.out)).1;
        rest.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    let (hours, cost) = (number("hours as it is, "), number("\ncost: "));
    assert!(hours > 10.0 && (cost - 2.5 * hours).abs() <= 2.5 * 0.51, "{hours} GPU hours, {cost}");
    for price in ["-1", "much", "inf"] {
        let done = dry_run(&place, &format!("--price-per-gpu-hour {price} {large_job}"));
        assert!(
            done.code == Some(2)
                && done.err.contains("--price-per-gpu-hour")
                && done.err.contains("0 or more"),
            "{price}: {}",
            done.err
        );
    }
    // What training would refuse, or what would not fit into a GPU, is missing.
    for (flags, said) in [
        (
            "--zero 0",
            "of memory on each rank of its fullest stage, for the command as it is; the plans above fit",
        ),
        ("--pp 3", "missing: a valid training command: mesh (--pp, --dp) = pp 3"),
        ("--micro-batch-size 3", "missing: a valid training command: train.global_batch_size"),
        ("--set train.stepz=5", "missing: a valid training command: --set train.stepz=5"),
    ] {
        let without = large_job.replace(" --zero 3", "");
        let done = dry_run(&place, &format!("{without} {flags}"));
        assert!(done.code == Some(1) && done.out.contains(said), "{flags}: {}{}", done.out, done.err);
    }
    let small = job.replace("--nodes 2 --gpus 8 --gpu-kind h100-80gb", "--nodes 1 --gpus 1 --gpu-kind l4");
    let done = dry_run(
        &place,
        &format!("{small} -- train --config tiny.toml --out /data/runs/a {large} --set model.layers=96"),
    );
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.out.contains("No configuration fits"), "{}", done.out);
    let vertex = "--to vertex --region europe-west4 --gpus 8 --gpu-kind a100-80gb --image b:1";
    let long = format!("-- train --config tiny.toml --out gs://bucket/a {large} --steps 100000000");
    let done = dry_run(&place, &format!("{vertex} {long}"));
    assert!(done.out.contains("the job is ended after 168 hours, before "), "{}", done.out);
    let done = dry_run(&place, &format!("{vertex} --time 2-0 {long}"));
    assert!(done.out.contains("the job is ended after 48 hours, before "), "{}", done.out);
    fs::remove_file(place.path("bin/kubectl")).unwrap();
    let done =
        dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a --model /nowhere"));
    let lacks = done.out.contains("no plan: --model /nowhere is not on this machine")
        && done.out.contains("missing: kubectl is not installed on this machine");
    assert!(done.code == Some(1) && lacks, "{}", done.out);
}

#[test]
fn a_dry_run_names_all_that_was_not_given_and_plans() {
    let place = Place::new();
    let job = "--to vertex --nodes 2 --gpus 8 --gpu-kind a100-80gb -- train --config tiny.toml --global-batch-size 64";
    let done = dry_run(&place, job);
    for said in [
        "missing: --out is needed: ",
        "missing: --image is needed: ",
        "missing: --region is needed: ",
        "missing: --token-file is needed: ",
        "missing: gcloud is not installed on this machine",
        "2x8xA100-80GB: 2 nodes of 8 A100-80GB",
    ] {
        assert!(done.code == Some(1) && done.out.contains(said), "{said}: {}{}", done.out, done.err);
    }
    assert!(!done.out.contains("# vertex.json"), "{}", done.out);
}

/// Its configuration is in the cache, its weights need not be.
#[test]
fn a_dry_run_plans_a_model_of_the_hub() {
    let place = Place::new();
    let commit = "a".repeat(40);
    let model = place.path("cache/models--org--model");
    let llama = r#"{ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }"#;
    let files =
        [("refs/main".to_owned(), commit.as_str()), (format!("snapshots/{commit}/config.json"), llama)];
    for (file, content) in files {
        let path = model.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let line = "submit --dry-run --to jobset --gpus 1 --gpu-kind l4 --image b:1 --volume data:/data -- train --model org/model --data /data/text --out /data/a";
    let mut command = place.brigade(line);
    command
        .env("PATH", place.path("bin"))
        .env("HF_HUB_CACHE", place.path("cache"))
        .env("HF_HUB_OFFLINE", "1");
    let done = place.run(&mut command);
    assert!(done.out.contains("1x1xL4") && !done.out.contains("no plan"), "{}{}", done.out, done.err);
    assert!(!done.out.contains("the containers do not see"), "{}", done.out);
}

#[test]
fn a_dry_run_of_an_elastic_job_is_planned_for_the_least_nodes_as_well() {
    let place = Place::new();
    let line = |layers: usize, width: usize| {
        let model = format!(
            "--set model.width={width} --set model.layers={layers} --set model.heads=32 --set model.sequence_length=2048"
        );
        let job = "--to ssh --nodes 1:4 --gpus 8 --hosts a,b,c,d --gpu-kind h100-80gb";
        format!("{job} -- train --config tiny.toml --out /data/a --global-batch-size 64 {model}")
    };
    let fits = dry_run(&place, &line(32, 4096)).out;
    let said = "with 1 node, while the others are missing: ";
    assert!(fits.contains(said) && !fits.contains("would go on"), "{fits}");
    // 32 GPUs hold its gradients, 8 do not.
    let too_large = dry_run(&place, &line(300, 8192));
    assert_eq!(too_large.code, Some(1), "{}", too_large.out);
    let said = "missing: a configuration that fits 1 node, with which the run would go on (--nodes 1:4)";
    assert!(too_large.out.contains(said), "{}", too_large.out);
}

#[test]
fn wrong_input_is_one_message_before_anything_is_submitted() {
    let place = Place::new();
    program(&place, "sbatch", "echo submitted >submitted; echo 7");
    let case = |line: &str, said: &str| {
        let done = place.run(&mut brigade(&place, &format!("submit {line}")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    };
    case(
        "--to slurm --nodes 2 --gpus 0 -- train --out a --stepz 3",
        "the command after --: unexpected argument '--stepz'",
    );
    case("--to slurm --nodes 2 --gpus 0 -- train", "--out is needed");
    // What training would refuse.
    case(
        "--to slurm --nodes 2 --gpus 2 -- train --out a --pp 3",
        "the command after --: mesh (--pp, --dp) = pp 3",
    );
    case(
        "--to slurm --nodes 2 --gpus 0 --render r -- train --out a --nproc-per-node 3",
        "the command after --: train.global_batch_size",
    );
    case(
        "--to slurm --gpus 1 -- train --out a --set train.stepz=5",
        "the command after --: --set train.stepz=5",
    );
    case("--to slurm --gpus 8 --gpu-kind a100-81gb -- train --out a", "kinds are V100-16GB");
    case(
        "--to slurm --gpus 8 --image a -- train --out a",
        "--image cannot be used with --to slurm: it is for vertex, jobset, trainjob, pytorchjob",
    );
    case(
        "--to slurm --gpus 8 --topology near -- train --out a",
        "--topology near is not possible: with Slurm",
    );
    case("--to slurm --gpus 8 --env HF_TOKEN=abc -- train --out a", "--env HF_TOKEN contains a secret");
    case(
        "--to vertex --gpus 8 --shared-nodes -- train --out a",
        "--shared-nodes cannot be used with --to vertex",
    );
    for flag in [
        "--env-secret A=b/c",
        "--cpus 8",
        "--memory 8Gi",
        "--restricted",
        "--annotation a=b",
        "--resource rdma/hca=1",
        "--host-path /a:/b",
        "--capability IPC_LOCK",
    ] {
        let said = format!("{} cannot be used with --to slurm", flag.split(' ').next().unwrap());
        case(&format!("--to slurm --gpus 8 {flag} -- train --out a"), &said);
    }
    case("--to jobset --gpus 8 --image a:1 --env-secret A=b -- train --out a", "it must be NAME=SECRET/KEY");
    case("--to slurm --gpus 8 -- train --out a --backend cpu", "--backend cpu is not possible: each GPU");
    case(
        "--to jobset --gpus 8 --image a:1 --name My_job -- train --out a",
        "--name My_job is not possible: Kubernetes requires",
    );
    case(
        "--to vertex --region europe-west4 --gpus 3 --gpu-kind a100-80gb --image a:1 -- train --out gs://bucket/a",
        "Vertex AI sells A100-80GB in machines with 1, 2, 4 or 8",
    );
    case(
        "--to vertex --region europe-west4 --gpus 8 --gpu-kind a100-80gb --image a:1 -- train --out gs://B/a",
        "a bucket's name has",
    );
    assert!(!place.path("submitted").exists());
    let line = "submit --to slurm --gpus 8 --gpu-kind h100 --render r";
    let train = "-- train --global-batch-size 8 --micro-batch-size 1 --out a";
    for (option, is_noted) in
        [("", true), ("--option=--gres=gpu:h100:8", false), ("--option=--constraint=h100", false)]
    {
        let done = place.succeed(&mut brigade(&place, &format!("{line} {option} {train}")));
        assert_eq!(
            done.err.contains("not checked: whether the nodes have H100-80GB"),
            is_noted,
            "{}",
            done.err
        );
    }
    // What only the nodes have is not looked at: their program, their files.
    for line in [
        "--backend cuda --collectives nccl --out a",
        "--config /nodes/my.toml --out a",
        "--resume /nodes/run",
    ] {
        let line = format!(
            "submit --to slurm --gpus 8 --render r -- train --set train.global_batch_size=8 --set train.micro_batch_size=1 {line}"
        );
        place.succeed(&mut brigade(&place, &line));
    }
}
