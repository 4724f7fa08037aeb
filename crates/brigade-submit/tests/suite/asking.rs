//! What a cluster is asked for before a job is submitted.

use brigade_submit::{
    Commands, Controller, Job, JobState, Kubernetes, Lacking, Manifest, Needed, Result, System,
    missing_in_system,
};
use serde_json::{Value, json};

use crate::jobs::{job, kubernetes};

/// Kubernetes, with a script in place of `kubectl`.
struct Fake {
    kubernetes: Kubernetes,
    script: String,
}

impl Fake {
    fn instead(&self, words: Vec<String>) -> Vec<String> {
        let shell = ["sh", "-c", &self.script, "kubectl"].map(str::to_owned);
        shell.into_iter().chain(words.into_iter().skip(1)).collect()
    }
}

impl System for Fake {
    fn name(&self) -> &'static str {
        self.kubernetes.name()
    }

    fn check(&self, job: &Job) -> Result<()> {
        self.kubernetes.check(job)
    }

    fn manifests(&self, job: &Job) -> Vec<Manifest> {
        self.kubernetes.manifests(job)
    }

    fn needed(&self, job: &Job) -> Vec<Needed> {
        let needed = self.kubernetes.needed(job).into_iter();
        needed.map(|Needed { name, command }| Needed { name, command: self.instead(command) }).collect()
    }

    fn quotas(&self) -> Option<Vec<String>> {
        self.kubernetes.quotas().map(|command| self.instead(command))
    }

    fn over_quotas(&self, job: &Job, printed: &str) -> Lacking {
        self.kubernetes.over_quotas(job, printed)
    }

    fn commands(&self, job: &Job) -> Commands {
        self.kubernetes.commands(job)
    }

    fn state_of(&self, text: &str) -> JobState {
        self.kubernetes.state_of(text)
    }
}

fn lacking(script: &str) -> Lacking {
    let fake = Fake { kubernetes: kubernetes(Controller::JobSet), script: script.into() };
    let folder = tempfile::tempdir().unwrap();
    missing_in_system(&fake, &job("train --out /data/a"), folder.path())
}

