//! What the published APIs allow, as far as manifests use it: the fields of each object, which are needed, and what they hold.
//!
//! Written down from the types of `jobset.x-k8s.io/v1alpha2`, `trainer.kubeflow.org/v1alpha1`, `kubeflow.org/v1`, `batch/v1`, `core/v1` and Vertex AI's `v1`.

use serde_json::Value;

/// An object's name, and its fields: `name:type`, with `!` after the name where the field is needed. A type is the name of an object, `text`, `number`, `yes-no`,
/// `map` (of text), a choice `a|b`, or `[type]`.
const OBJECTS: &[(&str, &str)] = &[
    ("JobSet", "apiVersion!:jobset.x-k8s.io/v1alpha2 kind!:JobSet metadata!:Metadata spec!:JobSetSpec"),
    ("Metadata", "name:text labels:map annotations:map"),
    ("JobSetSpec", "replicatedJobs!:[ReplicatedJob] network:Network failurePolicy:FailurePolicy"),
    ("Network", "enableDNSHostnames:yes-no subdomain:text"),
    ("FailurePolicy", "maxRestarts:number rules:[FailurePolicyRule]"),
    (
        "FailurePolicyRule",
        "name!:text action!:FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts \
         onJobFailureReasons:[PodFailurePolicy|BackoffLimitExceeded|DeadlineExceeded]",
    ),
    ("ReplicatedJob", "name!:text replicas:number template!:JobTemplate"),
    ("JobTemplate", "metadata:Metadata spec!:JobSpec"),
    (
        "JobSpec",
        "parallelism:number completions:number completionMode:Indexed|NonIndexed backoffLimit:number \
         podFailurePolicy:PodFailurePolicy template!:PodTemplate",
    ),
    ("PodFailurePolicy", "rules!:[PodFailureRule]"),
    (
        "PodFailureRule",
        "action!:Ignore|FailJob|FailIndex|Count onExitCodes:OnExitCodes onPodConditions:[OnPodCondition]",
    ),
    ("OnExitCodes", "containerName:text operator!:In|NotIn values!:[number]"),
    ("OnPodCondition", "type!:DisruptionTarget status!:True|False|Unknown"),
    ("PodTemplate", "metadata:Metadata spec!:PodSpec"),
    (
        "PodSpec",
        "containers!:[Container] volumes:[Volume] restartPolicy:Never|OnFailure|Always \
         terminationGracePeriodSeconds:number serviceAccountName:text securityContext:PodSecurityContext \
         nodeSelector:map affinity:Affinity tolerations:[Toleration] priorityClassName:text \
         imagePullSecrets:[LocalReference]",
    ),
    (
        "PodSecurityContext",
        "fsGroup:number fsGroupChangePolicy:OnRootMismatch|Always runAsNonRoot:yes-no runAsUser:number seccompProfile:SeccompProfile",
    ),
    ("LocalReference", "name:text"),
    ("SeccompProfile", "type!:RuntimeDefault|Unconfined|Localhost"),
    ("SecurityContext", "allowPrivilegeEscalation:yes-no capabilities:Capabilities"),
    ("Capabilities", "add:[text] drop:[text]"),
    ("Toleration", "key:text operator:Exists|Equal value:text effect:NoSchedule|PreferNoSchedule|NoExecute"),
    (
        "Container",
        "name!:text image!:text command:[text] args:[text] env:[EnvVar] resources:Resources volumeMounts:[VolumeMount] \
         securityContext:SecurityContext",
    ),
    ("EnvVar", "name!:text value:text valueFrom:EnvVarSource"),
    ("EnvVarSource", "fieldRef:FieldRef secretKeyRef:SecretKeyRef"),
    ("SecretKeyRef", "name:text key!:text"),
    ("FieldRef", "fieldPath!:text"),
    ("Resources", "limits:map requests:map"),
    ("VolumeMount", "name!:text mountPath!:text readOnly:yes-no"),
    (
        "Volume",
        "name!:text emptyDir:EmptyDir secret:Secret persistentVolumeClaim:PersistentVolumeClaim hostPath:HostPath",
    ),
    ("HostPath", "path!:text type:Directory|DirectoryOrCreate"),
    ("EmptyDir", "medium:Memory|HugePages"),
    ("Secret", "secretName:text defaultMode:number"),
    ("PersistentVolumeClaim", "claimName!:text"),
    ("Affinity", "nodeAffinity:NodeAffinity podAffinity:PodAffinity"),
    ("NodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution:NodeSelector"),
    ("NodeSelector", "nodeSelectorTerms!:[NodeSelectorTerm]"),
    ("NodeSelectorTerm", "matchExpressions:[MatchExpression]"),
    ("MatchExpression", "key!:text operator!:In|NotIn|Exists values:[text]"),
    ("PodAffinity", "preferredDuringSchedulingIgnoredDuringExecution:[WeightedTerm]"),
    ("WeightedTerm", "weight!:number podAffinityTerm!:PodAffinityTerm"),
    ("PodAffinityTerm", "topologyKey!:text labelSelector:LabelSelector"),
    ("LabelSelector", "matchLabels:map"),
    ("TrainJobs", "apiVersion!:v1 kind!:List items!:[TrainingRuntime|TrainJob]"),
    (
        "TrainingRuntime",
        "apiVersion!:trainer.kubeflow.org/v1alpha1 kind!:TrainingRuntime metadata!:Metadata spec!:RuntimeSpec",
    ),
    ("RuntimeSpec", "mlPolicy:MlPolicy template!:JobSetTemplate"),
    ("MlPolicy", "numNodes:number torch:Torch"),
    ("Torch", ""),
    ("JobSetTemplate", "metadata:Metadata spec!:JobSetSpec"),
    (
        "TrainJob",
        "apiVersion!:trainer.kubeflow.org/v1alpha1 kind!:TrainJob metadata!:Metadata spec!:TrainJobSpec",
    ),
    ("TrainJobSpec", "runtimeRef!:RuntimeRef trainer:Trainer"),
    ("RuntimeRef", "apiGroup:trainer.kubeflow.org kind:TrainingRuntime|ClusterTrainingRuntime name!:text"),
    ("Trainer", "numNodes:number numProcPerNode:number"),
    ("PyTorchJob", "apiVersion!:kubeflow.org/v1 kind!:PyTorchJob metadata!:Metadata spec!:PyTorchJobSpec"),
    ("PyTorchJobSpec", "runPolicy:RunPolicy pytorchReplicaSpecs!:ReplicaSpecs"),
    ("RunPolicy", "cleanPodPolicy:All|Running|None backoffLimit:number"),
    ("ReplicaSpecs", "Master:ReplicaSpec Worker:ReplicaSpec"),
    ("ReplicaSpec", "replicas:number restartPolicy:Always|OnFailure|Never|ExitCode template!:PodTemplate"),
    ("CustomJobSpec", "workerPoolSpecs!:[WorkerPoolSpec] scheduling:Scheduling serviceAccount:text"),
    (
        "WorkerPoolSpec",
        "machineSpec!:MachineSpec replicaCount:text containerSpec!:ContainerSpec diskSpec:DiskSpec",
    ),
    (
        "MachineSpec",
        "machineType!:text acceleratorCount:number \
         acceleratorType:NVIDIA_TESLA_V100|NVIDIA_L4|NVIDIA_TESLA_A100|NVIDIA_A100_80GB|NVIDIA_H100_80GB|NVIDIA_H100_MEGA_80GB|NVIDIA_TESLA_T4|NVIDIA_TESLA_P4|NVIDIA_TESLA_P100|NVIDIA_H200_141GB|NVIDIA_B200",
    ),
    ("ContainerSpec", "imageUri!:text command:[text] args:[text] env:[VertexEnvVar]"),
    ("VertexEnvVar", "name!:text value!:text"),
    ("DiskSpec", "bootDiskType:pd-ssd|pd-standard|hyperdisk-balanced bootDiskSizeGb:number"),
    ("Scheduling", "strategy:STANDARD|SPOT|FLEX_START timeout:text"),
];

