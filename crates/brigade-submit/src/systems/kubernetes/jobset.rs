//! JobSet: one indexed Job, whose pods have names by which they find each other.
//!
//! A pod that exits with 75, or that Kubernetes evicts, fails its Job with the reason `PodFailurePolicy`; the set then starts all of it again without counting. Any other failure
//! counts against `maxRestarts`.

use serde::Serialize;

use super::Kubernetes;
use super::pod::{index_variable, metadata, pod, variable};
use super::types::{
    EnvVar, JobSpec, Metadata, Object, OnExitCodes, OnPodCondition, PodFailurePolicy, PodFailureRule,
    Template,
};
use crate::job::Job;

/// The name of the one replicated Job, and of the container in its pods.
pub const NODE: &str = "node";

/// Where node 0 waits for the others.
const PORT: u16 = 29_500;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSetSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    pub failure_policy: FailurePolicy,
    pub replicated_jobs: Vec<ReplicatedJob>,
}

#[derive(Debug, Serialize)]
pub struct Network {
    #[serde(rename = "enableDNSHostnames")]
    enable_dns_hostnames: bool,
    subdomain: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    max_restarts: u32,
    rules: Vec<FailurePolicyRule>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicyRule {
    name: &'static str,
    action: &'static str,
    on_job_failure_reasons: [&'static str; 1],
}

#[derive(Debug, Serialize)]
pub struct ReplicatedJob {
    name: &'static str,
    replicas: u32,
    template: Template<JobSpec>,
}

impl ReplicatedJob {
    /// Marks it as the one that Kubeflow's trainer starts ranks in.
    pub fn of_trainer(&mut self) {
        let (key, value) = ("trainer.kubeflow.org/trainjob-ancestor-step", "trainer");
        self.template.metadata.labels.insert(key.into(), value.into());
    }
}

pub fn jobset(system: &Kubernetes, job: &Job) -> Object<JobSetSpec> {
    // The set makes a headless service of this name for its pods.
    let network = Network { enable_dns_hostnames: true, subdomain: job.name.clone() };
    let env = [
        variable("PET_NNODES", job.nodes.to_string()),
        index_variable("PET_NODE_RANK"),
        variable("PET_MASTER_ADDR", format!("{0}-{NODE}-0-0.{0}", job.name)),
        variable("PET_MASTER_PORT", PORT.to_string()),
    ];
    let mut spec = spec(system, job, env.to_vec());
    spec.network = Some(network);
    let indexed = &mut spec.replicated_jobs[0].template.spec;
    (indexed.parallelism, indexed.completions) = (Some(job.nodes), Some(job.nodes));
    Object { api_version: "jobset.x-k8s.io/v1alpha2", kind: "JobSet", metadata: metadata(system, job), spec }
}

/// A set whose number of pods and whose network are not said yet.
pub fn spec(system: &Kubernetes, job: &Job, env: Vec<EnvVar>) -> JobSetSpec {
    let exit_code =
        OnExitCodes { container_name: NODE, operator: "In", values: vec![brigade_launch::exit::PREEMPTED] };
    let evicted = OnPodCondition { r#type: "DisruptionTarget", status: "True" };
    let fails = |on_exit_codes, on_pod_conditions| PodFailureRule {
        action: "FailJob",
        on_exit_codes,
        on_pod_conditions,
    };
    let rules = vec![fails(Some(exit_code), Vec::new()), fails(None, vec![evicted])];
    let template = JobSpec {
        parallelism: None,
        completions: None,
        completion_mode: "Indexed",
        backoff_limit: 0,
        pod_failure_policy: PodFailurePolicy { rules },
        template: pod(system, job, NODE, &[], env),
    };
    let preempted = FailurePolicyRule {
        name: "preempted",
        action: "RestartJobSetAndIgnoreMaxRestarts",
        on_job_failure_reasons: ["PodFailurePolicy"],
    };
    JobSetSpec {
        network: None,
        failure_policy: FailurePolicy { max_restarts: job.max_restarts, rules: vec![preempted] },
        replicated_jobs: vec![ReplicatedJob {
            name: NODE,
            replicas: 1,
            template: Template { metadata: Metadata::default(), spec: template },
        }],
    }
}
