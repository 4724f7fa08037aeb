//! The pod of a node, whatever controller makes it.

use std::path::Path;

use super::types::{
    Affinity, Capabilities, Container, EnvVar, EnvVarSource, LabelSelector, Labels, LocalReference,
    MatchExpression, Metadata, NodeAffinity, NodeSelector, NodeSelectorTerm, PodAffinity, PodAffinityTerm,
    PodSecurityContext, PodSpec, Resources, RestrictedPod, SeccompProfile, SecurityContext, Template,
    Toleration, Volume, VolumeMount, VolumeSource, WeightedTerm,
};
use super::{EnvSecret, HostPath, Kubernetes};
use crate::job::Job;

/// The label of all pods of a job.
pub const JOB_LABEL: &str = "brigade/job";

/// The resource of NVIDIA's GPUs.
pub const GPU: &str = "nvidia.com/gpu";

/// The user in images of `cargo xtask image`, and the group that owns what is mounted.
const USER: u32 = 65_532;

/// Where the secret is mounted.
pub const SECRETS: &str = "/run/secrets/brigade";

/// Where memory to share is mounted.
pub const SHARED: &str = "/dev/shm";

/// The variable of the folder of the token cache, which comes before the setting `data.cache_dir`.
const CACHE: &str = "BRIGADE_CACHE_DIR";

/// The pods' interface of the cluster's own network, where further ones carry data.
const INTERFACE: &str = "eth0";

/// The metadata of the job, or of what stands for it.
pub fn metadata(system: &Kubernetes, job: &Job) -> Metadata {
    let mut labels = Labels::from([(JOB_LABEL.into(), job.name.clone())]);
    labels.extend(system.queue.clone().map(|queue| ("kueue.x-k8s.io/queue-name".into(), queue)));
    Metadata { name: job.name.clone(), labels, annotations: Labels::new() }
}

/// The pod of a node: its container is called `container`, and the command places it by `placement`, in which Kubernetes replaces variables.
pub fn pod(
    system: &Kubernetes,
    job: &Job,
    container: &'static str,
    placement: &[String],
    own_env: Vec<EnvVar>,
) -> Template<PodSpec> {
    let escaped = job.escaped();
    let own = [placement, &escaped.patience()].concat();
    let mut command = escaped.command(&own);
    let args = command.split_off(1);
    let mut env: Vec<EnvVar> = escaped
        .environment(Some(INTERFACE))
        .into_iter()
        .chain(cache(system, job))
        .map(|(name, value)| variable(&name, value))
        .collect();
    env.extend(system.env_secrets.iter().map(|EnvSecret { variable, secret, key }| EnvVar {
        name: variable.clone(),
        value: None,
        value_from: Some(EnvVarSource::SecretKeyRef { name: secret.clone(), key: key.clone() }),
    }));
    env.extend(own_env);
    let mut mounts = vec![mount("shm", SHARED)];
    let memory = VolumeSource::EmptyDir { medium: "Memory" };
    let mut volumes = vec![Volume { name: "shm".into(), source: memory }];
    if job.nodes > 1 {
        env.push(variable("BRIGADE_TOKEN_FILE", format!("{SECRETS}/token")));
        mounts.push(VolumeMount { read_only: true, ..mount("token", SECRETS) });
        let source = VolumeSource::Secret { secret_name: system.token_secret.clone(), default_mode: 0o440 };
        volumes.push(Volume { name: "token".into(), source });
    }
    for (at, claim) in system.claims.iter().enumerate() {
        let name = format!("volume-{at}");
        mounts.push(mount(&name, &claim.path));
        let source = VolumeSource::PersistentVolumeClaim { claim_name: claim.name.clone() };
        volumes.push(Volume { name, source });
    }
    for (at, HostPath { host, path }) in system.host_paths.iter().enumerate() {
        let name = format!("host-{at}");
        mounts.push(mount(&name, path));
        // A node that lacks it is no node for this pod.
        let source = VolumeSource::HostPath { path: host.clone(), r#type: "Directory" };
        volumes.push(Volume { name, source });
    }
    let container = Container {
        name: container,
        image: system.image.clone().unwrap_or_default(),
        command,
        args,
        env,
        resources: resources(system, job),
        security_context: security_context(system),
        volume_mounts: mounts,
    };
    let labels = Labels::from([(JOB_LABEL.into(), job.name.clone())]);
    let mut annotations = match (&system.queue, &system.topology) {
        (Some(_), Some(key)) => {
            Labels::from([("kueue.x-k8s.io/podset-preferred-topology".into(), key.clone())])
        }
        _ => Labels::new(),
    };
    annotations.extend(system.annotations.clone());
    let pull_secrets = system.image_pull_secrets.iter().map(|name| LocalReference { name: name.clone() });
    let spec = PodSpec {
        restart_policy: Some("Never"),
        termination_grace_period_seconds: job.end_seconds(),
        service_account_name: system.service_account.clone(),
        priority_class_name: system.priority_class.clone(),
        image_pull_secrets: pull_secrets.collect(),
        security_context: PodSecurityContext {
            fs_group: USER,
            // Files of large volumes are not gone through at each start.
            fs_group_change_policy: "OnRootMismatch",
            restricted: system.restricted.then_some(RestrictedPod {
                run_as_non_root: true,
                run_as_user: USER,
                seccomp_profile: SeccompProfile { r#type: "RuntimeDefault" },
            }),
        },
        node_selector: system.node_selector.clone(),
        affinity: affinity(system, job),
        tolerations: tolerations(system, job),
        containers: vec![container],
        volumes,
    };
    Template { metadata: Metadata { labels, annotations, ..Metadata::default() }, spec }
}

/// Where the cache of tokens outlives a pod: beside the results if they are in a volume, unless the user says where it is.
fn cache(system: &Kubernetes, job: &Job) -> Option<(String, String)> {
    let is_theirs = |name: &str| [CACHE, "XDG_CACHE_HOME"].contains(&name);
    if job.env.keys().any(|name| is_theirs(name))
        || system.env_secrets.iter().any(|secret| is_theirs(&secret.variable))
        || job.sets("data.cache_dir")
    {
        return None;
    }
    let (_, folder) = job.results()?;
    let volume = system.claims.iter().find(|claim| Path::new(folder).starts_with(&claim.path))?;
    let beside = Path::new(folder).parent().filter(|parent| parent.starts_with(&volume.path));
    let folder = beside.unwrap_or(Path::new(&volume.path)).join(".brigade-cache");
    Some((CACHE.into(), folder.to_string_lossy().replace('$', "$$")))
}

/// A variable with a value.
pub fn variable(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value), value_from: None }
}

