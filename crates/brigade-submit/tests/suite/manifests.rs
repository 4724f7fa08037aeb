//! What manifests say.

use brigade_launch::exit;
use brigade_submit::{
    Claim, Controller, EnvSecret, GpuKind, HostPath, Job, Kubernetes, System, Vertex, job_name,
};
use serde_json::{Value, json};

use crate::jobs::{CONTROLLERS, job, kubernetes, manifest, pod_of, pod_template_of, slurm, vertex, words};
use crate::schema::problems;

pub const TRAIN: &str = "train --config a.toml --out /data/runs/a --set train.steps=[1,2]";

/// The objects that the controllers take.
const KINDS: [&str; 3] = ["JobSet", "TrainJobs", "PyTorchJob"];

#[test]
fn manifests_are_what_the_apis_allow() {
    let one = Job { nodes: 1, gpus: 0, gpu_kind: None, ..job(TRAIN) };
    for job in [job(TRAIN), one] {
        for (controller, kind) in CONTROLLERS.into_iter().zip(KINDS) {
            let found = problems(kind, &manifest(&kubernetes(controller), &job));
            assert!(found.is_empty(), "{kind}: {found:#?}");
        }
    }
    let buckets = job("train --out gs://bucket/runs/a");
    for nodes in [1, 4] {
        let job = Job { nodes, ..buckets.clone() };
        let found = problems("CustomJobSpec", &manifest(&vertex(), &job));
        assert!(found.is_empty(), "{found:#?}");
    }
    // Every shape that is said to be sold has a name that the API has.
    for kind in ["v100-16gb", "t4", "p4", "p100", "l4", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200"]
    {
        let kind = GpuKind::named(kind).unwrap();
        for shape in kind.vertex {
            let job = Job { gpus: shape.gpus, gpu_kind: Some(kind), ..buckets.clone() };
            let found = problems("CustomJobSpec", &manifest(&vertex(), &job));
            assert!(found.is_empty(), "{found:#?}");
        }
    }
}

#[test]
fn pods_have_time_to_save_memory_to_share_and_a_secret_in_a_file() {
    for controller in CONTROLLERS {
        let manifest = manifest(&kubernetes(controller), &job(TRAIN));
        let pod = pod_of(controller, &manifest);
        assert_eq!(pod["terminationGracePeriodSeconds"], 150);
        let container = &pod["containers"][0];
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "8");
        let args: Vec<&str> =
            container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
        let line = args.join(" ");
        for said in [
            "--preemption-grace 120",
            "--resume auto",
            "--backend cuda",
            "--nproc-per-node 8",
            "--set train.steps=[1,2]",
        ] {
            assert!(line.contains(said), "{line}");
        }
        assert_eq!((container["command"].clone(), args[0]), (json!(["brigade"]), "train"));
        let volumes = pod["volumes"].as_array().unwrap();
        assert!(volumes.contains(&json!({ "name": "shm", "emptyDir": { "medium": "Memory" } })));
        assert!(volumes.contains(
            &json!({ "name": "token", "secret": { "secretName": "brigade-token", "defaultMode": 0o440 } })
        ));
        assert!(
            volumes
                .contains(&json!({ "name": "volume-0", "persistentVolumeClaim": { "claimName": "data" } }))
        );
        let env = container["env"].as_array().unwrap();
        let value = |name: &str| {
            env.iter().find(|variable| variable["name"] == name).map(|variable| &variable["value"])
        };
        assert_eq!(value("BRIGADE_TOKEN_FILE").unwrap(), "/run/secrets/brigade/token");
        assert_eq!(value("NCCL_CROSS_NIC").unwrap(), "0");
        assert_eq!((value("NCCL_SOCKET_IFNAME").unwrap(), value("BRIGADE_TOKEN")), (&json!("eth0"), None));
        let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        assert_eq!(terms[1]["matchExpressions"][0]["values"][0], "NVIDIA-H100-80GB-HBM3");
        let near = &pod["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(near["podAffinityTerm"]["topologyKey"], "cloud.google.com/gce-topology-block");
    }
    // What the user says of the save counts for the pod, too.
    let longer =
        manifest(&kubernetes(Controller::JobSet), &job(&format!("{TRAIN} --preemption-grace 599.5")));
    assert_eq!(pod_of(Controller::JobSet, &longer)["terminationGracePeriodSeconds"], 630);
    assert!(!longer.to_string().contains("\"120\""));
}

/// Kubernetes may start pods one by one, as machines become free; a pod that gave up would count as a failure.
#[test]
fn pods_wait_for_those_that_have_no_machine_yet() {
    for controller in CONTROLLERS {
        let text = |job: &Job| manifest(&kubernetes(controller), job).to_string();
        assert!(text(&job(TRAIN)).contains(r#""--rdzv-timeout","86400""#), "{}", text(&job(TRAIN)));
        let given = text(&job(&format!("{TRAIN} --rdzv-timeout 7")));
        assert!(given.contains(r#""--rdzv-timeout","7""#) && !given.contains("86400"), "{given}");
        assert!(!text(&Job { nodes: 1, ..job(TRAIN) }).contains("--rdzv-timeout"));
    }
    assert!(!slurm().manifests(&job(TRAIN))[0].text.contains("--rdzv-timeout"));
    assert!(vertex().manifests(&job(TRAIN))[0].text.contains("--rdzv-timeout"));
}

#[test]
fn pods_have_the_resources_and_the_restrictions_that_were_asked_for() {
    let plain = manifest(&kubernetes(Controller::JobSet), &job(TRAIN));
    let pod = pod_of(Controller::JobSet, &plain);
    assert_eq!(pod["securityContext"], json!({ "fsGroup": 65_532, "fsGroupChangePolicy": "OnRootMismatch" }));
    assert_eq!(pod["containers"][0]["resources"], json!({ "limits": { "nvidia.com/gpu": "8" } }));
    let secret = EnvSecret { variable: "HF_TOKEN".into(), secret: "hub".into(), key: "token".into() };
    for (controller, kind) in CONTROLLERS.into_iter().zip(KINDS) {
        let system = Kubernetes {
            env_secrets: vec![secret.clone()],
            cpus: Some("7500m".into()),
            memory: Some("64Gi".into()),
            restricted: true,
            image_pull_secrets: words("registry"),
            tolerations: words("dedicated=training:NoSchedule spot"),
            priority_class: Some("high".into()),
            ..kubernetes(controller)
        };
        let manifest = manifest(&system, &job(TRAIN));
        assert!(problems(kind, &manifest).is_empty(), "{:#?}", problems(kind, &manifest));
        let pod = pod_of(controller, &manifest);
        assert_eq!(
            pod["securityContext"],
            json!({ "fsGroup": 65_532, "fsGroupChangePolicy": "OnRootMismatch", "runAsNonRoot": true, "runAsUser": 65_532,
                    "seccompProfile": { "type": "RuntimeDefault" } })
        );
        assert_eq!(
            (&pod["imagePullSecrets"], &pod["priorityClassName"]),
            (&json!([{ "name": "registry" }]), &json!("high"))
        );
        assert_eq!(
            pod["tolerations"],
            json!([
                { "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" },
                { "key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule" },
                { "key": "spot", "operator": "Exists" },
            ])
        );
        let names: Vec<String> = system.needed(&job(TRAIN)).into_iter().map(|needed| needed.name).collect();
        let all = "secret/brigade-token secret/hub secret/registry persistentvolumeclaim/data localqueue.kueue.x-k8s.io/team priorityclass/high";
        assert_eq!(names.join(" "), all);
        let container = &pod["containers"][0];
        assert_eq!(
            container["securityContext"],
            json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
        );
        assert_eq!(
            container["resources"],
            json!({ "requests": { "cpu": "7500m", "memory": "64Gi" },
                    "limits": { "cpu": "7500m", "memory": "64Gi", "nvidia.com/gpu": "8" } })
        );
        let variable =
            json!({ "name": "HF_TOKEN", "valueFrom": { "secretKeyRef": { "name": "hub", "key": "token" } } });
        assert!(container["env"].as_array().unwrap().contains(&variable), "{container}");
    }
}

/// A restarted pod has nothing of what it wrote elsewhere.
#[test]
fn pods_keep_their_caches_beside_their_results() {
    const KEPT: &str = "/data/runs/.brigade-cache";
    let caches = |system: &Kubernetes, job: &Job| {
        let manifest = manifest(system, job);
        let env = pod_of(system.controller, &manifest)["containers"][0]["env"].as_array().unwrap().clone();
        env.into_iter()
            .find(|variable| variable["name"] == "BRIGADE_CACHE_DIR")
            .map(|found| found["value"].clone())
    };
    for controller in CONTROLLERS {
        let mut system = kubernetes(controller);
        // The first volume may be one that nobody writes to.
        system.claims.insert(0, Claim { name: "text".into(), path: "/text".into() });
        assert_eq!(caches(&system, &job(TRAIN)), Some(KEPT.into()));
        let set = format!("{TRAIN} --set data.cache_dir=/mine");
        assert_eq!(caches(&system, &job(&set)), None);
        assert_eq!(caches(&system, &job("train --out gs://bucket/a")), None);
        for name in ["XDG_CACHE_HOME", "BRIGADE_CACHE_DIR"] {
            let own = Job { env: [(name.into(), "/mine".into())].into(), ..job(TRAIN) };
            assert_ne!(caches(&system, &own), Some(KEPT.into()), "{name}");
            let secret = EnvSecret { variable: name.into(), secret: "a".into(), key: "b".into() };
            let system = Kubernetes { env_secrets: vec![secret], ..system.clone() };
            assert_ne!(caches(&system, &job(TRAIN)), Some(KEPT.into()), "{name}");
        }
    }
}

#[test]
fn pods_have_what_their_network_needs() {
    for (controller, kind) in CONTROLLERS.into_iter().zip(KINDS) {
        let system = Kubernetes {
            host_paths: vec![HostPath { host: "/opt/net".into(), path: "/usr/local/net".into() }],
            annotations: [("networking.gke.io/default-interface".into(), "eth0".into())].into(),
            resources: [("vpc.amazonaws.com/efa", "4"), ("hugepages-2Mi", "5120Mi")]
                .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
                .into(),
            capabilities: words("IPC_LOCK"),
            ..kubernetes(controller)
        };
        let manifest = manifest(&system, &job(TRAIN));
        assert!(problems(kind, &manifest).is_empty(), "{:#?}", problems(kind, &manifest));
        let pod = pod_of(controller, &manifest);
        let container = &pod["containers"][0];
        assert_eq!(
            container["resources"]["limits"],
            json!({ "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5120Mi" })
        );
        assert_eq!(container["securityContext"], json!({ "capabilities": { "add": ["IPC_LOCK"] } }));
        let volume = json!({ "name": "host-0", "hostPath": { "path": "/opt/net", "type": "Directory" } });
        assert!(pod["volumes"].as_array().unwrap().contains(&volume), "{pod}");
        let mount = json!({ "name": "host-0", "mountPath": "/usr/local/net" });
        assert!(container["volumeMounts"].as_array().unwrap().contains(&mount), "{container}");
        let template = pod_template_of(controller, &manifest);
        assert_eq!(template["metadata"]["annotations"]["networking.gke.io/default-interface"], "eth0");
    }
}

#[test]
fn code_75_is_no_failure() {
    for (controller, at) in
        [(Controller::JobSet, "/spec"), (Controller::TrainJob, "/items/0/spec/template/spec")]
    {
        let manifest = manifest(&kubernetes(controller), &job(TRAIN));
        let spec = manifest.pointer(at).unwrap();
        let rules = &spec["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"];
        let container = &pod_of(controller, &manifest)["containers"][0]["name"];
        assert_eq!(
            rules[0]["onExitCodes"],
            json!({ "containerName": container, "operator": "In", "values": [exit::PREEMPTED] })
        );
        assert_eq!(rules[0]["action"], "FailJob");
        assert_eq!(rules[1]["onPodConditions"][0]["type"], "DisruptionTarget");
        let policy = &spec["failurePolicy"];
        assert_eq!(policy["maxRestarts"], 3);
        assert_eq!(policy["rules"][0]["action"], "RestartJobSetAndIgnoreMaxRestarts");
        assert_eq!(policy["rules"][0]["onJobFailureReasons"], json!(["PodFailurePolicy"]));
        // A policy of pods needs pods that are not started again in their place.
        assert_eq!(pod_of(controller, &manifest)["restartPolicy"], "Never");
    }
    let pytorchjob = manifest(&kubernetes(Controller::PyTorchJob), &job(TRAIN));
    assert_eq!(pytorchjob.pointer("/spec/pytorchReplicaSpecs/Master/restartPolicy").unwrap(), "OnFailure");
    assert_eq!(pytorchjob.pointer("/spec/runPolicy/backoffLimit").unwrap(), 4 * 103);
}

#[test]
fn vertex_has_buckets_as_folders_and_checkpoints_in_them() {
    let job = job("train --out gs://bucket/runs/a/");
    let manifest = manifest(&vertex(), &job);
    let pools = manifest["workerPoolSpecs"].as_array().unwrap();
    let counts: Vec<&Value> = pools.iter().map(|pool| &pool["replicaCount"]).collect();
    assert_eq!(counts, ["1", "3"]);
    assert_eq!(
        pools[0]["machineSpec"],
        json!({ "machineType": "a3-highgpu-8g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 8 })
    );
    let container = &pools[1]["containerSpec"];
    let line = container["args"].to_string();
    assert!(line.starts_with(r#"["train","--max-restarts","3","--rdzv-timeout","86400","--nproc"#), "{line}");
    assert!(
        line.contains(
            r#""--out","/gcs/bucket/runs/a","--set","checkpoint.dir=gs://bucket/runs/a/checkpoints""#
        ),
        "{line}"
    );
    let token = json!({ "name": "BRIGADE_TOKEN_FILE", "value": "/gcs/secrets/llama/token" });
    assert!(container["env"].as_array().unwrap().contains(&token));
    // The machines differ in the types of their disks.
    assert_eq!(pools[0]["diskSpec"], json!({ "bootDiskSizeGb": 200 }));
    let resumed = crate::jobs::job(
        "train --resume gs://bucket/runs/a --config=gs://bucket/my.toml --model gs://bucket/llama",
    );
    let manifest = crate::jobs::manifest(&vertex(), &resumed);
    let line = manifest["workerPoolSpecs"][0]["containerSpec"]["args"].to_string();
    assert!(
        line.contains(
            r#""--resume","/gcs/bucket/runs/a","--config=/gcs/bucket/my.toml","--model","/gcs/bucket/llama""#
        ) && !line.contains("gs://"),
        "{line}"
    );
    // What the containers call the bucket is as good as its URL.
    let args = |job: &Job| {
        crate::jobs::manifest(&vertex(), job)["workerPoolSpecs"][0]["containerSpec"]["args"].to_string()
    };
    let mounted = crate::jobs::job("train --out /gcs/bucket/x");
    let line = args(&mounted);
    assert!(line.contains(r#""/gcs/bucket/x","--set","checkpoint.dir=gs://bucket/x/checkpoints""#), "{line}");
    // The settings in a file count as those of the command.
    let configured = Job { checkpoint_dir: Some("gs://other/c".into()), ..mounted };
    assert!(!args(&configured).contains("checkpoint.dir"), "{}", args(&configured));
    let commands = vertex().commands(&job);
    assert_eq!(
        commands.submit.join(" "),
        "gcloud ai custom-jobs create --region=europe-west4 --display-name=llama-7b --config={manifest} --format=value(name)"
    );
    assert_eq!(commands.cancel.join(" "), "gcloud ai custom-jobs cancel {id} --region=europe-west4");
}

#[test]
fn vertex_ends_a_job_after_a_time() {
    let job = job("train --out gs://bucket/a");
    assert_eq!(vertex().time_limit(), Some(7 * 86_400));
    let scheduling = |system: &Vertex| manifest(system, &job)["scheduling"].clone();
    assert_eq!(scheduling(&vertex()), json!({ "strategy": "STANDARD" }));
    let longer = Vertex { time: Some("14-12".into()), ..vertex() };
    assert_eq!(scheduling(&longer), json!({ "strategy": "STANDARD", "timeout": "1252800s" }));
    assert_eq!((longer.time_limit(), slurm().time_limit()), (Some(1_252_800), None));
    assert!(problems("CustomJobSpec", &manifest(&longer, &job)).is_empty());
    let disk = |system: &Vertex| manifest(system, &job)["workerPoolSpecs"][1]["diskSpec"].clone();
    assert_eq!(disk(&vertex()), json!({ "bootDiskSizeGb": 200 }));
    let larger = Vertex { boot_disk_gb: Some(2000), ..vertex() };
    assert_eq!(disk(&larger), json!({ "bootDiskSizeGb": 2000 }));
    let mega = Vertex { machine_type: Some("a3-megagpu-8g".into()), ..vertex() };
    let machine = &manifest(&mega, &job)["workerPoolSpecs"][0]["machineSpec"];
    assert_eq!(machine["acceleratorType"], "NVIDIA_H100_MEGA_80GB");
}

/// Kubernetes and Vertex AI replace `$(NAME)` in what a container gets, and read `$$` as one `$`.
#[test]
fn what_looks_like_a_variable_reaches_the_program_as_it_is() {
    let own = |out: &str| Job {
        program: "/app/$own".into(),
        env: [("PATTERN".into(), "$(HOME)$$".into())].into(),
        ..job(&format!("--out {out} --set a=$(RANK) --set b=$HOME"))
    };
    let pattern = json!({ "name": "PATTERN", "value": "$$(HOME)$$$$" });
    let check = |container: &Value, command: &str| {
        let args = container["args"].as_array().unwrap();
        assert!(args.contains(&json!("a=$$(RANK)")) && args.contains(&json!("b=$$HOME")), "{args:?}");
        assert!(container["env"].as_array().unwrap().contains(&pattern), "{container}");
        assert_eq!(container[command], json!(["/app/$$own"]));
    };
    for controller in CONTROLLERS {
        let manifest = manifest(&kubernetes(controller), &own("/data/a"));
        check(&pod_of(controller, &manifest)["containers"][0], "command");
    }
    let manifest = manifest(&kubernetes(Controller::PyTorchJob), &own("/data/a"));
    let args = &pod_of(Controller::PyTorchJob, &manifest)["containers"][0]["args"];
    assert!(args.as_array().unwrap().contains(&json!("$(RANK)")), "{args}");
    let manifest = crate::jobs::manifest(&vertex(), &own("gs://bucket/a"));
    check(&manifest["workerPoolSpecs"][0]["containerSpec"], "command");
}

#[test]
fn a_program_of_ones_own_has_no_subcommand() {
    let job = Job { program: "/app/spirals".into(), ..job("--out /data/a") };
    let manifest = manifest(&kubernetes(Controller::JobSet), &job);
    let container = &pod_of(Controller::JobSet, &manifest)["containers"][0];
    assert_eq!(container["command"], json!(["/app/spirals"]));
    assert_eq!(container["args"][0], "--rdzv-timeout");
    // As `cargo xtask image` and `examples/Dockerfile` call it, or as it likes; a binary of `cargo xtask dist` is the command.
    for program in ["program", "brigade-mine", "/app/brigade-2-mine", "brigade-cpu-mine"] {
        Job { program: program.into(), ..job.clone() }.check().unwrap();
    }
    for program in ["/opt/brigade", "/opt/brigade-0.1.0-cuda-x86_64-unknown-linux-gnu"] {
        let error = Job { program: program.into(), ..job.clone() }.check().unwrap_err().to_string();
        assert!(error.contains("it must be train … or launch …"), "{error}");
    }
    let launch = crate::jobs::job("launch --tee -- ./own --out b");
    let manifest = crate::jobs::manifest(&kubernetes(Controller::JobSet), &launch);
    let args = &pod_of(Controller::JobSet, &manifest)["containers"][0]["args"];
    assert_eq!(
        args,
        &json!(words(
            "launch --rdzv-timeout 86400 --nproc-per-node 8 --preemption-grace 120 --tee -- ./own --out b"
        )),
        "another program's flags are its own"
    );
    // Settings of a file come before those that the command names.
    let given = crate::jobs::job("train --set=a.b=1 --config my.toml --out /data/a --zero 3");
    let set = given.with_settings(words("a.b=2 c.d='x'"));
    assert_eq!(set.args, words("train --set a.b=2 --set c.d='x' --set=a.b=1 --out /data/a --zero 3"));
    // A backend that a setting names stays.
    let wgpu = crate::jobs::job("train --out /data/a --set compute.backend=wgpu");
    let manifest = crate::jobs::manifest(&kubernetes(Controller::JobSet), &wgpu);
    assert!(!manifest.to_string().contains("--backend"), "{manifest}");
    assert_eq!(job_name("/gcs/bucket/Llama 7B"), "llama-7b");
}
