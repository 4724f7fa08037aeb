//! Which world this process belongs to.

mod cluster_json;
mod detected;
mod flags;
mod kubeflow;
mod mpi;
mod slurm;
mod torchrun;
mod variables;

#[cfg(test)]
mod tests;

pub use self::cluster_json::server_nodes;
pub use self::detected::{Detected, NodeInfo, RankInfo, Source};
use self::{detected::within_bounds, variables::Variables};
use crate::{
    args::{LaunchArgs, NprocPerNode},
    error::Result,
};

/// Set to `1` for every rank that [`launch`](crate::launch) starts. Such a process is a rank whatever its flags say, so a
/// program can start itself again with its own arguments.
pub const LAUNCHED_VARIABLE: &str = "BRIGADE_LAUNCHED";

/// Finds out which world this process belongs to.
///
/// The first of these that is present decides; if it is malformed or incomplete, that is an error. An empty
/// variable counts as not set.
///
/// 1. Brigade's own launcher (`BRIGADE_LAUNCHED=1`)
/// 2. explicit flags
/// 3. `RANK`, `WORLD_SIZE`, `MASTER_ADDR`; on Vertex AI (`CLUSTER_SPEC` or `CLOUD_ML_JOB_ID`) only with `LOCAL_RANK`, since Vertex AI
///    itself numbers machines with them; beside `PET_NNODES` and a `PET_NODE_RANK` equal to `RANK` only with `LOCAL_RANK`, since Kubeflow's training
///    operator numbers pods with them
/// 4. `PET_*`
/// 5. `CLUSTER_SPEC`; where it is empty, `RANK` and `NNODES` without `WORLD_SIZE`, or `RANK` and `WORLD_SIZE` beside `CLOUD_ML_JOB_ID`
/// 6. `TF_CONFIG`
/// 7. `OMPI_*`, `PMI_*`
/// 8. `SLURM_PROCID` and related variables, but for a batch script, or a shell of `salloc`, on the only node of a job: it is no task of `srun`
/// 9. nothing: this machine alone
///
/// `--nproc-per-node` is an explicit flag too, with two refinements, so that it does not split a world.
/// Where a source gives *nodes* (`PET_*`, `CLUSTER_SPEC`, `TF_CONFIG`, and Slurm with one task a node), it
/// says how many ranks to start on each. Where a source gives *ranks*, and as many per node as the flag asks
/// for, the flag changes nothing.
///
/// # Errors
/// If a variable or a flag is malformed or incomplete, or if `--nproc-per-node` differs from the ranks per node of a
/// source that gives more than one rank: each of them would become a world of its own.
pub fn detect(args: &LaunchArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<Detected> {
    let env = Variables(env);
    if env.get(LAUNCHED_VARIABLE).as_deref() == Some("1") {
        return torchrun::read(env, Source::Brigade);
    }
    let source = present(env);
    if args.topology_flag().is_some() {
        return flags::read(args, source);
    }
    let nproc = args.nproc_per_node.map(NprocPerNode::resolve);
    let found = match source {
        None => return flags::standalone(nproc),
        Some(Source::Torchrun) => torchrun::read(env, Source::Torchrun),
        Some(Source::Kubeflow) => kubeflow::read(env),
        Some(Source::VertexNodes) => torchrun::read_nodes(env),
        Some(Source::Vertex) => cluster_json::read_cluster_spec(env),
        Some(Source::TfConfig) => cluster_json::read_tf_config(env),
        Some(Source::Pmi) => mpi::read(env, Source::Pmi),
        Some(Source::Slurm) => slurm::read(env, nproc.is_some()),
        Some(_) => mpi::read(env, Source::OpenMpi),
    };
    match (found?, nproc) {
        (Detected::Node(node), Some(n)) => within_bounds(NodeInfo { nproc_per_node: Some(n), ..node }),
        (Detected::Rank(rank), Some(n)) if n != rank.local_world_size => flags::overriding(n, &rank),
        (Detected::Node(node), None) => within_bounds(node),
        (found, _) => Ok(found),
    }
}

/// The first source that is present, whether or not it makes sense.
fn present(env: Variables) -> Option<Source> {
    let has = |name: &str| env.get(name).is_some();
    // Vertex AI numbers machines with these; a launcher of ranks there sets LOCAL_RANK, too.
    let of_vertex = has("CLUSTER_SPEC") && !has("LOCAL_RANK");
    let by_machine = has("CLOUD_ML_JOB_ID") && !has("LOCAL_RANK");
    let nodes_only = has("RANK") && if has("WORLD_SIZE") { by_machine } else { has("NNODES") };
    // Kubeflow's training operator numbers pods with RANK, and counts ranks with WORLD_SIZE.
    let by_pod =
        has("PET_NNODES") && has("RANK") && env.get("RANK") == env.get("PET_NODE_RANK") && !has("LOCAL_RANK");
    // Slurm's own PMI does not count the ranks of a host, as Hydra's does.
    let by_srun = has("SLURM_PROCID") && has("SLURM_NTASKS") && !has("MPI_LOCALNRANKS");
    let pet = ["PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"];
    [
        (Source::Torchrun, (has("RANK") || has("WORLD_SIZE")) && !of_vertex && !nodes_only && !by_pod),
        (Source::Kubeflow, pet.into_iter().any(has)),
        (Source::Vertex, has("CLUSTER_SPEC")),
        (Source::VertexNodes, nodes_only),
        (Source::TfConfig, has("TF_CONFIG")),
        (Source::OpenMpi, has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")),
        (Source::Pmi, (has("PMI_RANK") || has("PMI_SIZE")) && !by_srun),
        (Source::Slurm, has("SLURM_PROCID") && !slurm::is_script_on_one_node(env)),
    ]
    .into_iter()
    .find_map(|(source, there)| there.then_some(source))
}
