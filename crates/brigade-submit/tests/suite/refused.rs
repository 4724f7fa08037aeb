//! What is refused before anything is submitted; what only Kubernetes refuses is in `refused_on_kubernetes`.

use brigade_submit::{Controller, GpuKind, Job, Kubernetes, Slurm, Ssh, System, Token, Vertex};

use crate::jobs::{CONTROLLERS, job, kubernetes, manifest, slurm, ssh, vertex};

#[track_caller]
pub fn refused(system: &dyn System, job: &Job, said: &str) {
    let message = job.check().and_then(|()| system.check(job)).unwrap_err().to_string();
    assert!(message.contains(said), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn elastic_jobs_are_for_hosts_by_ssh() {
    let elastic = Job { least_nodes: Some(2), ..job("train --out /data/a --last-call 5") };
    ssh("a,b,c,d").check(&elastic).unwrap();
    elastic.check().unwrap();
    for (system, name) in [
        (&slurm() as &dyn System, "Slurm"),
        (&vertex(), "Vertex AI"),
        (&kubernetes(Controller::JobSet), "a controller on Kubernetes"),
    ] {
        let said = format!("--nodes 2:4 is not possible: {name} starts as many nodes each time");
        refused(system, &elastic, &said);
    }
}

#[test]
fn jobs_that_no_system_takes() {
    let fine = job("train --out /data/a");
    let system = kubernetes(Controller::JobSet);
    system.check(&fine).unwrap();
    let with = |line: &str| job(&format!("train --out /data/a {line}"));
    for (job, said) in [
        (Job { nodes: 0, ..fine.clone() }, "--nodes 0 is not possible"),
        (
            Job { least_nodes: Some(4), ..fine.clone() },
            "--nodes 4:4 is not possible: in MIN:MAX, MIN must be",
        ),
        (
            Job { least_nodes: Some(0), ..fine.clone() },
            "--nodes 0:4 is not possible: in MIN:MAX, MIN must be",
        ),
        (Job { nodes: 129, ..fine.clone() }, "1032 ranks, but a world has at most 1024"),
        (Job { gpus: 0, ..fine.clone() }, "--gpus is needed: how many H100-80GB"),
        (job("generate --out a"), "it must be train … or launch …"),
        (job("train"), "--out is needed"),
        (with("--node-rank 3"), "--node-rank 3 is not possible: the system numbers the nodes"),
        (with("--nnodes 2:4"), "--nnodes 2:4 is not possible: leave it out, and give --nodes MIN:MAX"),
        (with("--nnodes 2"), "--nnodes 2 is not possible: the system numbers the nodes"),
        (with("--last-call 5"), "--last-call 5 is not possible: it is for nodes that come and go"),
        (with("--nproc-per-node=4"), "--nproc-per-node 4 is not possible: each of the 8 GPUs"),
        (with("--backend cpu"), "--backend cpu is not possible: each of the 8 GPUs has one rank"),
        (with("--set compute.backend=cpu"), "--backend cpu is not possible"),
        (
            with("--overwrite"),
            "--overwrite in a job is not possible: each restart of the job would delete the run",
        ),
        (with("--preemption-grace soon"), "--preemption-grace soon is not possible"),
        (
            with("--preemption-grace inf"),
            "--preemption-grace inf is not possible: it must be a number of seconds",
        ),
        (with("--preemption-grace nan"), "--preemption-grace nan is not possible"),
        (with("--preemption-grace=-1"), "--preemption-grace -1 is not possible"),
        (job("launch --preemption-grace inf -- ./a"), "--preemption-grace inf is not possible"),
        (job("launch --preemption-grace 70000 -- ./a"), "--preemption-grace 70000 is not possible"),
        (
            Job { grace_seconds: u64::MAX, ..fine.clone() },
            "--grace 18446744073709551615 is not possible: it must be a number of seconds from 0 to 65505",
        ),
        (Job { grace_seconds: 65_506, ..fine.clone() }, "--grace 65506 is not possible"),
        (
            Job { max_restarts: u32::MAX, ..fine.clone() },
            "--restarts 4294967295 is not possible: it must be at most",
        ),
        (Job { program: String::new(), ..fine.clone() }, "--program '' is not possible: it must be the name"),
        (with("--set a.password=x"), "argument 5 of the command after -- contains a secret"),
        (Job { env: [("A B".into(), String::new())].into(), ..fine.clone() }, "--env A B is not possible"),
        (
            Job { env: [("BRIGADE_TOKEN_FILE".into(), "/x".into())].into(), ..fine.clone() },
            "--env BRIGADE_TOKEN_FILE is not possible: the job sets it itself: give --token-file",
        ),
        (Job { env: [("BRIGADE_TOKEN".into(), String::new())].into(), ..fine.clone() }, "give --token-file"),
        (
            Job { env: [("HF_TOKEN".into(), "x".into())].into(), ..fine.clone() },
            "--env HF_TOKEN contains a secret",
        ),
    ] {
        refused(&system, &job, said);
    }
    Job { grace_seconds: 65_505, ..fine.clone() }.check().unwrap();
    let most = Job { max_restarts: 2_147_483_000, ..fine };
    most.check().unwrap();
    for controller in CONTROLLERS {
        let text = kubernetes(controller).manifests(&most)[0].text.clone();
        let counts = text.lines().filter_map(|line| line.trim().split_once(": "));
        let counts = counts.filter(|(name, _)| ["\"maxRestarts\"", "\"backoffLimit\""].contains(name));
        for (_, count) in counts {
            count.trim_end_matches(',').parse::<i32>().unwrap();
        }
    }
}

#[test]
fn results_may_go_to_a_bucket() {
    let without_volume = Kubernetes { claims: Vec::new(), ..kubernetes(Controller::JobSet) };
    for line in ["train --out gs://bucket/runs/a", "train --resume s3://bucket/runs/a"] {
        let job = job(line);
        job.check().unwrap();
        without_volume.check(&job).unwrap();
        slurm().check(&job).unwrap();
        let manifest = manifest(&without_volume, &job).to_string();
        assert!(manifest.contains("://bucket/runs/a") && !manifest.contains("checkpoint.dir"), "{manifest}");
    }
    let lost = job("train --out gs://bucket/a --set checkpoint.dir=/tmp/c");
    refused(&without_volume, &lost, "--set checkpoint.dir /tmp/c is not possible: no --volume");
}

#[test]
fn checkpoints_outlive_the_machines() {
    let pods = kubernetes(Controller::JobSet);
    for place in ["/data/c", "gs://bucket/c", "''"] {
        let job = job(&format!("train --out /data/a --set checkpoint.dir={place}"));
        job.check().and_then(|()| pods.check(&job)).unwrap();
    }
    let lost =
        "no --volume CLAIM:PATH contains it, so what a pod writes there would be lost when the pod ends";
    refused(
        &pods,
        &job("train --out /data/a --set checkpoint.dir='/tmp/c'"),
        &format!("--set checkpoint.dir /tmp/c is not possible: {lost}"),
    );
    refused(&pods, &job("train --out /data/a --set checkpoint.dir=c"), lost);
    let of_file = |out: &str, dir: &str| Job {
        checkpoint_dir: Some(dir.into()),
        ..job(&format!("train --config a.toml --out {out}"))
    };
    refused(&pods, &of_file("/data/a", "/tmp/c"), &format!("checkpoint.dir /tmp/c is not possible: {lost}"));
    let bucket = "gs://bucket/a";
    for place in ["gs://other/c", "s3://other/c", "/gcs/other/c"] {
        vertex().check(&of_file(bucket, place)).unwrap();
    }
    let shared = "is not possible: the machines of a job only share buckets: give gs://BUCKET/PATH";
    refused(&vertex(), &of_file(bucket, "/tmp/c"), &format!("checkpoint.dir /tmp/c {shared}"));
    refused(&vertex(), &job(&format!("train --out {bucket} --set checkpoint.dir=/tmp/c")), shared);
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
    refused(&vertex(), &of("h200", 4), "Vertex AI offers H200 in machines with 8");
    refused(&vertex(), &of("l40s", 1), "Vertex AI does not offer L40S");
    refused(&vertex(), &Job { gpu_kind: None, ..fine.clone() }, "--gpu-kind is needed");
    refused(&vertex(), &Job { gpus: 0, gpu_kind: None, ..fine.clone() }, "--machine-type is needed");
    refused(&vertex(), &job("train --out runs/a"), "only share buckets");
    refused(&vertex(), &job("train --out gs://Bucket/a"), "a bucket's name has");
    refused(&vertex(), &job("train --out s3://bucket/a"), "Google Cloud buckets");
    refused(
        &vertex(),
        &job("train --resume runs/a"),
        "--resume runs/a is not possible: the machines of a job only",
    );
    refused(
        &vertex(),
        &job("train --out gs://bucket/a --config s3://bucket/a.toml"),
        "--config s3://bucket/a.toml",
    );
    refused(&system(|system| system.region = None), &fine, "--region is needed");
    refused(&system(|system| system.region = Some("europe-west4-a".into())), &fine, "it is a zone");
    refused(&system(|system| system.project = Some("My Project".into())), &fine, "--project My Project");
    refused(&system(|system| system.service_account = Some("a".into())), &fine, "--service-account a is not");
    refused(&vertex(), &job("train --out gs://bucket/a%20b"), "no ?, # and %");
    refused(
        &vertex(),
        &job("train --out gs://bucket/a --model s3://bucket/llama"),
        "--model s3://bucket/llama",
    );
    refused(&system(|system| system.token_file = None), &fine, "--token-file is needed");
    refused(
        &system(|system| system.token_file = Some("/tmp/token".into())),
        &fine,
        "--token-file /tmp/token",
    );
}

#[test]
fn all_that_was_not_given_is_known_at_once() {
    let names = |missing: Vec<brigade_submit::Error>| {
        let name = |error: brigade_submit::Error| error.to_string().split(' ').next().unwrap().to_owned();
        missing.into_iter().map(name).collect::<Vec<_>>()
    };
    let nothing = Job { gpu_kind: None, ..job("train") };
    assert_eq!(names(nothing.missing().into_iter().collect()), ["--out"]);
    nothing.check_given().unwrap();
    assert_eq!(
        names(Vertex::default().missing(&nothing)),
        ["--image", "--region", "--gpu-kind", "--token-file"]
    );
    let on_cpus = Job { nodes: 1, gpus: 0, ..nothing.clone() };
    assert_eq!(names(Vertex::default().missing(&on_cpus)), ["--image", "--region", "--machine-type"]);
    assert!(names(vertex().missing(&job("train"))).is_empty());
    let without_image = Kubernetes { image: None, ..kubernetes(Controller::JobSet) };
    assert_eq!(names(without_image.missing(&nothing)), ["--image"]);
}

#[test]
fn times_and_paths_that_vertex_ai_does_not_take() {
    let fine = job("train --out gs://bucket/runs/a");
    let limited = |time: &str| Vertex { time: Some(time.into()), ..vertex() };
    refused(&limited("2h"), &fine, "--time 2h is not possible: it must have a form that sbatch takes");
    let small = Vertex { boot_disk_gb: Some(50), ..vertex() };
    refused(&small, &fine, "--boot-disk-gb 50 is not possible: Vertex AI offers disks of 100 to 64000 GB");
    refused(&limited("UNLIMITED"), &fine, "Vertex AI runs no job without a limit");
    refused(
        &vertex(),
        &job("train --out /gcs/bucket/../../tmp"),
        "--out /gcs/bucket/../../tmp is not possible: it must have no part ..",
    );
}

#[test]
fn machines_of_vertex_ai_have_the_gpus_that_were_asked_for() {
    let fine = job("train --out gs://bucket/runs/a");
    let on = |machine: &str| Vertex { machine_type: Some(machine.into()), ..vertex() };
    let of = |kind, gpus| Job { gpus, gpu_kind: Some(GpuKind::named(kind).unwrap()), ..fine.clone() };
    let none = Job { gpus: 0, gpu_kind: None, ..fine.clone() };
    refused(
        &on("n1-standard-4"),
        &fine,
        "--machine-type n1-standard-4 is not possible: Vertex AI offers 8 H100-80GB in a3-highgpu-8g",
    );
    refused(&on("a3-highgpu-4g"), &fine, "--machine-type a3-highgpu-4g is not possible");
    refused(&on("g2-standard-24"), &of("l4", 1), "Vertex AI offers 1 L4 in g2-standard-12, g2-standard-4");
    refused(
        &on("a3-highgpu-8g"),
        &none,
        "it has GPUs: give --gpus 8 --gpu-kind h100-80gb, or a machine without GPUs",
    );
    on("a3-highgpu-8g").check(&fine).unwrap();
    on("g2-standard-32").check(&of("l4", 1)).unwrap();
    on("n1-highmem-8").check(&of("v100", 2)).unwrap();
    // How many vCPUs a machine may have depends on its GPUs.
    refused(
        &on("n1-standard-96"),
        &of("v100", 1),
        "Vertex AI offers 1 V100-16GB in n1-standard-8, and in others of n1- with at most 12 vCPUs",
    );
    for (machine, kind, gpus) in
        [("n1-standard-16", "v100", 1), ("n1-highcpu-32", "p100", 1), ("n1-standard-64", "t4", 2)]
    {
        refused(&on(machine), &of(kind, gpus), "with at most ");
    }
    for (machine, kind, gpus) in
        [("n1-standard-96", "v100", 8), ("n1-standard-32", "p100", 2), ("n1-standard-96", "p4", 4)]
    {
        on(machine).check(&of(kind, gpus)).unwrap();
    }
    refused(
        &on("zzz"),
        &none,
        "--machine-type zzz is not possible: it must be a machine type of Google Cloud",
    );
    refused(&on("a3-highgpu-8g"), &of("v100", 8), "Vertex AI offers 8 V100-16GB in n1-standard-64");
    on("n1-standard-16").check(&of("t4", 4)).unwrap();
    refused(&vertex(), &of("t4", 8), "Vertex AI offers T4 in machines with 1, 2 or 4");
    refused(
        &on("n1-standard-7"),
        &none,
        "--machine-type n1-standard-7 is not possible: Vertex AI offers n1-standard-N with N = 4, 8",
    );
    refused(&on("n1-ultramem-40"), &of("v100", 1), "n1-highmem-N with N = 2, 4");
    refused(&on("a3-megagpu-8g"), &none, "give --gpus 8 --gpu-kind h100-80gb");
    refused(&on("a3-highgpu-16g"), &none, "it has GPUs: give --gpus and --gpu-kind");
    for machine in ["a4x-highgpu-4g", "g4-standard-48"] {
        let said = "--gpu-kind has no name for its GPUs; machines with usable GPUs are those of a2-, a3-, a4-, g2-, and of n1-";
        refused(&on(machine), &none, said);
    }
    // Machines of this series can do without GPUs.
    on("n1-standard-8").check(&none).unwrap();
}

#[test]
fn what_slurm_and_ssh_do_not_take() {
    let fine = job("train --out /data/a");
    slurm().check(&fine).unwrap();
    refused(&slurm(), &Job { name: "a/b".into(), ..fine.clone() }, "--name a/b is not possible");
    refused(
        &slurm(),
        &job("train --out /data/a --model gs://bucket/llama"),
        "--model gs://bucket/llama is not possible: models are read from folders: give one that all nodes share, or",
    );
    refused(&Slurm { options: vec!["rm -r".into()], ..slurm() }, &fine, "--option rm -r is not possible");
    let both = Slurm { shared_nodes: true, options: vec!["--exclusive=user".into()], ..slurm() };
    refused(&both, &fine, "--shared-nodes with --option=--exclusive=… is not possible");
    refused(&Slurm { partition: Some("a b".into()), ..slurm() }, &fine, "--partition a b is not possible");
    let exported = Slurm { options: vec!["--export=HF_TOKEN=whatever".into()], ..slurm() };
    let message = exported.check(&fine).unwrap_err().to_string();
    assert!(message.starts_with("--option contains a secret") && !message.contains("whatever"), "{message}");
    for option in ["--output=x.log", "--comment=a\nb"] {
        refused(&Slurm { options: vec![option.into()], ..slurm() }, &fine, "--option --");
    }
    for file in ["gs://bucket/token", ""] {
        let system = Slurm { token: Token::File(file.into()), ..slurm() };
        refused(
            &system,
            &fine,
            "is not possible: with Slurm it must be the path of a file that the nodes can read",
        );
    }
    let nowhere = Ssh { hosts: Vec::new(), ..ssh("a") };
    let message = nowhere.check(&fine).unwrap_err().to_string();
    assert!(
        message.starts_with("--hosts is needed: where the job runs, as many as --nodes, which is 4"),
        "{message}"
    );
    for (hosts, said) in [
        ("one,two", "there are 2 hosts, but --nodes is 4"),
        ("a,b,c,-oProxyCommand=x", "each must be [user@]host"),
        ("a:22,b,c,d", "--hosts a:22 is not possible: each must be [user@]host"),
        ("a,b,c,d:22", "--hosts d:22 is not possible"),
        ("a@,b,c,d", "--hosts a@ is not possible"),
        ("@a,b,c,d", "--hosts @a is not possible"),
        (",b,c,d", "--hosts '' is not possible"),
        ("[::1]:22,b,c,d", "--hosts [::1]:22 is not possible"),
    ] {
        let message = ssh(hosts).check(&fine).unwrap_err().to_string();
        assert!(message.contains(said), "{message}");
    }
    for (address, shown) in [("", "''"), ("1.2.3.4:1", "1.2.3.4:1"), ("a b", "a b"), ("me@a", "me@a")] {
        let message =
            Ssh { address: Some(address.into()), ..ssh("a,b,c,d") }.check(&fine).unwrap_err().to_string();
        let said = format!(
            "--address {shown} is not possible: it must be a host name or an address, without a port"
        );
        assert!(message.starts_with(&said), "{message}");
    }
}

#[test]
fn a_job_of_slurm_has_time_to_train_before_it_saves() {
    let limited = |time: &str| Slurm { time: Some(time.into()), ..slurm() };
    let (short, long) = (job("train --out /data/a"), job("train --out /data/a --preemption-grace 600"));
    refused(
        &limited("3"),
        &short,
        "--time 3 is not possible: with --grace 120 the ranks are told to save 150 s before the end, or up to 60 s earlier, so it \
         must be longer than 210 s",
    );
    refused(&limited("0:10:00"), &long, "with --preemption-grace 600 the ranks");
    refused(&limited("2h"), &short, "it must have a form that sbatch takes");
    for time in ["4", "3:31", "0", "1-0", "UNLIMITED"] {
        limited(time).check(&short).unwrap();
    }
}
