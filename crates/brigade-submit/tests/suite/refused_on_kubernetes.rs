//! What is refused of jobs on Kubernetes.

use brigade_submit::{Claim, Controller, EnvSecret, HostPath, Job, Kubernetes, System};

use crate::jobs::{CONTROLLERS, job, kubernetes};
use crate::refused::refused;

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
    // One pod loses what it writes, too.
    let one = Job { nodes: 1, ..fine.clone() };
    kubernetes(Controller::JobSet).check(&one).unwrap();
    refused(&system(|system| system.claims.clear()), &one, "would be lost when the pod ends");
    refused(
        &system(|_| ()),
        &job("train --resume /nowhere/runs/a"),
        "--resume /nowhere/runs/a is not possible: no --volume CLAIM:PATH contains it",
    );
    system(|_| ()).check(&job("train --resume /data/runs/a")).unwrap();
    refused(
        &system(|_| ()),
        &job("train --out /data/../tmp"),
        "--out /data/../tmp is not possible: it must have no part ..",
    );
    let secret = |variable: &str, secret: &str, key: &str| {
        let all = vec![EnvSecret { variable: variable.into(), secret: secret.into(), key: key.into() }];
        Kubernetes { env_secrets: all, ..kubernetes(Controller::JobSet) }
    };
    secret("HF_TOKEN", "hub", "token").check(&fine).unwrap();
    for (wrong, said) in [
        (secret("RANK", "hub", "token"), "--env-secret RANK is not possible"),
        (secret("A-B", "hub", "token"), "--env-secret A-B is not possible"),
        (secret("HF_TOKEN", "Hub", "token"), "--env-secret HF_TOKEN=Hub/token is not possible"),
        (secret("HF_TOKEN", "hub", "a b"), "in a secret's key"),
        (secret("HF_HOME", "hub", "home"), "HF_HOME is given twice"),
        (system(|system| system.cpus = Some("8Gi".into())), "--cpus 8Gi is not possible: it must be"),
        (system(|system| system.memory = Some("much".into())), "--memory much is not possible"),
    ] {
        refused(&wrong, &fine, said);
    }
    let relative =
        |system: &mut Kubernetes| system.claims.push(Claim { name: "a".into(), path: "data".into() });
    refused(&system(relative), &fine, "--volume a:data is not possible");
    refused(
        &system(|_| ()),
        &job("train --out gs://Bucket/a"),
        "--out gs://Bucket/a is not possible: a bucket's name has",
    );
    refused(
        &system(|_| ()),
        &job("train --out /data/a --config gs://bucket/a.toml"),
        "--config gs://bucket/a.toml is not possible: give a file of a volume",
    );
}

#[test]
fn names_and_labels_are_those_of_kubernetes() {
    let fine = job("train --out /data/a");
    let mut all = kubernetes(Controller::JobSet);
    all.claims[0].name = "7.my-claim".into();
    all.token_secret = "7secret".into();
    all.service_account = Some("my.account".into());
    all.node_selector = [("example.com/Pool".into(), String::new())].into();
    all.check(&fine).unwrap();
    type Change = fn(&mut Kubernetes);
    let changes: [(Change, &str); 14] = [
        (
            |system| system.claims[0].name = "My".into(),
            "--volume My:/data is not possible: Kubernetes requires 1 to 253",
        ),
        (
            |system| system.token_secret = "a..b".into(),
            "--token-secret a..b is not possible: Kubernetes requires",
        ),
        (
            |system| system.namespace = Some("a.b".into()),
            "--namespace a.b is not possible: Kubernetes requires 1 to 63",
        ),
        (|system| system.namespace = Some(String::new()), "--namespace '' is not possible"),
        (|system| system.service_account = Some("a_b".into()), "--service-account a_b is not possible"),
        (
            |system| system.tolerations = vec!["spot:Never".into()],
            "--toleration spot:Never is not possible: it must be KEY[=VALUE][:EFFECT]",
        ),
        (|system| system.image_pull_secrets = vec!["A".into()], "--image-pull-secret A is not possible"),
        (|system| system.priority_class = Some("a b".into()), "--priority-class a b is not possible"),
        (|system| system.topology = Some("a b".into()), "--topology a b is not possible: a label's key"),
        (|system| system.queue = Some("a/b".into()), "--queue a/b is not possible: a label's value"),
        (|system| system.queue = Some(String::new()), "--queue '' is not possible"),
        (
            |system| system.node_selector = [("a/b/c".into(), "x".into())].into(),
            "--node-selector a/b/c=x is not possible: a label's key",
        ),
        (
            |system| system.node_selector = [("a".into(), "x y".into())].into(),
            "--node-selector a=x y is not possible: a label's value",
        ),
        (
            |system| system.node_selector = [(String::new(), "x".into())].into(),
            "--node-selector =x is not possible",
        ),
    ];
    for (change, said) in changes {
        let mut system = kubernetes(Controller::JobSet);
        change(&mut system);
        refused(&system, &fine, said);
    }
}

