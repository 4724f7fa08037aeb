//! Kubeflow's training operator: a `PyTorchJob` with a master and workers.
//!
//! The operator's `RANK` is the number of a pod, and its `WORLD_SIZE` need not be the number of ranks, so that flags place the node. It knows no codes: a pod that ends with another than
//! 0 starts again, preempted or not, until `backoffLimit`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Kubernetes;
use super::pod::{metadata, pod};
use super::types::{Object, PodSpec, Template};
use crate::job::Job;

/// The name that the operator wants for the container.
const CONTAINER: &str = "pytorch";

/// Where node 0 waits for the others.
const PORT: u16 = 29_500;

/// Preemptions count as failures here.
const PREEMPTIONS: u32 = 100;

/// How many restarts of pods the operator allows, of all pods together: whatever ends one node restarts up to all of them.
fn backoff_limit(job: &Job) -> u32 {
    let nodes = u32::try_from(job.nodes).unwrap_or(u32::MAX);
    job.max_restarts.saturating_add(PREEMPTIONS).saturating_mul(nodes).min(i32::MAX.unsigned_abs())
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PyTorchJobSpec {
    run_policy: RunPolicy,
    pytorch_replica_specs: BTreeMap<&'static str, ReplicaSpec>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunPolicy {
    clean_pod_policy: &'static str,
    backoff_limit: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplicaSpec {
    replicas: usize,
    restart_policy: &'static str,
    template: Template<PodSpec>,
}

pub fn pytorchjob(system: &Kubernetes, job: &Job) -> Object<PyTorchJobSpec> {
    let placement: Vec<String> = match job.nodes {
        1 => vec!["--standalone".into()],
        nodes => [
            ("--nnodes", nodes.to_string()),
            ("--node-rank", "$(RANK)".into()),
            ("--rdzv-endpoint", format!("{}-master-0:{PORT}", job.name)),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect(),
    };
    let mut template = pod(system, job, CONTAINER, &placement, Vec::new());
    // The operator sets it from the replicas'.
    template.spec.restart_policy = None;
    let replica =
        |replicas| ReplicaSpec { replicas, restart_policy: "OnFailure", template: template.clone() };
    let counts = [("Master", 1), ("Worker", job.nodes - 1)];
    let replicas =
        counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name, replica(count)));
    Object {
        api_version: "kubeflow.org/v1",
        kind: "PyTorchJob",
        metadata: metadata(system, job),
        spec: PyTorchJobSpec {
            run_policy: RunPolicy { clean_pod_policy: "Running", backoff_limit: backoff_limit(job) },
            pytorch_replica_specs: replicas.collect(),
        },
    }
}