/// A variable with the number of the pod in its Job.
pub fn index_variable(name: &str) -> EnvVar {
    let field_path = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
    EnvVar { name: name.into(), value: None, value_from: Some(EnvVarSource::FieldRef { field_path }) }
}

fn security_context(system: &Kubernetes) -> Option<SecurityContext> {
    let Kubernetes { restricted, capabilities, .. } = system;
    (*restricted || !capabilities.is_empty()).then(|| SecurityContext {
        allow_privilege_escalation: restricted.then_some(false),
        capabilities: Capabilities {
            add: capabilities.clone(),
            drop: if *restricted { vec!["ALL"] } else { Vec::new() },
        },
    })
}

/// CPUs and memory are asked for as much as they are limited, so that nothing else gets them; all else always is.
fn resources(system: &Kubernetes, job: &Job) -> Resources {
    let given = [("cpu", &system.cpus), ("memory", &system.memory)];
    let given = given.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount.clone()?)));
    let requests: Labels = given.collect();
    let mut limits = requests.clone();
    limits.extend(system.resources.clone());
    if job.gpus > 0 {
        limits.insert(GPU.into(), job.gpus.to_string());
    }
    Resources { requests, limits }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), read_only: false }
}

/// The taint that keeps other pods from nodes with GPUs, and those of the user.
fn tolerations(system: &Kubernetes, job: &Job) -> Vec<Toleration> {
    let of_gpus = Toleration::parse(&format!("{GPU}:NoSchedule"));
    let given = system.tolerations.iter().map(|text| Toleration::parse(text));
    (job.gpus > 0).then_some(of_gpus).into_iter().chain(given).collect()
}

/// Nodes with the GPUs that were asked for, and near each other.
fn affinity(system: &Kubernetes, job: &Job) -> Option<Affinity> {
    let term = |key, values: &[&str]| NodeSelectorTerm {
        match_expressions: vec![MatchExpression {
            key,
            operator: "In",
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }],
    };
    let node_affinity = job.gpu_kind.map(|kind| {
        let labels =
            [("cloud.google.com/gke-accelerator", kind.gke), ("nvidia.com/gpu.product", kind.products)];
        let known = labels.into_iter().filter(|(_, values)| !values.is_empty());
        let node_selector_terms = known.map(|(key, values)| term(key, values)).collect();
        NodeAffinity { required: NodeSelector { node_selector_terms } }
    });
    let pod_affinity = system.topology.clone().map(|topology_key| {
        let match_labels = Labels::from([(JOB_LABEL.into(), job.name.clone())]);
        let pod_affinity_term =
            PodAffinityTerm { topology_key, label_selector: LabelSelector { match_labels } };
        PodAffinity { preferred: vec![WeightedTerm { weight: 100, pod_affinity_term }] }
    });
    (node_affinity.is_some() || pod_affinity.is_some()).then_some(Affinity { node_affinity, pod_affinity })
}