/// What is wrong with a value of this type: nothing if the list is empty.
pub fn problems(kind: &str, value: &Value) -> Vec<String> {
    let mut all = Vec::new();
    check(kind, value, "", &mut all);
    all
}

fn check(kind: &str, value: &Value, at: &str, problems: &mut Vec<String>) {
    let mut wrong = |what: String| problems.push(format!("{at}: {what}"));
    if let Some(inner) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
        return match value.as_array() {
            Some(values) => {
                values
                    .iter()
                    .enumerate()
                    .for_each(|(i, value)| check(inner, value, &format!("{at}/{i}"), problems));
            }
            None => wrong(format!("{value} is no list")),
        };
    }
    let known = OBJECTS.iter().find(|(name, _)| *name == kind && !value.is_string());
    if let Some((_, fields)) = known {
        return object(fields, value, at, problems);
    }
    let right = match kind {
        "text" => value.is_string(),
        "number" => value.is_u64(),
        "yes-no" => value.is_boolean(),
        "map" => value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
        choice => {
            let mut choices = choice.split('|');
            // A list of different objects: each says by its kind which it is.
            if let Some(kind) = value["kind"].as_str().filter(|_| value.is_object()) {
                return match choices.any(|choice| choice == kind) {
                    true => check(kind, value, at, problems),
                    false => wrong(format!("{kind} is none of {choice}")),
                };
            }
            value.as_str().is_some_and(|text| choices.any(|choice| choice == text))
        }
    };
    if !right {
        wrong(format!("{value} is no {kind}"));
    }
}

fn object(fields: &str, value: &Value, at: &str, problems: &mut Vec<String>) {
    let Some(given) = value.as_object() else { return problems.push(format!("{at}: {value} is no object")) };
    let known: Vec<(&str, bool, &str)> = fields
        .split_whitespace()
        .map(|field| {
            let (name, kind) = field.split_once(':').unwrap();
            (name.trim_end_matches('!'), name.ends_with('!'), kind)
        })
        .collect();
    for (name, value) in given {
        match known.iter().find(|(known, ..)| known == name) {
            Some((_, _, kind)) => check(kind, value, &format!("{at}/{name}"), problems),
            None => problems.push(format!("{at}: there is no field {name}")),
        }
    }
    let lacking = known.iter().filter(|(name, needed, _)| *needed && !given.contains_key(*name));
    problems.extend(lacking.map(|(name, ..)| format!("{at}: {name} is needed")));
}

#[test]
fn what_the_apis_do_not_allow_is_noticed() {
    let wrong = serde_json::json!({ "kind": "JobSet", "apiVersion": "v1", "metadata": {}, "spec": { "replicatedJobs": [{
        "name": 1, "template": { "spec": { "template": {}, "completionMode": "indexed", "parallel": 2 } } }] } });
    let found = problems("JobSet", &wrong);
    for said in [
        "/apiVersion: \"v1\" is no jobset.x-k8s.io/v1alpha2",
        "/spec/replicatedJobs/0/name: 1 is no text",
        "/spec/replicatedJobs/0/template/spec/completionMode: \"indexed\" is no Indexed|NonIndexed",
        "/spec/replicatedJobs/0/template/spec: there is no field parallel",
        "/spec/replicatedJobs/0/template/spec/template: spec is needed",
    ] {
        assert!(found.iter().any(|problem| problem == said), "{said}: {found:#?}");
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}
