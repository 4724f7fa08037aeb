//! The parts of Kubernetes' objects that jobs have, under the names of its API.

use std::collections::BTreeMap;

use serde::Serialize;

pub type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, Default, Serialize)]
pub struct Metadata {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub annotations: Labels,
}

/// An object of any kind.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Object<S> {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub metadata: Metadata,
    pub spec: S,
}

/// Something that is made for each node, each replica and so on.
#[derive(Debug, Clone, Serialize)]
pub struct Template<S> {
    pub metadata: Metadata,
    pub spec: S,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<&'static str>,
    pub termination_grace_period_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalReference>,
    pub security_context: PodSecurityContext,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub node_selector: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    pub containers: Vec<Container>,
    pub volumes: Vec<Volume>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSecurityContext {
    pub fs_group: u32,
    pub fs_group_change_policy: &'static str,
    #[serde(flatten)]
    pub restricted: Option<RestrictedPod>,
}

/// What the level `restricted` of the Pod Security Standards asks of a pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestrictedPod {
    pub run_as_non_root: bool,
    pub run_as_user: u32,
    pub seccomp_profile: SeccompProfile,
}

#[derive(Debug, Clone, Serialize)]
pub struct SeccompProfile {
    pub r#type: &'static str,
}

/// What the level `restricted` asks of a container, and what it may do more than others.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
    pub capabilities: Capabilities,
}

#[derive(Debug, Clone, Serialize)]
pub struct Capabilities {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<&'static str>,
}

/// The name of an object in the same namespace.
#[derive(Debug, Clone, Serialize)]
pub struct LocalReference {
    pub name: String,
}

/// Without a value any is tolerated, without an effect all are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Toleration {
    /// The key of a taint.
    pub key: String,
    /// `Exists` or `Equal`.
    pub operator: &'static str,
    /// The taint's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What the taint does to other pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

impl Toleration {
    /// Of `KEY[=VALUE][:EFFECT]`, as `kubectl taint` writes taints.
    pub fn parse(text: &str) -> Self {
        let (taint, effect) =
            text.split_once(':').map_or((text, None), |(taint, effect)| (taint, Some(effect)));
        let (key, value) = taint.split_once('=').map_or((taint, None), |(key, value)| (key, Some(value)));
        Self {
            key: key.into(),
            operator: if value.is_some() { "Equal" } else { "Exists" },
            value: value.map(str::to_owned),
            effect: effect.map(str::to_owned),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    pub name: &'static str,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<EnvVar>,
    pub resources: Resources,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    pub volume_mounts: Vec<VolumeMount>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum EnvVarSource {
    FieldRef { field_path: &'static str },
    SecretKeyRef { name: String, key: String },
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Resources {
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub requests: Labels,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub limits: Labels,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    pub name: String,
    pub mount_path: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Volume {
    pub name: String,
    #[serde(flatten)]
    pub source: VolumeSource,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum VolumeSource {
    EmptyDir { medium: &'static str },
    Secret { secret_name: String, default_mode: u32 },
    PersistentVolumeClaim { claim_name: String },
    HostPath { path: String, r#type: &'static str },
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<PodAffinity>,
}

#[derive(Debug, Clone, Serialize)]
pub struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: NodeSelector,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// A node must satisfy one of them.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    pub match_expressions: Vec<MatchExpression>,
}

#[derive(Debug, Clone, Serialize)]
pub struct MatchExpression {
    pub key: &'static str,
    pub operator: &'static str,
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct PodAffinity {
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Vec<WeightedTerm>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightedTerm {
    pub weight: u32,
    pub pod_affinity_term: PodAffinityTerm,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAffinityTerm {
    pub topology_key: String,
    pub label_selector: LabelSelector,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    pub match_labels: Labels,
}

/// A `batch/v1` Job.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completions: Option<usize>,
    pub completion_mode: &'static str,
    pub backoff_limit: u32,
    pub pod_failure_policy: PodFailurePolicy,
    pub template: Template<PodSpec>,
}

#[derive(Debug, Clone, Serialize)]
pub struct PodFailurePolicy {
    pub rules: Vec<PodFailureRule>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFailureRule {
    pub action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<OnExitCodes>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_pod_conditions: Vec<OnPodCondition>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OnExitCodes {
    pub container_name: &'static str,
    pub operator: &'static str,
    pub values: Vec<u8>,
}

#[derive(Debug, Clone, Serialize)]
pub struct OnPodCondition {
    pub r#type: &'static str,
    pub status: &'static str,
}
