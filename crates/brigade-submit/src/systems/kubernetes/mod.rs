//! Kubernetes, by one of three controllers.

mod check;
mod hardware;
mod jobset;
mod names;
mod pod;
mod pytorchjob;
mod quota;
mod trainjob;
mod types;
mod waiting;

use std::collections::BTreeMap;

use super::{Commands, JobState, Lacking, LeftOver, Manifest, Needed, System, not_elastic, words};
use crate::error::{Error, Result};
use crate::job::{Job, needed_image};
use pod::JOB_LABEL;

/// Lets `kubectl` give up a question that the cluster does not answer.
const IN_TIME: &str = "--request-timeout=10s";

/// What makes pods of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// `jobset.x-k8s.io/v1alpha2`.
    JobSet,
    /// Kubeflow Trainer's `trainer.kubeflow.org/v1alpha1`, on top of JobSet.
    TrainJob,
    /// The training operator's `kubeflow.org/v1`.
    PyTorchJob,
}

/// A claim of a volume that all pods share, and where they find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The name of the `PersistentVolumeClaim`.
    pub name: String,
    /// Its path in the container.
    pub path: String,
}

/// A folder of the nodes themselves, and where pods find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// Its path on the nodes.
    pub host: String,
    /// Its path in the container.
    pub path: String,
}

/// A variable with the value of a secret of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvSecret {
    /// The variable.
    pub variable: String,
    /// The name of the secret.
    pub secret: String,
    /// The value's key in it.
    pub key: String,
}

/// Kubernetes, and what it must know of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// What makes the pods.
    pub controller: Controller,
    /// The namespace, where it is not that of `kubectl`'s context.
    pub namespace: Option<String>,
    /// The container's image.
    pub image: Option<String>,
    /// The secret with the ranks' token, under the key `token`.
    pub token_secret: String,
    /// Variables whose values are in secrets.
    pub env_secrets: Vec<EnvSecret>,
    /// Volumes that the pods share.
    pub claims: Vec<Claim>,
    /// Folders of the nodes, such as those of a network's libraries.
    pub host_paths: Vec<HostPath>,
    /// Annotations of the pods, beside those of the queue.
    pub annotations: BTreeMap<String, String>,
    /// Further resources of each pod, as quantities by their names: network adapters, huge pages.
    pub resources: BTreeMap<String, String>,
    /// Capabilities of Linux that the containers get.
    pub capabilities: Vec<String>,
    /// CPUs of each pod, as a quantity of Kubernetes.
    pub cpus: Option<String>,
    /// Memory of each pod, as a quantity of Kubernetes.
    pub memory: Option<String>,
    /// Whether pods satisfy the level `restricted` of the Pod Security Standards.
    pub restricted: bool,
    /// Labels that nodes must have, beside those of the GPUs.
    pub node_selector: BTreeMap<String, String>,
    /// The label of nodes whose value the pods should share: a rack, a block, a zone.
    pub topology: Option<String>,
    /// Kueue's queue.
    pub queue: Option<String>,
    /// The account that the pods run as.
    pub service_account: Option<String>,
    /// Secrets with which the image is pulled.
    pub image_pull_secrets: Vec<String>,
    /// Taints that do not keep the pods away, each as `KEY[=VALUE][:EFFECT]`.
    pub tolerations: Vec<String>,
    /// The class of their priority.
    pub priority_class: Option<String>,
}

impl Kubernetes {
    fn kubectl(&self, rest: &[&str]) -> Vec<String> {
        let mut all = words(&["kubectl"]);
        all.extend(self.namespace.as_ref().map(|namespace| format!("--namespace={namespace}")));
        all.extend(words(rest));
        all
    }

    /// What the controller adds to the job's name in the longest name of a pod, or of a host.
    fn added(&self, nodes: usize) -> usize {
        let index = nodes.saturating_sub(1).to_string().len();
        match self.controller {
            // NAME-node-0-INDEX-xxxxx
            Controller::JobSet | Controller::TrainJob => "-node-0-".len() + index + "-xxxxx".len(),
            // NAME-worker-INDEX
            Controller::PyTorchJob => "-worker-".len() + index,
        }
    }

    /// What must be in the cluster, as `kubectl get` names it.
    fn objects(&self, job: &Job) -> Vec<String> {
        let secrets = (job.nodes > 1).then_some(&self.token_secret).into_iter();
        let secrets = secrets.chain(self.env_secrets.iter().map(|secret| &secret.secret));
        let mut all: Vec<String> =
            secrets.chain(&self.image_pull_secrets).map(|name| format!("secret/{name}")).collect();
        all.extend(self.claims.iter().map(|claim| format!("persistentvolumeclaim/{}", claim.name)));
        all.extend(self.service_account.iter().map(|name| format!("serviceaccount/{name}")));
        all.extend(self.queue.iter().map(|name| format!("localqueue.kueue.x-k8s.io/{name}")));
        all.extend(self.priority_class.iter().map(|name| format!("priorityclass/{name}")));
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|object| seen.insert(object.clone()));
        all
    }

    /// All objects that the manifest makes, the one that stands for the job first.
    fn made(&self, job: &Job) -> Vec<String> {
        let runtime = format!("trainingruntime/{}", job.name);
        let of_trainer = self.controller == Controller::TrainJob;
        std::iter::once(self.object(job)).chain(of_trainer.then_some(runtime)).collect()
    }

    /// The object that stands for the job.
    fn object(&self, job: &Job) -> String {
        format!("{}/{}", self.name(), job.name)
    }
}