#[test]
fn what_no_pod_gets_for_its_network() {
    let fine = job("train --out /data/a");
    let pairs = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let annotated =
        |key, value| Kubernetes { annotations: pairs(key, value), ..kubernetes(Controller::JobSet) };
    let with = |name, amount| Kubernetes { resources: pairs(name, amount), ..kubernetes(Controller::JobSet) };
    let of = |host: &str, path: &str| {
        let host_paths = vec![HostPath { host: host.into(), path: path.into() }];
        Kubernetes { host_paths, ..kubernetes(Controller::JobSet) }
    };
    let may = |name: &str, restricted| Kubernetes {
        capabilities: vec![name.into()],
        restricted,
        ..kubernetes(Controller::JobSet)
    };
    for fits in [
        annotated("networking.gke.io/interfaces", "[{\"interfaceName\": \"eth0\"}]"),
        with("rdma/hca_shared", "1"),
        with("hugepages-2Mi", "5120Mi"),
        of("/home/kubernetes/bin/gib", "/usr/local/gib"),
        may("IPC_LOCK", false),
        may("NET_BIND_SERVICE", true),
    ] {
        fits.check(&fine).unwrap();
    }
    for (wrong, said) in [
        (annotated("a/b/c", "x"), "--annotation a/b/c=x is not possible: an annotation's key has"),
        (annotated("api-token", "whatever"), "--annotation contains a secret"),
        (with("nvidia.com/gpu", "8"), "--resource nvidia.com/gpu=8 is not possible: --gpus says it"),
        (with("cpu", "8"), "--resource cpu=8 is not possible: --cpus says it"),
        (
            with("efa", "4"),
            "--resource efa=4 is not possible: it must be NAME=N with a name that has a domain",
        ),
        (with("rdma/a b", "4"), "--resource rdma/a b=4 is not possible: a resource's name has"),
        (
            with("rdma/hca", "0"),
            "--resource rdma/hca=0 is not possible: it must be NAME=N with a whole number",
        ),
        (with("rdma/hca", "1.5"), "a whole number, 1 or more"),
        (with("rdma/hca", ""), "a whole number, 1 or more"),
        (
            with("hugepages-2Mi", "many"),
            "--resource hugepages-2Mi=many is not possible: it must be NAME=SIZE",
        ),
        (of("opt", "/a"), "--host-path opt:/a is not possible: it must be HOST:PATH with absolute paths"),
        (of("/opt/../etc", "/a"), "--host-path /opt/../etc:/a is not possible: it must be HOST:PATH"),
        (of("/opt", "a"), "--host-path /opt:a is not possible: it must be HOST:PATH with absolute paths"),
        (
            of("/opt", "/data"),
            "--host-path /opt:/data is not possible: another --volume is mounted at /data, too",
        ),
        (of("/opt", "/dev/shm"), "the pods have something else at /dev/shm"),
        (Kubernetes { restricted: true, ..of("/opt", "/a") }, "--restricted allows no folders of the nodes"),
        (may("CAP_IPC_LOCK", false), "--capability CAP_IPC_LOCK is not possible: it must be the name"),
        (may("ipc_lock", false), "such as IPC_LOCK"),
        (may("", false), "--capability '' is not possible"),
        (may("IPC_LOCK", true), "--restricted allows no capability except NET_BIND_SERVICE"),
    ] {
        refused(&wrong, &fine, said);
    }
    // A folder of a node is gone for whoever runs on another one.
    refused(&of("/opt", "/scratch"), &job("train --out /scratch/a"), "would be lost when the pod ends");
}

#[test]
fn what_the_pods_have_already_is_refused() {
    let fine = job("train --out /data/a");
    for controller in CONTROLLERS {
        for name in ["PET_MASTER_PORT", "RANK", "MASTER_ADDR"] {
            let job = Job { env: [(name.into(), "1234".into())].into(), ..fine.clone() };
            let said = format!("--env {name} is not possible: the system or Brigade's launcher sets it");
            refused(&kubernetes(controller), &job, &said);
        }
    }
    for (path, said) in [
        ("/data", "--volume b:/data is not possible: another --volume is mounted at /data, too"),
        ("/data/", "another --volume is mounted at /data/, too"),
        ("//data/.", "another --volume is mounted at //data/., too"),
        ("/dev/shm", "the pods have something else at /dev/shm and /run/secrets/brigade"),
        ("/run/secrets/brigade/", "the pods have something else"),
        ("/", "not / itself"),
        ("//", "not / itself"),
        ("/data/../x", "without .. and :"),
    ] {
        let mut system = kubernetes(Controller::JobSet);
        system.claims.push(Claim { name: "b".into(), path: path.into() });
        refused(&system, &fine, said);
    }
    let mut system = kubernetes(Controller::JobSet);
    system.claims.push(Claim { name: "b".into(), path: "/data/b".into() });
    system.check(&fine).unwrap();
}
