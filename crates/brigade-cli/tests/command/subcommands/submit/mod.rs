//! `brigade submit`

mod checked_jobs;
mod dry_run;
mod over_ssh;
mod ssh_network;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;

use crate::place::Place;
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
    // No registry is asked.
    program(&place, "skopeo", "exit 1");
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

#[test]
fn an_image_without_the_backend_is_refused_before_anything_is_submitted() {
    let place = Place::new();
    program(
        &place,
        "kubectl",
        "case \"$*\" in *create*) touch created ;; esac; echo jobset.jobset.x-k8s.io/a",
    );
    let line = "--to jobset --gpus 8 --image host/b:1 --volume data:/data -- train --global-batch-size 64 --out /data/a";
    let labelled = |backend: &str| {
        format!("echo \"$*\" >asked; echo '{{ \"Labels\": {{ \"dev.brigade.backend\": \"{backend}\" }} }}'")
    };
    program(&place, "skopeo", &labelled("cpu"));
    let said =
        "an image with the backend cuda: host/b:1 was built for cpu, as its label dev.brigade.backend says";
    let done = place.run(&mut brigade(&place, &format!("submit {line}")));
    assert_eq!(done.code, Some(1), "{}", done.err);
    let message = format!("nothing was submitted, as the job needs: {said}");
    assert!(done.err.contains(&message) && !place.path("created").exists(), "{}", done.err);
    assert_eq!(place.text("asked"), "inspect docker://host/b:1\n");
    let done = place.run(&mut brigade(&place, &format!("submit --dry-run {line}")));
    assert!(done.code == Some(1) && done.out.contains(&format!("missing: {said}")), "{}", done.out);
    let note = "not checked: whether host/b:1 has the backend cuda";
    program(&place, "skopeo", &labelled("cuda"));
    let done = place.run(&mut brigade(&place, &format!("submit --dry-run {line}")));
    assert!(!done.out.contains(note) && !done.out.contains(said), "{}", done.out);
    // What does not say it, or cannot be asked, is no reason not to try.
    for (script, rest) in
        [("echo '{}'", " docker://host/b:1)"), ("echo unauthorized >&2; exit 1", ": unauthorized")]
    {
        program(&place, "skopeo", script);
        let done = place.run(&mut brigade(&place, &format!("submit --dry-run {line}")));
        let line =
            done.out.lines().find(|line| line.starts_with(note)).unwrap_or_else(|| panic!("{}", done.out));
        assert!(line.ends_with(rest) && !done.out.contains(said), "{}", done.out);
    }
    // Nobody is asked about files that are only written.
    program(&place, "skopeo", &labelled("cpu"));
    fs::remove_file(place.path("asked")).unwrap();
    let done = place.succeed(&mut brigade(&place, &format!("submit --render jobs {line}")));
    assert!(done.err.contains(note) && !place.path("asked").exists(), "{}", done.err);
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
    case(
        "--to slurm --gpus 8 -- train --out a --backend cpu",
        "--backend cpu is not possible: each of the 8 GPUs",
    );
    case(
        "--to jobset --gpus 8 --image a:1 --name My_job -- train --out a",
        "--name My_job is not possible: Kubernetes requires",
    );
    case(
        "--to vertex --region europe-west4 --gpus 3 --gpu-kind a100-80gb --image a:1 -- train --out gs://bucket/a",
        "Vertex AI offers A100-80GB in machines with 1, 2, 4 or 8",
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
