//! What is refused before anything is submitted.

use brigade_submit::{Claim, Controller, GpuKind, Job, Kubernetes, Slurm, System, Vertex};

use crate::jobs::{job, kubernetes, slurm, ssh, vertex};

#[track_caller]
fn refused(system: &dyn System, job: &Job, said: &str) {
    let message = job.check().and_then(|()| system.check(job)).unwrap_err().to_string();
    assert!(message.contains(said), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn jobs_that_no_system_takes() {
    let fine = job("train --out /data/a");
    let system = kubernetes(Controller::JobSet);
    system.check(&fine).unwrap();
    let with = |line: &str| job(&format!("train --out /data/a {line}"));
    for (job, said) in [
        (Job { nodes: 0, ..fine.clone() }, "--nodes 0 is not possible"),
        (Job { nodes: 129, ..fine.clone() }, "1032 ranks, but a world has at most 1024"),
        (Job { gpus: 0, ..fine.clone() }, "--gpus is needed: how many H100-80GB"),
        (job("generate --out a"), "it must be train … or launch …"),
        (job("train"), "--out is needed"),
        (with("--node-rank 3"), "--node-rank 3 is not possible: the system numbers the nodes"),
        (with("--nproc-per-node=4"), "--nproc-per-node 4 is not possible: each GPU of --gpus 8"),
        (with("--preemption-grace soon"), "--preemption-grace soon is not possible"),
        (with("--set a.password=x"), "argument 5 of the command after -- contains a secret"),
        (Job { env: [("A B".into(), String::new())].into(), ..fine.clone() }, "--env A B is not possible"),
        (
            Job { env: [("HF_TOKEN".into(), "x".into())].into(), ..fine.clone() },
            "--env HF_TOKEN contains a secret",
        ),
    ] {
        refused(&system, &job, said);
    }
}

#[test]
fn what_kubernetes_does_not_take() {
    let fine = job("train --out /data/a");
    let system = |change: fn(&mut Kubernetes)| {
        let mut system = kubernetes(Controller::JobSet);
        change(&mut system);
        system
    };
    for name in ["Llama", "llama_7b", "7b", &"a".repeat(49)] {
        refused(
            &kubernetes(Controller::JobSet),
            &Job { name: name.into(), ..fine.clone() },
            &format!("--name {name} is not possible: Kubernetes requires"),
        );
    }
    for controller in [Controller::JobSet, Controller::TrainJob] {
        kubernetes(controller).check(&Job { name: "a".repeat(48), ..fine.clone() }).unwrap();
    }
    kubernetes(Controller::PyTorchJob).check(&Job { name: "a".repeat(54), ..fine.clone() }).unwrap();
    refused(&system(|system| system.image = None), &fine, "--image is needed");
    refused(
        &system(|system| system.image = Some("Me/Brigade".into())),
        &fine,
        "--image Me/Brigade is not possible",
    );
    refused(&system(|system| system.token_secret = "A".into()), &fine, "--token-secret A is not possible");
    refused(&system(|system| system.claims.clear()), &fine, "no --volume CLAIM:PATH contains it");
    let relative =
        |system: &mut Kubernetes| system.claims.push(Claim { name: "a".into(), path: "data".into() });
    refused(&system(relative), &fine, "--volume a:data is not possible");
    refused(&system(|_| ()), &job("train --out gs://bucket/a"), "give a folder of a volume");
}

#[test]
fn what_vertex_ai_does_not_take() {
    let fine = job("train --out gs://bucket/runs/a");
    vertex().check(&fine).unwrap();
    let system = |change: fn(&mut Vertex)| {
        let mut system = vertex();
        change(&mut system);
        system
    };
    let of = |kind, gpus| Job { gpus, gpu_kind: Some(GpuKind::named(kind).unwrap()), ..fine.clone() };
    refused(&vertex(), &of("h200", 4), "Vertex AI sells H200 in machines with 8");
    refused(&vertex(), &of("l40s", 1), "Vertex AI does not sell L40S");
    refused(&vertex(), &Job { gpu_kind: None, ..fine.clone() }, "--gpu-kind is needed");
    refused(&vertex(), &Job { gpus: 0, gpu_kind: None, ..fine.clone() }, "--machine-type is needed");
    refused(&vertex(), &job("train --out runs/a"), "only share buckets");
    refused(&vertex(), &job("train --out gs://Bucket/a"), "a bucket's name has");
    refused(&vertex(), &job("train --out s3://bucket/a"), "Google Cloud buckets");
    refused(&system(|system| system.region = None), &fine, "--region is needed");
    refused(&system(|system| system.token_file = None), &fine, "--token-file is needed");
    refused(
        &system(|system| system.token_file = Some("/tmp/token".into())),
        &fine,
        "--token-file /tmp/token",
    );
}

#[test]
fn what_slurm_and_ssh_do_not_take() {
    let fine = job("train --out /data/a");
    slurm().check(&fine).unwrap();
    refused(&slurm(), &Job { name: "a/b".into(), ..fine.clone() }, "--name a/b is not possible");
    refused(&slurm(), &job("train --out s3://bucket/a"), "give a folder that all nodes share");
    refused(&Slurm { options: vec!["rm -r".into()], ..slurm() }, &fine, "--option rm -r is not possible");
    refused(&Slurm { partition: Some("a b".into()), ..slurm() }, &fine, "--partition a b is not possible");
    for (hosts, said) in [
        ("one,two", "there are 2 hosts, but --nodes is 4"),
        ("a,b,c,-oProxyCommand=x", "each must be [user@]host"),
    ] {
        let message = ssh(hosts).check(&fine).unwrap_err().to_string();
        assert!(message.contains(said), "{message}");
    }
}
