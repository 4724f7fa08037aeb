//! Clusters described in JSON: Vertex AI's `CLUSTER_SPEC` and TensorFlow's `TF_CONFIG`.
//!
//! Both are `{"cluster": {"<type>": ["host:port", ...]}, "task": {"type": "<type>", "index": 0}}`; they
//! differ in the types whose members are nodes, and in which of them is node 0.

use brigade_sorted::SortedMap;
use serde::Deserialize;

use brigade_comm::{MAX_WORLD_SIZE, allowed_world_size};

use super::{
    detected::{Detected, NodeInfo, Source},
    variables::Variables,
};
use crate::{
    endpoint::{DEFAULT_MASTER_PORT, Endpoint},
    error::{Error, Result},
};

/// The longest description that is read, in bytes.
const MAX_BYTES: usize = 16 << 20;

#[derive(Deserialize)]
struct Spec {
    cluster: SortedMap<String, Vec<String>>,
    task: Task,
}

#[derive(Deserialize)]
struct Task {
    r#type: String,
    #[serde(deserialize_with = "number_or_text")]
    index: usize,
}

/// An index is a number; some platforms write it as text.
fn number_or_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Index {
        Number(usize),
        Text(String),
    }
    match Index::deserialize(deserializer) {
        Ok(Index::Number(n)) => Ok(n),
        Ok(Index::Text(text)) => {
            text.parse().map_err(|_| serde::de::Error::custom("task.index is not a number"))
        }
        Err(_) => Err(serde::de::Error::custom("task.index is not a number")),
    }
}

/// Vertex AI: `workerpool0` has the one node 0, `workerpool1[i]` is node `i + 1`.
pub fn read_cluster_spec(env: Variables) -> Result<Detected> {
    let (name, text) = ("CLUSTER_SPEC", env.get("CLUSTER_SPEC").unwrap_or_default());
    let spec = parse(name, &text)?;
    if spec.cluster.get("workerpool0").map_or(0, Vec::len) != 1 {
        return Err(Error::variable(name, &text, "cluster.workerpool0 must list exactly one host"));
    }
    node(name, &text, &spec, &["workerpool0", "workerpool1"], Source::Vertex)
}

/// How many nodes `TF_CONFIG` has for servers: its `ps` tasks, which are the last nodes. Where there is no such variable, or it is wrong,
/// there are none.
pub fn server_nodes(env: &dyn Fn(&str) -> Option<String>) -> usize {
    let spec = env("TF_CONFIG").and_then(|text| parse("TF_CONFIG", &text).ok());
    spec.and_then(|spec| spec.cluster.get("ps").map(Vec::len)).unwrap_or(0)
}

/// TensorFlow: the chief is node 0, `worker[i]` follows it; without a chief, worker 0 is node 0. The `ps` tasks are the last nodes.
pub fn read_tf_config(env: Variables) -> Result<Detected> {
    let (name, text) = ("TF_CONFIG", env.get("TF_CONFIG").unwrap_or_default());
    let spec = parse(name, &text)?;
    if spec.task.r#type == "evaluator" {
        let allowed =
            "an evaluator task takes no part in training; start the program on chief, worker and ps";
        return Err(Error::variable(name, &text, allowed));
    }
    let chiefs =
        ["chief", "master"].map(|kind| spec.cluster.get(kind).map_or(0, Vec::len)).iter().sum::<usize>();
    if chiefs > 1 {
        return Err(Error::variable(name, &text, "cluster must list at most one chief"));
    }
    let workers = spec.cluster.get("worker").map_or(0, Vec::len);
    if chiefs + workers == 0 {
        let allowed = "ps tasks serve workers: cluster must also list a chief or a worker";
        return Err(Error::variable(name, &text, allowed));
    }
    node(name, &text, &spec, &["chief", "master", "worker", "ps"], Source::TfConfig)
}

fn parse(name: &str, text: &str) -> Result<Spec> {
    if text.len() > MAX_BYTES {
        return Err(Error::variable(name, text, format!("it must have at most {MAX_BYTES} bytes")));
    }
    let shape =
        r#"it must be JSON like {"cluster":{"<type>":["host:port"]},"task":{"type":"<type>","index":0}}"#;
    serde_json::from_str(text).map_err(|error| Error::variable(name, text, format!("{shape}: {error}")))
}

/// This task's node, numbering the members of `types` in their order.
fn node(name: &str, text: &str, spec: &Spec, types: &[&str], source: Source) -> Result<Detected> {
    let bad = |allowed: String| Error::variable(name, text, allowed);
    let members = |kind: &str| spec.cluster.get(kind).map_or(&[][..], Vec::as_slice);
    let task = &spec.task;
    let position = types.iter().position(|kind| *kind == task.r#type).ok_or_else(|| {
        bad(format!("task.type {:?} is unknown; allowed are {}", task.r#type, types.join(", ")))
    })?;
    let size = members(&task.r#type).len();
    if task.index >= size {
        let (kind, index) = (&task.r#type, task.index);
        return Err(bad(format!("task.index {index} is not below {size}, the length of cluster.{kind}")));
    }
    let before: usize = types[..position].iter().map(|kind| members(kind).len()).sum();
    let all: Vec<&String> = types.iter().flat_map(|kind| members(kind)).collect();
    if all.len() > MAX_WORLD_SIZE {
        return Err(bad(format!(
            "it has {} nodes, each with at least one rank: {}",
            all.len(),
            allowed_world_size()
        )));
    }
    let endpoint = Endpoint::parse(all[0], DEFAULT_MASTER_PORT)
        .map_err(|allowed| bad(format!("{:?} is not a host:port; {allowed}", all[0])))?;
    Ok(Detected::Node(NodeInfo {
        nnodes: all.len(),
        min_nodes: all.len(),
        node_rank: before + task.index,
        nproc_per_node: None,
        endpoint: (all.len() > 1).then_some(endpoint),
        source,
        overridden: None,
    }))
}
