//! What `detect` finds: a rank of a world, or a node whose ranks are to be started.

use std::fmt;

use brigade_comm::{AuthToken, MAX_WORLD_SIZE, allowed_world_size};

use crate::{
    auth_token::token_from_env,
    endpoint::Endpoint,
    error::{Error, Result},
    node_count::NodeCount,
};

/// Where the answer of [`detect`](crate::detect) comes from. `Display` names the variables that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The flags of [`LaunchArgs`](crate::LaunchArgs).
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
    /// No launcher: a world on this machine alone.
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
            Self::VertexNodes => "Vertex AI's NNODES or WORLD_SIZE, RANK, MASTER_ADDR",
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
    /// Where this information comes from.
    pub source: Source,
}

/// This process is to start the ranks of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The number of nodes; in an elastic world the most.
    pub nnodes: usize,
    /// The fewest nodes that an elastic world continues with; in any other world `nnodes`.
    pub min_nodes: usize,
    /// This node's number, below `nnodes`.
    pub node_rank: usize,
    /// Ranks to start on this node; `None` where the source does not say, so that the caller decides.
    pub nproc_per_node: Option<usize>,
    /// Where rank 0 waits for the others. `None` on a single node: the launcher takes a free port of the
    /// loopback address.
    pub endpoint: Option<Endpoint>,
    /// Where this information comes from.
    pub source: Source,
    /// A source in the environment that the command line overrode.
    pub overridden: Option<Source>,
}

/// What [`detect`](crate::detect) found. `Display` gives the line to print at the start of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detected {
    /// This process is a rank.
    Rank(RankInfo),
    /// This process is to start the ranks of a node.
    Node(NodeInfo),
}

impl Detected {
    /// The token of this world: `BRIGADE_TOKEN` or the file of `BRIGADE_TOKEN_FILE`, or a random one where only this process hands it out (a
    /// single node, or a world of one rank). A world that spans nodes or was started by something else needs
    /// `BRIGADE_TOKEN`.
    pub fn token(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<AuthToken> {
        if let Some(token) = token_from_env(env)? {
            return Ok(token);
        }
        match self {
            Self::Rank(rank) if rank.world_size > 1 => Err(Error::NoToken {
                why: format!("the {} ranks were started by something other than Brigade", rank.world_size),
            }),
            Self::Node(node) if node.nnodes > 1 => {
                Err(Error::NoToken { why: format!("the ranks run on {} nodes", node.nnodes) })
            }
            _ => AuthToken::random().map_err(Error::Random),
        }
    }

    /// Where this information comes from.
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
                let nodes = NodeCount { least: node.min_nodes, most: node.nnodes };
                write!(f, "node {} of {nodes}, from {}", node.node_rank, node.source)?;
                match node.overridden {
                    Some(source) => write!(f, " (it overrides {source})"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Checks the size of the whole world of a node.
pub fn within_bounds(node: NodeInfo) -> Result<Detected> {
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
