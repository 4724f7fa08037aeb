//! Where the launcher finds itself in each system: it gets the variables and the flags that a manifest leads to.

use std::collections::BTreeMap;

use brigade_launch::{Detected, LaunchArgs, NodeInfo, Source, detect};
use brigade_submit::{Controller, Job, System};
use clap::{Args, Command, FromArgMatches};
use serde_json::{Value, json};

use crate::jobs::{job, kubernetes, manifest, pod_of, slurm, ssh, vertex};

/// What the launcher makes of a command line's flags of the world, and of these variables.
fn node(args: &[String], env: &BTreeMap<String, String>) -> NodeInfo {
    let known: Vec<String> = LaunchArgs::augment_args(Command::new("any"))
        .get_arguments()
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .collect();
    let is_flag = |word: &String| known.contains(word);
    let takes_none = |word: &str| matches!(word, "--standalone" | "--tee");
    let mut line = vec!["any".to_owned()];
    for (at, word) in args.iter().enumerate().filter(|(_, word)| is_flag(word)) {
        line.push(word.clone());
        line.extend(args.get(at + 1).filter(|_| !takes_none(word)).cloned());
    }
    let matches = LaunchArgs::augment_args(Command::new("any")).try_get_matches_from(line).unwrap();
    let flags = LaunchArgs::from_arg_matches(&matches).unwrap();
    match detect(&flags, &|name| env.get(name).cloned()).unwrap() {
        Detected::Node(node) => node,
        Detected::Rank(rank) => panic!("{rank:?} is a rank"),
    }
}

