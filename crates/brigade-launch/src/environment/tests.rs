use super::*;

fn find_with(args: &LaunchArgs, set: &str) -> Result<Detected> {
    let pairs: Vec<(&str, &str)> = set.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    detect(args, &|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
}

fn find(set: &str) -> Result<Detected> {
    find_with(&LaunchArgs::default(), set)
}

fn rank(set: &str) -> RankInfo {
    match find(set).unwrap() {
        Detected::Rank(rank) => rank,
        other => panic!("{set}: {other:?}"),
    }
}

fn node_with(args: &LaunchArgs, set: &str) -> NodeInfo {
    match find_with(args, set).unwrap() {
        Detected::Node(node) => node,
        other => panic!("{set}: {other:?}"),
    }
}

fn node(set: &str) -> NodeInfo {
    node_with(&LaunchArgs::default(), set)
}

fn nproc(n: usize) -> LaunchArgs {
    LaunchArgs { nproc_per_node: Some(NprocPerNode::Count(n)), ..LaunchArgs::default() }
}

const TORCHRUN: &str =
    "RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=head MASTER_PORT=1234";
const SLURM: &str = "SLURM_JOB_ID=4012345 SLURM_JOB_NODELIST=gpu[01-03,07],login1 SLURM_NNODES=2 SLURM_NODEID=1 \
                     SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2";
const VERTEX: &str = r#"CLUSTER_SPEC={"cluster":{"workerpool0":["a:2222"],"workerpool1":["b:2222","c:2222"]},"environment":"cloud","task":{"type":"workerpool1","index":1}}"#;
const TENSORFLOW: &str = r#"TF_CONFIG={"cluster":{"chief":["h0:10"],"worker":["h1:11","h2:12"],"ps":["h3:13"]},"task":{"type":"worker","index":1}}"#;
const KUBEFLOW: &str =
    "PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=pod-0 PET_MASTER_PORT=99";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1";

#[test]
fn reads_torchrun() {
    let rank = rank(TORCHRUN);
    assert_eq!((rank.rank, rank.local_rank, rank.world_size, rank.local_world_size), (5, 1, 8, 4));
    assert_eq!((rank.node_rank, rank.endpoint.to_string().as_str()), (Some(1), "head:1234"));
    assert_eq!(
        Detected::Rank(rank).to_string(),
        "rank 5 of 8, from torchrun's RANK, WORLD_SIZE, MASTER_ADDR"
    );
    let bare = self::rank("RANK=1 WORLD_SIZE=2 MASTER_ADDR=::1");
    assert_eq!((bare.local_rank, bare.local_world_size, bare.node_rank), (0, 1, None));
    assert_eq!(bare.endpoint.to_string(), "[::1]:29500");
    let agent = |port: u16| format!("{TORCHRUN} TORCHELASTIC_USE_AGENT_STORE=True MASTER_PORT={port}");
    let port = |port: u16| self::rank(&agent(port).replace("MASTER_PORT=1234 ", "")).endpoint.port;
    assert_eq!((port(1234), port(65535)), (1235, 65534), "torchrun's agent listens at MASTER_PORT itself");
}

#[test]
fn reads_kubeflow() {
    let node = node(KUBEFLOW);
    assert_eq!((node.nnodes, node.node_rank, node.nproc_per_node), (2, 1, Some(4)));
    assert_eq!(node.endpoint.unwrap().to_string(), "pod-0:99");
    let single = self::node("PET_NPROC_PER_NODE=cpu");
    assert_eq!((single.nnodes, single.node_rank, single.endpoint), (1, 0, None));
    assert!(single.nproc_per_node.unwrap() >= 1);
    // Who counts devices decides.
    let several = |ranks: &str| self::node(&format!("PET_NPROC_PER_NODE={ranks}")).nproc_per_node;
    assert_eq!([several("auto"), several("gpu")], [None, None]);
    assert_eq!(node_with(&nproc(3), KUBEFLOW).nproc_per_node, Some(3));
}

/// Kubeflow's training operator sets `RANK` to the number of the pod and `WORLD_SIZE` to the number of ranks, beside `PET_*`.
#[test]
fn ranks_of_pods_are_those_of_nodes() {
    let pod = format!("RANK=1 WORLD_SIZE=8 MASTER_ADDR=pod-0 MASTER_PORT=99 {KUBEFLOW}");
    let node = node(&pod);
    assert_eq!((node.nnodes, node.node_rank, node.nproc_per_node), (2, 1, Some(4)));
    assert_eq!(node.source, Source::Kubeflow);
    // A rank that torchrun started in one of them.
    let started = format!("{pod} LOCAL_RANK=1 LOCAL_WORLD_SIZE=4");
    assert_eq!((rank(&started).rank, rank(&started).source), (1, Source::Torchrun));
}

#[test]
fn reads_vertex() {
    let node = node(VERTEX);
    assert_eq!((node.nnodes, node.node_rank, node.nproc_per_node), (3, 2, None));
    assert_eq!(node.endpoint.unwrap().to_string(), "a:2222");
    let empty = self::node("CLUSTER_SPEC= MASTER_ADDR=m MASTER_PORT=7 RANK=1 NNODES=2");
    assert_eq!((empty.nnodes, empty.node_rank, empty.source), (2, 1, Source::VertexNodes));
    assert_eq!(empty.endpoint.unwrap().to_string(), "m:7");
}

/// Vertex AI sets torchrun's variables, too, but for the machines: without `LOCAL_RANK`.
#[test]
fn ranks_and_sizes_of_vertex_are_those_of_machines() {
    let machines = "RANK=2 WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=3333 CLOUD_ML_JOB_ID=7";
    let node = node_with(&nproc(8), &format!("{VERTEX} {machines}"));
    assert_eq!((node.nnodes, node.node_rank, node.nproc_per_node), (3, 2, Some(8)));
    assert_eq!((node.endpoint.unwrap().to_string().as_str(), node.source), ("a:2222", Source::Vertex));
    let node = node_with(&nproc(8), &format!("CLUSTER_SPEC= {machines}"));
    assert_eq!((node.nnodes, node.node_rank, node.nproc_per_node), (3, 2, Some(8)));
    assert_eq!((node.endpoint.unwrap().to_string().as_str(), node.source), ("a:3333", Source::VertexNodes));
    let message = find("RANK=2 WORLD_SIZE=3 CLOUD_ML_JOB_ID=7").unwrap_err().to_string();
    assert!(message.contains("WORLD_SIZE is set") && message.contains("MASTER_ADDR is not"), "{message}");
    let message = find("WORLD_SIZE=3 CLOUD_ML_JOB_ID=7").unwrap_err().to_string();
    assert!(message.contains("WORLD_SIZE is set") && message.contains("RANK is not"), "{message}");
    // A rank that torchrun started on one of them.
    let rank = rank(&format!("{VERTEX} CLOUD_ML_JOB_ID=7 {TORCHRUN}"));
    assert_eq!((rank.rank, rank.world_size, rank.source), (5, 8, Source::Torchrun));
}

#[test]
fn reads_tf_config() {
    let node = node(TENSORFLOW);
    assert_eq!((node.nnodes, node.node_rank, node.endpoint.unwrap().to_string().as_str()), (4, 2, "h0:10"));
    let server = self::node(&TENSORFLOW.replace(r#""worker","index":1"#, r#""ps","index":0"#));
    assert_eq!((server.nnodes, server.node_rank), (4, 3), "servers are the last nodes");
    let text = TENSORFLOW.split_once('=').unwrap().1;
    assert_eq!(server_nodes(&|name| (name == "TF_CONFIG").then(|| text.to_owned())), 1);
    assert_eq!(server_nodes(&|_| None), 0);
    let set = r#"TF_CONFIG={"cluster":{"worker":["h1:11","h2"]},"task":{"type":"worker","index":"0"}}"#;
    let node = self::node(set);
    assert_eq!((node.nnodes, node.node_rank, node.endpoint.unwrap().to_string().as_str()), (2, 0, "h1:11"));
}

#[test]
fn reads_mpi() {
    let rank = rank(OPEN_MPI);
    assert_eq!((rank.rank, rank.local_rank, rank.world_size, rank.local_world_size), (1, 1, 4, 4));
    assert_eq!(rank.endpoint.to_string(), "127.0.0.1:29500");
    let rank = self::rank("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_ADDR=m");
    assert_eq!((rank.rank, rank.local_rank, rank.local_world_size, rank.source), (3, 1, 2, Source::Pmi));
}

#[test]
fn reads_slurm() {
    let rank = rank(SLURM);
    assert_eq!((rank.rank, rank.local_rank, rank.world_size, rank.local_world_size), (3, 1, 4, 2));
    assert_eq!((rank.node_rank, rank.endpoint.to_string().as_str()), (Some(1), "gpu01:17345"));
    let uneven = "SLURM_STEPID=1 SLURM_PROCID=6 SLURM_NTASKS=7 SLURM_NNODES=4 SLURM_NODEID=3 SLURM_LOCALID=0 SLURM_JOB_ID=1 \
                  SLURM_TASKS_PER_NODE=2(x3),1 MASTER_ADDR=x MASTER_PORT=5";
    let rank = self::rank(uneven);
    assert_eq!((rank.local_world_size, rank.endpoint.to_string().as_str()), (1, "x:5"));
    let per_node = SLURM.replace("SLURM_NTASKS=4", "SLURM_NTASKS=2").replace("PROCID=3", "PROCID=1");
    let node = node_with(&nproc(4), &per_node);
    assert_eq!((node.nnodes, node.node_rank, node.nproc_per_node), (2, 1, Some(4)));
    // A shell inside an allocation is not a task.
    assert_eq!(find("SLURM_JOB_ID=1 SLURM_NTASKS=4").unwrap().source(), Source::Standalone);
}

/// A batch script and the shell of `salloc` have the variables of a task, too.
#[test]
fn only_tasks_of_srun_are_ranks() {
    let script = "SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1 SLURM_LOCALID=0";
    for tasks in ["", "SLURM_NTASKS=1", "SLURM_NTASKS=2"] {
        for shell in ["", "SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1"] {
            let alone = format!("{script} {tasks} {shell}");
            assert_eq!(find(&alone).unwrap().source(), Source::Standalone, "{alone}");
            let several = alone.replace("JOB_NUM_NODES=1", "JOB_NUM_NODES=2");
            let message = find(&several).unwrap_err().to_string();
            assert!(message.contains("SLURM_STEP_ID"), "{message}");
            assert!(message.contains("start the ranks with srun, or give --standalone"), "{message}");
        }
    }
    let task = format!("{script} SLURM_STEP_ID=0 SLURM_NTASKS=1");
    assert_eq!((rank(&task).world_size, rank(&task).source), (1, Source::Slurm));
    // A step with fewer tasks and nodes than the job.
    let step = format!("SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 {}", SLURM.replace("ID=3", "ID=1"));
    let rank = rank(&step.replace("NODEID=1", "NODEID=0"));
    assert_eq!((rank.rank, rank.world_size, rank.local_world_size), (1, 2, 2));
}

#[test]
fn keeps_the_precedence() {
    let sources = [
        (Source::Torchrun, TORCHRUN),
        (Source::Kubeflow, KUBEFLOW),
        (Source::Vertex, VERTEX),
        (Source::TfConfig, TENSORFLOW),
        (Source::OpenMpi, OPEN_MPI),
        (Source::Pmi, "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALNRANKS=1"),
        (Source::Slurm, SLURM),
    ];
    for first in 0..sources.len() {
        let set: Vec<&str> = sources[first..].iter().map(|(_, set)| *set).collect();
        assert_eq!(find(&set.join(" ")).unwrap().source(), sources[first].0);
    }
    // `srun --mpi=pmi2` sets these, too, and leaves the numbers on a node to Slurm's own variables.
    assert_eq!(find(&format!("PMI_RANK=0 PMI_SIZE=1 {SLURM}")).unwrap().source(), Source::Slurm);
    assert_eq!(find("HOME=/x MASTER_ADDR=m").unwrap().source(), Source::Standalone);
    assert_eq!(node("").nproc_per_node, None);
}

#[test]
fn flags_go_first_except_for_a_rank_that_brigade_started() {
    let standalone = LaunchArgs { standalone: true, ..LaunchArgs::default() };
    let node = node_with(&standalone, TORCHRUN);
    assert_eq!((node.nnodes, node.source, node.overridden), (1, Source::Flags, Some(Source::Torchrun)));
    let two = LaunchArgs {
        nnodes: Some(2.into()),
        node_rank: Some(1),
        rdzv_endpoint: Some("head:7".parse().unwrap()),
        ..nproc(3)
    };
    let node = node_with(&two, SLURM);
    assert_eq!((node.nnodes, node.node_rank, node.nproc_per_node), (2, 1, Some(3)));
    // The same number of ranks a node repeats the source.
    assert_eq!(find_with(&nproc(4), TORCHRUN).unwrap().source(), Source::Torchrun);
    let launched = format!("BRIGADE_LAUNCHED=1 {TORCHRUN}");
    for args in [nproc(2), standalone] {
        assert_eq!(find_with(&args, &launched).unwrap().source(), Source::Brigade);
    }
}

#[test]
fn another_number_of_ranks_per_node_splits_no_world() {
    for (set, said) in [
        (TORCHRUN, "by torchrun's RANK, WORLD_SIZE, MASTER_ADDR, this process is rank 5 of 8, 4 per node"),
        (SLURM, "rank 3 of 4, 2 per node"),
        (OPEN_MPI, "rank 1 of 4, 4 per node"),
    ] {
        let error = find_with(&nproc(3), set).unwrap_err();
        assert_eq!(error.exit_code(), crate::exit::USAGE);
        let message = error.to_string();
        assert!(message.starts_with("--nproc-per-node 3 is not valid: by "), "{message}");
        assert!(message.contains(said) && message.contains("give --standalone"), "{message}");
    }
    let alone = LaunchArgs { standalone: true, ..nproc(3) };
    assert_eq!(node_with(&alone, TORCHRUN).overridden, Some(Source::Torchrun));
    let one = node_with(&nproc(2), "RANK=0 WORLD_SIZE=1 MASTER_ADDR=head");
    assert_eq!((one.nproc_per_node, one.overridden), (Some(2), Some(Source::Torchrun)));
    assert!(Detected::Node(one).to_string().contains("overrides torchrun's RANK"));
}

#[test]
fn incomplete_flags_name_what_is_missing() {
    let args = LaunchArgs { nnodes: Some(2.into()), ..LaunchArgs::default() };
    assert!(find_with(&args, "").unwrap_err().to_string().contains("--node-rank"));
    let args = LaunchArgs { node_rank: Some(2), ..args };
    assert!(find_with(&args, "").unwrap_err().to_string().contains("--nnodes is 2"));
    let args = LaunchArgs { node_rank: Some(1), ..args };
    assert!(find_with(&args, "").unwrap_err().to_string().contains("--rdzv-endpoint"));
}

#[test]
fn malformed_variables_are_named_with_value_and_range() {
    for (set, said) in [
        ("RANK=abc WORLD_SIZE=2 MASTER_ADDR=m", &["RANK=\"abc\"", "0 to 1"][..]),
        ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=m", &["RANK=\"2\"", "WORLD_SIZE is 2"]),
        ("RANK=-1 WORLD_SIZE=2 MASTER_ADDR=m", &["RANK=\"-1\""]),
        ("RANK=0 WORLD_SIZE=0 MASTER_ADDR=m", &["WORLD_SIZE=\"0\"", "1 to 1024"]),
        ("RANK=0 WORLD_SIZE=99999999999999999999 MASTER_ADDR=m", &["WORLD_SIZE"]),
        ("RANK=0", &["RANK is set", "WORLD_SIZE is not"]),
        ("WORLD_SIZE=2", &["WORLD_SIZE is set", "RANK is not"]),
        ("RANK=0 WORLD_SIZE=2", &["MASTER_ADDR is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=m MASTER_PORT=x", &["MASTER_PORT=\"x\"", "65535"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a/b", &["MASTER_ADDR=\"a/b\""]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=m LOCAL_RANK=0", &["LOCAL_RANK is set", "LOCAL_WORLD_SIZE is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=m LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", &["LOCAL_RANK=\"2\""]),
        ("RANK=0 NNODES=2", &["NNODES is set", "MASTER_ADDR is not"]),
        ("PET_NNODES=2 PET_NODE_RANK=2 PET_MASTER_ADDR=m", &["PET_NODE_RANK=\"2\""]),
        ("PET_NNODES=2 PET_MASTER_ADDR=m", &["PET_NODE_RANK is not"]),
        ("PET_NNODES=2:1", &["PET_NNODES=\"2:1\"", "2 is more than 1"]),
        ("PET_NPROC_PER_NODE=tpu", &["PET_NPROC_PER_NODE=\"tpu\"", "auto"]),
        ("CLUSTER_SPEC={", &["CLUSTER_SPEC=\"{\"", "JSON"]),
        (
            r#"CLUSTER_SPEC={"cluster":{"workerpool0":["a:1"]},"task":{"type":"workerpool3","index":0}}"#,
            &["workerpool3", "allowed are workerpool0, workerpool1"],
        ),
        (
            r#"CLUSTER_SPEC={"cluster":{"workerpool0":["a","b"]},"task":{"type":"workerpool0","index":0}}"#,
            &["exactly one"],
        ),
        (
            r#"TF_CONFIG={"cluster":{"worker":["a"]},"task":{"type":"worker","index":1}}"#,
            &["TF_CONFIG", "not below 1"],
        ),
        (r#"TF_CONFIG={"cluster":{"worker":["a"]},"task":{"type":"worker","index":"x"}}"#, &["task.index"]),
        (
            r#"TF_CONFIG={"cluster":{"ps":["a"]},"task":{"type":"ps","index":0}}"#,
            &["ps task", "a chief or a worker"],
        ),
        (r#"TF_CONFIG={"cluster":{"worker":["a:x"]},"task":{"type":"worker","index":0}}"#, &["a:x"]),
        ("OMPI_COMM_WORLD_RANK=1", &["OMPI_COMM_WORLD_SIZE is not"]),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            &["MASTER_ADDR is not", "mpirun -x"],
        ),
        ("SLURM_PROCID=0", &["SLURM_STEP_ID is not", "srun"]),
        ("SLURM_PROCID=0 SLURM_STEP_ID=x SLURM_NNODES=1", &["SLURM_STEP_ID=\"x\""]),
        ("SLURM_PROCID=0 SLURM_STEP_ID=0", &["SLURM_NTASKS is not", "srun"]),
        ("SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2", &["SLURM_JOB_ID is not"]),
        (
            "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_JOB_ID=1 SLURM_NNODES=2",
            &["SLURM_JOB_NODELIST is not"],
        ),
        (
            "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=gpu[1-",
            &["SLURM_JOB_NODELIST=\"gpu[1-\""],
        ),
    ] {
        let error = find(set).unwrap_err();
        assert_eq!(error.exit_code(), crate::exit::USAGE);
        let message = error.to_string();
        for part in said {
            assert!(message.contains(part), "{set}: {message}");
        }
    }
}

#[test]
fn a_token_is_made_only_where_nobody_else_needs_it() {
    let none = |_: &str| None;
    assert_eq!(find("").unwrap().token(&none).unwrap().expose().len(), 64);
    for set in [TORCHRUN, KUBEFLOW, SLURM] {
        let message = find(set).unwrap().token(&none).unwrap_err().to_string();
        assert!(message.contains("export BRIGADE_TOKEN="), "{message}");
    }
    let set = |name: &str| (name == "BRIGADE_TOKEN").then(|| "0123456789abcdef".to_owned());
    assert_eq!(find(TORCHRUN).unwrap().token(&set).unwrap().expose(), "0123456789abcdef");
}
