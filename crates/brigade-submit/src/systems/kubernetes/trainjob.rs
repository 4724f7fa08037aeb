//! Kubeflow Trainer: a `TrainJob` with a runtime of its own, which has what a `TrainJob` itself cannot say: what a code means, and how long a save may take.
//!
//! The trainer sets `PET_NNODES`, `PET_NPROC_PER_NODE`, `PET_NODE_RANK`, `PET_MASTER_ADDR` and `PET_MASTER_PORT`.

use serde::Serialize;

use super::Kubernetes;
use super::jobset::{JobSetSpec, spec};
use super::pod::metadata;
use super::types::Object;
use crate::job::Job;

const API: &str = "trainer.kubeflow.org/v1alpha1";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct List {
    api_version: &'static str,
    kind: &'static str,
    items: (Object<RuntimeSpec>, Object<TrainJobSpec>),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSpec {
    ml_policy: MlPolicy,
    template: JobSetTemplate,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MlPolicy {
    num_nodes: usize,
    torch: Torch,
}

/// Without the number of processes, which the trainer takes from the `TrainJob`: from its version 2.3 on, it is a field of that alone.
#[derive(Debug, Serialize)]
struct Torch {}

#[derive(Debug, Serialize)]
struct JobSetTemplate {
    spec: JobSetSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainJobSpec {
    runtime_ref: RuntimeRef,
    trainer: Trainer,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeRef {
    api_group: &'static str,
    kind: &'static str,
    name: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Trainer {
    num_nodes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_proc_per_node: Option<usize>,
}

pub fn trainjob(system: &Kubernetes, job: &Job) -> List {
    let mut spec = spec(system, job, Vec::new());
    // By this label the trainer knows which pods train.
    spec.replicated_jobs[0].of_trainer();
    let ranks = (job.gpus > 0).then_some(job.gpus);
    let runtime = Object {
        api_version: API,
        kind: "TrainingRuntime",
        metadata: metadata(system, job),
        spec: RuntimeSpec {
            ml_policy: MlPolicy { num_nodes: job.nodes, torch: Torch {} },
            template: JobSetTemplate { spec },
        },
    };
    let runtime_ref =
        RuntimeRef { api_group: "trainer.kubeflow.org", kind: "TrainingRuntime", name: job.name.clone() };
    let job = Object {
        api_version: API,
        kind: "TrainJob",
        metadata: metadata(system, job),
        spec: TrainJobSpec {
            runtime_ref,
            trainer: Trainer { num_nodes: job.nodes, num_proc_per_node: ranks },
        },
    };
    List { api_version: "v1", kind: "List", items: (runtime, job) }
}