#[test]
fn what_is_not_there_is_named_with_the_quotas_that_are_too_small() {
    let found = lacking(
        r#"case "$*" in
            *secret/*) echo 'Error from server (NotFound): not found' >&2; exit 1 ;;
            *localqueue*) echo "error: the server doesn't have a resource type" >&2; exit 1 ;;
            *resourcequota*) echo '{ "items": [ { "metadata": { "name": "team" }, "spec": { "hard": { "pods": "3" } } } ] }' ;;
        esac"#,
    );
    assert_eq!(
        found.missing,
        [
            "secret/brigade-token, which is not in the cluster",
            "localqueue.kueue.x-k8s.io/team: the cluster has no resources of this type",
            "resourcequota/team allows 3 of pods, of which 0 is used; the job needs 4 x 1 (--nodes)",
        ]
    );
    assert!(found.unknown.is_empty(), "{found:?}");
}

#[test]
fn who_may_not_ask_for_one_is_told_of_the_others() {
    let found = lacking(
        r#"case "$*" in
            *secret/*) echo 'Error from server (Forbidden): secrets is forbidden' >&2; exit 1 ;;
            *claim/*) echo 'Error from server (NotFound): not found' >&2; exit 1 ;;
            *resourcequota*) echo 'Error from server (Forbidden): no' >&2; exit 1 ;;
        esac"#,
    );
    assert_eq!(found.missing, ["persistentvolumeclaim/data, which is not in the cluster"]);
    assert_eq!(found.unknown.len(), 2, "{found:?}");
    assert!(found.unknown[0].starts_with("whether there is secret/brigade-token: sh -c "), "{found:?}");
    assert!(found.unknown[1].starts_with("the quotas of the namespace: sh -c "), "{found:?}");
    // Nobody is asked in vain again and again.
    let found = lacking("echo asked >&2; exit 1");
    assert!(found.missing.is_empty() && found.unknown.len() == 1, "{found:?}");
    let said = "whether there is secret/brigade-token, and what else the job needs: ";
    assert!(found.unknown[0].starts_with(said), "{found:?}");
}

fn quota(hard: &Value, used: &Value) -> Value {
    json!({ "metadata": { "name": "team" }, "spec": { "hard": hard }, "status": { "hard": hard, "used": used } })
}

fn over(system: &Kubernetes, quota: &Value) -> Lacking {
    let list = json!({ "kind": "List", "items": [quota] });
    system.over_quotas(&job("train --out /data/a"), &list.to_string())
}

/// Four nodes of eight GPUs, 7.5 CPUs and 64 GiB.
#[test]
fn quotas_are_compared_with_what_all_nodes_ask_for() {
    let system = Kubernetes {
        cpus: Some("7500m".into()),
        memory: Some("64Gi".into()),
        resources: [("vpc.amazonaws.com/efa".to_owned(), "4".to_owned())].into(),
        queue: None,
        ..kubernetes(Controller::TrainJob)
    };
    let fits = quota(
        &json!({ "requests.nvidia.com/gpu": "40", "requests.cpu": "30", "limits.memory": "256Gi", "pods": "4",
                 "requests.vpc.amazonaws.com/efa": "16", "services": "0" }),
        &json!({ "requests.nvidia.com/gpu": "8", "requests.cpu": "0", "limits.memory": "0" }),
    );
    assert_eq!(over(&system, &fits), Lacking::default());
    for (hard, used, said) in [
        (
            json!({ "requests.nvidia.com/gpu": "40" }),
            json!({ "requests.nvidia.com/gpu": "9" }),
            "resourcequota/team allows 40 of requests.nvidia.com/gpu, of which 9 is used; the job needs 4 x 8 (--gpus)",
        ),
        (json!({ "cpu": "31" }), json!({ "cpu": "1001m" }), "the job needs 4 x 7500m (--cpus)"),
        (json!({ "requests.memory": "255Gi" }), json!({}), "the job needs 4 x 64Gi (--memory)"),
        (json!({ "requests.vpc.amazonaws.com/efa": "8" }), json!({}), "4 x 4 (--resource)"),
        (json!({ "count/pods": "10" }), json!({ "count/pods": "7" }), "4 x 1 (--nodes)"),
    ] {
        let found = over(&system, &quota(&hard, &used));
        assert!(found.missing.len() == 1 && found.missing[0].contains(said), "{said}: {found:?}");
        assert!(found.unknown.is_empty(), "{found:?}");
    }
}

#[test]
fn what_a_quota_does_not_say_is_not_refused() {
    let without = kubernetes(Controller::JobSet);
    let full =
        quota(&json!({ "requests.nvidia.com/gpu": "32" }), &json!({ "requests.nvidia.com/gpu": "32" }));
    // Its queue makes the pods later.
    let queued = over(&without, &full);
    assert!(queued.missing.is_empty() && queued.unknown[0].starts_with("when there is room: "), "{queued:?}");
    let never = over(&without, &quota(&json!({ "requests.nvidia.com/gpu": "31" }), &json!({})));
    assert_eq!(never.missing.len(), 1, "{never:?}");
    let default = over(&without, &quota(&json!({ "limits.cpu": "31" }), &json!({})));
    assert!(default.missing.is_empty() && default.unknown[0].contains("give --cpus"), "{default:?}");
    let mut scoped = full;
    scoped["spec"]["scopes"] = json!(["BestEffort"]);
    let found = over(&without, &scoped);
    assert_eq!((found.missing.len(), found.unknown.len()), (0, 1), "{found:?}");
    for printed in ["", "No resources found", "{}"] {
        let found = without.over_quotas(&job("train --out /data/a"), printed);
        assert!(found.missing.is_empty() && found.unknown.len() == 1, "{printed}: {found:?}");
    }
    assert_eq!(without.over_quotas(&job("train --out /data/a"), r#"{ "items": [] }"#), Lacking::default());
}