impl System for Kubernetes {
    fn name(&self) -> &'static str {
        match self.controller {
            Controller::JobSet => "jobset",
            Controller::TrainJob => "trainjob",
            Controller::PyTorchJob => "pytorchjob",
        }
    }

    fn missing(&self, _: &Job) -> Vec<Error> {
        needed_image(self.image.as_deref()).into_iter().collect()
    }

    fn check(&self, job: &Job) -> Result<()> {
        not_elastic(job, "a controller on Kubernetes")?;
        self.check_names(job)?;
        self.check_env_secrets(job)?;
        self.check_resources()?;
        self.check_hardware()?;
        self.check_volumes(job)
    }

    fn manifests(&self, job: &Job) -> Vec<Manifest> {
        let file = format!("{}.json", self.name());
        vec![match self.controller {
            Controller::JobSet => Manifest::json(&file, &jobset::jobset(self, job)),
            Controller::TrainJob => Manifest::json(&file, &trainjob::trainjob(self, job)),
            Controller::PyTorchJob => Manifest::json(&file, &pytorchjob::pytorchjob(self, job)),
        }]
    }

    fn needed(&self, job: &Job) -> Vec<Needed> {
        let get = |object: &String| self.kubectl(&["get", object, "-o", "name", IN_TIME]);
        let all = self.objects(job);
        all.iter().map(|object| Needed { name: object.clone(), command: get(object) }).collect()
    }

    fn quotas(&self) -> Option<Vec<String>> {
        Some(self.kubectl(&["get", "resourcequota", "-o", "json", IN_TIME]))
    }

    fn over_quotas(&self, job: &Job, printed: &str) -> Lacking {
        quota::over(self, job, printed)
    }

    fn left_over(&self, job: &Job) -> Option<LeftOver> {
        // Another controller's job is one object, which is there as a whole or not.
        if self.controller != Controller::TrainJob {
            return None;
        }
        // Of two objects `kubectl create` makes the second even if the first is there already: a job would run what an old runtime says.
        let mut find = self.kubectl(&["get"]);
        find.extend(self.made(job));
        find.extend(words(&["--ignore-not-found", "-o", "name", IN_TIME]));
        Some(LeftOver { find, delete: self.kubectl(&["delete"]) })
    }

    fn commands(&self, job: &Job) -> Commands {
        let selector = match self.controller {
            Controller::JobSet | Controller::TrainJob => format!(
                "jobset.sigs.k8s.io/jobset-name={},batch.kubernetes.io/job-completion-index=0",
                job.name
            ),
            Controller::PyTorchJob => {
                format!(
                    "training.kubeflow.org/job-name={},training.kubeflow.org/replica-type=master",
                    job.name
                )
            }
        };
        let object = self.object(job);
        let conditions = r#"jsonpath={.status.conditions[?(@.status=="True")].type}"#;
        Commands {
            check: match self.controller {
                // Its job is refused as long as its runtime, which is made with it, is not there.
                Controller::TrainJob => None,
                _ => Some(self.kubectl(&["create", "--dry-run=server", "-f", "{manifest}"])),
            },
            submit: self.kubectl(&["create", "-f", "{manifest}", "-o", "name"]),
            logs: self.kubectl(&["logs", "--follow", "--tail=-1", "-l", &selector]),
            logs_have_times: true,
            state: self.kubectl(&["get", &object, "-o", conditions, IN_TIME]),
            waiting: Some(self.kubectl(&[
                "get",
                "pods",
                "-l",
                &format!("{JOB_LABEL}={}", job.name),
                "--field-selector=status.phase=Pending",
                "-o",
                "json",
                IN_TIME,
            ])),
            cancel: [self.kubectl(&["delete"]), self.made(job)].concat(),
        }
    }

    fn waits_for(&self, state: &str, waiting: &str) -> Option<String> {
        let is_suspended = state.split_whitespace().any(|word| word == "Suspended");
        let suspended = || "the job is suspended, as jobs in a queue without room are".to_owned();
        waiting::reason(waiting).or_else(|| is_suspended.then(suspended))
    }

    fn state_of(&self, text: &str) -> JobState {
        let has = |types: &[&str]| text.split_whitespace().any(|word| types.contains(&word));
        match () {
            () if has(&["Failed"]) => JobState::Failed,
            () if has(&["Completed", "Complete", "Succeeded"]) => JobState::Done,
            () => JobState::Active,
        }
    }
}
