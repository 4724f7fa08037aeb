//! Which world this process belongs to.

mod cluster_json;
mod flags;
mod hostlist;
mod kubeflow;
mod mpi;
mod slurm;
mod torchrun;
mod variables;

#[cfg(test)]
mod tests;

use std::fmt;

use self::variables::Variables;
use brigade_comm::allowed_world_size;

use crate::{Endpoint, Error, LaunchArgs, MAX_WORLD_SIZE, NprocPerNode, Result, Token};

/// Where the answer of [`detect`] comes from. `Display` names the variables that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The flags of [`LaunchArgs`].
    Flags,
    /// Brigade's own launcher.
    Brigade,
    /// torchrun, or anything that sets the same variables.
    Torchrun,
    /// Kubeflow Trainer, or anything that sets torchrun's `PET_` defaults.
    Kubeflow,
    /// Vertex AI's `CLUSTER_SPEC`.
    Vertex,
    /// Vertex AI without a `CLUSTER_SPEC`: `RANK` is the number of the node.
    VertexNodes,
    /// TensorFlow's `TF_CONFIG`.
    TfConfig,
    /// Open MPI.
    OpenMpi,
    /// MPICH, Intel MPI and others with a PMI.
    Pmi,
    /// Slurm.
    Slurm,
    /// Nothing: this process is alone.
    Standalone,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flags => "the command line",
            Self::Brigade => "Brigade's launcher (RANK, WORLD_SIZE, MASTER_ADDR)",
            Self::Torchrun => "torchrun's RANK, WORLD_SIZE, MASTER_ADDR",
            Self::Kubeflow => "Kubeflow's PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR",
            Self::Vertex => "Vertex AI's CLUSTER_SPEC",
            Self::VertexNodes => "Vertex AI's NNODES, RANK, MASTER_ADDR",
            Self::TfConfig => "TF_CONFIG",
            Self::OpenMpi => "Open MPI's OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE",
            Self::Pmi => "PMI_RANK, PMI_SIZE",
            Self::Slurm => "Slurm's SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_NODELIST",
            Self::Standalone => "no launcher (this machine alone)",
        })
    }
}

/// This process is a rank of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankInfo {
    /// Its number, below `world_size`.
    pub rank: usize,
    /// Its number on its node, below `local_world_size`.
    pub local_rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The number of ranks on this node; 1 where the source does not say.
    pub local_world_size: usize,
    /// The number of the node, where the source says it.
    pub node_rank: Option<usize>,
    /// Where rank 0 waits for the others.
    pub endpoint: Endpoint,
    /// Who said so.
    pub source: Source,
}

/// This process stands for a node and is to start the ranks of that node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The number of nodes.
    pub nnodes: usize,
    /// This node's number, below `nnodes`.
    pub node_rank: usize,
    /// Ranks to start on this node; `None` where nobody said, so that the caller decides.
    pub nproc_per_node: Option<usize>,
    /// Where rank 0 waits for the others. `None` on a single node: the launcher takes a free port of the
    /// loopback address.
    pub endpoint: Option<Endpoint>,
    /// Who said so.
    pub source: Source,
    /// A source in the environment that the command line overrode.
    pub overridden: Option<Source>,
}

/// What [`detect`] found. `Display` gives the line to print at the start of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detected {
    /// This process is a rank.
    Rank(RankInfo),
    /// This process is to start the ranks of a node.
    Node(NodeInfo),
}

impl Detected {
    /// The secret of this world: `BRIGADE_TOKEN`, or a fresh one where this process alone hands it out (a
    /// single node, or a world of one rank). A world that spans nodes or was started by somebody else needs
    /// `BRIGADE_TOKEN`.
    pub fn token(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Token> {
        if let Some(token) = Token::from_env(env)? {
            return Ok(token);
        }
        match self {
            Self::Rank(rank) if rank.world_size > 1 => Err(Error::NoToken {
                why: format!("the {} ranks were started by something else than Brigade", rank.world_size),
            }),
            Self::Node(node) if node.nnodes > 1 => {
                Err(Error::NoToken { why: format!("the ranks run on {} nodes", node.nnodes) })
            }
            _ => Token::random(),
        }
    }

    /// Who said so.
    pub fn source(&self) -> Source {
        match self {
            Self::Rank(rank) => rank.source,
            Self::Node(node) => node.source,
        }
    }
}

impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(RankInfo { rank, world_size, source, .. }) => {
                write!(f, "rank {rank} of {world_size}, from {source}")
            }
            Self::Node(node) => {
                write!(f, "node {} of {}, from {}", node.node_rank, node.nnodes, node.source)?;
                match node.overridden {
                    Some(source) => write!(f, " (it overrides {source})"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Finds out which world this process belongs to.
///
/// The first of these that is there decides; if it is malformed or incomplete, that is an error. An empty
/// variable counts as not set.
///
/// 1. Brigade's own launcher (`BRIGADE_LAUNCHED=1`)
/// 2. explicit flags
/// 3. `RANK`, `WORLD_SIZE`, `MASTER_ADDR`
/// 4. `PET_*`
/// 5. `CLUSTER_SPEC`; where it is empty, `NNODES` with `RANK` but without `WORLD_SIZE`
/// 6. `TF_CONFIG`
/// 7. `OMPI_*`, `PMI_*`
/// 8. `SLURM_PROCID` and its kin
/// 9. nothing: this machine alone
///
/// `--nproc-per-node` is an explicit flag too, with two refinements that keep it from tearing a world apart.
/// Where a source gives *nodes* (`PET_*`, `CLUSTER_SPEC`, `TF_CONFIG`, and Slurm with one task a node), it
/// says how many ranks to start on each. Where a source gives *ranks* and as many per node as the flag asks
/// for, the flag only repeats it.
pub fn detect(args: &LaunchArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<Detected> {
    let env = Variables(env);
    if env.get(crate::LAUNCHED_VARIABLE).as_deref() == Some("1") {
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
        (Detected::Rank(rank), Some(n)) if n != rank.local_world_size => flags::overriding(n, rank.source),
        (Detected::Node(node), None) => within_bounds(node),
        (found, _) => Ok(found),
    }
}

/// The first source that is there, whether or not it makes sense.
fn present(env: Variables) -> Option<Source> {
    let has = |name: &str| env.get(name).is_some();
    let nodes_only = has("RANK") && has("NNODES") && !has("WORLD_SIZE");
    let pet = ["PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"];
    [
        (Source::Torchrun, (has("RANK") || has("WORLD_SIZE")) && !nodes_only),
        (Source::Kubeflow, pet.into_iter().any(has)),
        (Source::Vertex, has("CLUSTER_SPEC")),
        (Source::VertexNodes, nodes_only),
        (Source::TfConfig, has("TF_CONFIG")),
        (Source::OpenMpi, has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")),
        (Source::Pmi, has("PMI_RANK") || has("PMI_SIZE")),
        (Source::Slurm, has("SLURM_PROCID")),
    ]
    .into_iter()
    .find_map(|(source, there)| there.then_some(source))
}

/// Checks the size of the whole world of a node.
fn within_bounds(node: NodeInfo) -> Result<Detected> {
    let nproc = node.nproc_per_node.unwrap_or(1);
    let ranks = nproc.saturating_mul(node.nnodes);
    if ranks > MAX_WORLD_SIZE {
        return Err(Error::Flag {
            option: "--nproc-per-node",
            value: nproc.to_string(),
            allowed: format!(
                "{} nodes with that many ranks are {ranks}, {}",
                node.nnodes,
                allowed_world_size()
            ),
        });
    }
    Ok(Detected::Node(node))
}
