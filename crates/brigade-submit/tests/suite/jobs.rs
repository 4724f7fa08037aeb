//! Jobs to render.

use std::collections::BTreeMap;

use brigade_submit::{Claim, Controller, GpuKind, Job, Kubernetes, Slurm, Ssh, System, Token, Vertex};
use serde_json::Value;

pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Four nodes of eight GPUs.
pub fn job(line: &str) -> Job {
    Job {
        name: "llama-7b".into(),
        nodes: 4,
        least_nodes: None,
        gpus: 8,
        gpu_kind: Some(GpuKind::named("h100-80gb").unwrap()),
        program: "brigade".into(),
        args: words(line),
        env: BTreeMap::from([("HF_HOME".into(), "/data/it's here".into())]),
        checkpoint_dir: None,
        grace_seconds: 120,
        max_restarts: 3,
    }
}

pub fn kubernetes(controller: Controller) -> Kubernetes {
    Kubernetes {
        controller,
        namespace: Some("ml".into()),
        image: Some("ghcr.io/me/brigade:1".into()),
        token_secret: "brigade-token".into(),
        env_secrets: Vec::new(),
        claims: vec![Claim { name: "data".into(), path: "/data".into() }],
        host_paths: Vec::new(),
        annotations: BTreeMap::new(),
        resources: BTreeMap::new(),
        capabilities: Vec::new(),
        cpus: None,
        memory: None,
        restricted: false,
        node_selector: BTreeMap::from([("pool".into(), "a".into())]),
        topology: Some("cloud.google.com/gce-topology-block".into()),
        queue: Some("team".into()),
        service_account: None,
        image_pull_secrets: Vec::new(),
        tolerations: Vec::new(),
        priority_class: None,
    }
}

pub fn vertex() -> Vertex {
    Vertex {
        region: Some("europe-west4".into()),
        image: Some("europe-docker.pkg.dev/p/r/brigade:1".into()),
        token_file: Some("gs://secrets/llama/token".into()),
        ..Vertex::default()
    }
}

pub fn slurm() -> Slurm {
    Slurm {
        partition: Some("gpu".into()),
        account: None,
        time: Some("1-00".into()),
        switches: Some(1),
        token: Token::Random,
        shared_nodes: false,
        options: words("--constraint=h100"),
    }
}

pub fn ssh(hosts: &str) -> Ssh {
    Ssh { hosts: hosts.split(',').map(str::to_owned).collect(), folder: Some("/work".into()), address: None }
}

/// The one manifest of a job, as JSON.
pub fn manifest(system: &dyn System, job: &Job) -> Value {
    job.check().unwrap();
    system.check(job).unwrap();
    let manifests = system.manifests(job);
    assert_eq!(manifests.len(), 1);
    serde_json::from_str(&manifests[0].text).unwrap()
}

/// The template of a controller's pods in its manifest.
pub fn pod_template_of(controller: Controller, manifest: &Value) -> &Value {
    let path = match controller {
        Controller::JobSet => "/spec/replicatedJobs/0/template/spec/template",
        Controller::TrainJob => "/items/0/spec/template/spec/replicatedJobs/0/template/spec/template",
        Controller::PyTorchJob => "/spec/pytorchReplicaSpecs/Worker/template",
    };
    manifest.pointer(path).unwrap()
}

/// The specification of a controller's pods.
pub fn pod_of(controller: Controller, manifest: &Value) -> &Value {
    &pod_template_of(controller, manifest)["spec"]
}

pub const CONTROLLERS: [Controller; 3] = [Controller::JobSet, Controller::TrainJob, Controller::PyTorchJob];