/// Variables and arguments of a container of Kubernetes: pod `index`, to which the controller adds `set`.
fn container(pod: &Value, index: usize, set: &[(&str, String)]) -> (Vec<String>, BTreeMap<String, String>) {
    let mut env = BTreeMap::new();
    for variable in pod["containers"][0]["env"].as_array().unwrap() {
        let path = variable.pointer("/valueFrom/fieldRef/fieldPath");
        let value = match path.and_then(Value::as_str) {
            Some("metadata.annotations['batch.kubernetes.io/job-completion-index']") => index.to_string(),
            Some(other) => panic!("{other}"),
            None => variable["value"].as_str().unwrap().to_owned(),
        };
        env.insert(variable["name"].as_str().unwrap().to_owned(), value);
    }
    env.extend(set.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    // Kubernetes puts variables into arguments.
    let args = pod["containers"][0]["args"].as_array().unwrap().iter().map(|arg| {
        env.iter().fold(arg.as_str().unwrap().to_owned(), |arg, (name, value)| {
            arg.replace(&format!("$({name})"), value)
        })
    });
    (args.collect(), env.clone())
}

fn check(found: NodeInfo, index: usize, source: Source, endpoint: &str) {
    let at = found.endpoint.as_ref().map(ToString::to_string);
    let expected = (4, index, Some(8), Some(endpoint.to_owned()), source);
    assert_eq!((found.nnodes, found.node_rank, found.nproc_per_node, at, found.source), expected);
}

const TRAIN: &str = "train --out /data/runs/a";

#[test]
fn of_a_jobset() {
    let manifest = manifest(&kubernetes(Controller::JobSet), &job(TRAIN));
    for index in 0..4 {
        let (args, env) = container(pod_of(Controller::JobSet, &manifest), index, &[]);
        check(node(&args, &env), index, Source::Kubeflow, "llama-7b-node-0-0.llama-7b:29500");
    }
    assert_eq!(manifest.pointer("/spec/network/subdomain").unwrap(), "llama-7b");
    assert_eq!(manifest.pointer("/spec/replicatedJobs/0/template/spec/completions").unwrap(), 4);
}

#[test]
fn of_a_trainjob() {
    let manifest = manifest(&kubernetes(Controller::TrainJob), &job(TRAIN));
    let number = |path: &str| manifest.pointer(path).unwrap().to_string();
    // As the trainer's plugin for torch does.
    let set = |index: usize| {
        [
            ("PET_NNODES", number("/items/1/spec/trainer/numNodes")),
            ("PET_NPROC_PER_NODE", number("/items/1/spec/trainer/numProcPerNode")),
            ("PET_NODE_RANK", index.to_string()),
            ("PET_MASTER_ADDR", "llama-7b-node-0-0.llama-7b".to_owned()),
            ("PET_MASTER_PORT", "29500".to_owned()),
        ]
    };
    for index in 0..4 {
        let (args, env) = container(pod_of(Controller::TrainJob, &manifest), index, &set(index));
        check(node(&args, &env), index, Source::Kubeflow, "llama-7b-node-0-0.llama-7b:29500");
    }
}

/// Of all versions of the operator: the number of ranks in `WORLD_SIZE` differs, and `MASTER_ADDR` may be `localhost` on the master.
#[test]
fn of_a_pytorchjob() {
    let manifest = manifest(&kubernetes(Controller::PyTorchJob), &job(TRAIN));
    for (index, world) in [(0, "4"), (2, "4"), (3, "32")] {
        let address = if index == 0 { "localhost" } else { "llama-7b-master-0" };
        let set = [
            ("RANK", index.to_string()),
            ("WORLD_SIZE", world.to_owned()),
            ("MASTER_ADDR", address.to_owned()),
            ("MASTER_PORT", "23456".to_owned()),
        ];
        let (args, env) = container(pod_of(Controller::PyTorchJob, &manifest), index, &set);
        check(node(&args, &env), index, Source::Flags, "llama-7b-master-0:29500");
    }
}

#[test]
fn of_vertex_ai() {
    let manifest = manifest(&vertex(), &job("train --out gs://bucket/runs/a"));
    let pools = manifest["workerPoolSpecs"].as_array().unwrap();
    let hosts = |pool: usize| -> Vec<String> {
        let count: usize = pools[pool]["replicaCount"].as_str().unwrap().parse().unwrap();
        (0..count).map(|index| format!("cmle-training-workerpool{pool}-{index}:2222")).collect()
    };
    for (index, (pool, task)) in [(0, 0), (1, 0), (1, 1), (1, 2)].into_iter().enumerate() {
        let spec = json!({
            "cluster": { "workerpool0": hosts(0), "workerpool1": hosts(1) }, "environment": "cloud",
            "task": { "type": format!("workerpool{pool}"), "index": task },
        });
        let args: Vec<String> = serde_json::from_value(pools[pool]["containerSpec"]["args"].clone()).unwrap();
        // Vertex AI also sets the variables that PyTorch knows: here, they number machines.
        let set = [
            ("CLUSTER_SPEC", spec.to_string()),
            ("RANK", index.to_string()),
            ("WORLD_SIZE", "4".to_owned()),
            ("MASTER_ADDR", "cmle-training-workerpool0-0".to_owned()),
            ("MASTER_PORT", "3333".to_owned()),
        ];
        let env = set.map(|(name, value)| (name.to_owned(), value)).into();
        check(node(&args, &env), index, Source::Vertex, "cmle-training-workerpool0-0:2222");
    }
}

#[test]
fn of_slurm() {
    let script = slurm().manifests(&job(TRAIN))[0].text.clone();
    let line = script.lines().find(|line| line.starts_with("srun ")).unwrap();
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    for index in 0..4 {
        let env = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_NNODES", "4"),
            ("SLURM_PROCID", &index.to_string()),
            ("SLURM_NODEID", &index.to_string()),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "gpu[01-04]"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        check(node(&args, &env), index, Source::Slurm, "gpu01:15007");
    }
}

#[test]
fn of_hosts_by_ssh_and_of_single_nodes() {
    let hosts = ssh("me@one,two,three,four");
    for index in 0..4 {
        let script = hosts.script(&job(TRAIN), index);
        let line = script.lines().find(|line| line.starts_with("brigade ")).unwrap();
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        check(node(&args, &BTreeMap::new()), index, Source::Flags, "one:29400");
    }
    let one = Job { nodes: 1, ..job(TRAIN) };
    let script = slurm().manifests(&one)[0].text.clone();
    let line = script.lines().find(|line| line.starts_with("srun ")).unwrap();
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let env = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NTASKS", "1"),
        ("SLURM_NNODES", "1"),
        ("SLURM_PROCID", "0"),
    ];
    let found = node(&args, &env.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    assert_eq!((found.nnodes, found.nproc_per_node, found.endpoint), (1, Some(8), None));
    let manifest = manifest(&kubernetes(Controller::PyTorchJob), &one);
    let pod = manifest.pointer("/spec/pytorchReplicaSpecs/Master/template/spec").unwrap();
    let set =
        [("RANK", "0".to_owned()), ("WORLD_SIZE", "1".to_owned()), ("MASTER_ADDR", "localhost".to_owned())];
    let (args, env) = container(pod, 0, &set);
    let found = node(&args, &env);
    assert_eq!((found.nnodes, found.nproc_per_node, found.endpoint), (1, Some(8), None));
}
