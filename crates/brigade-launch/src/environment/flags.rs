//! The command line as the source.

use super::detected::{Detected, NodeInfo, RankInfo, Source, within_bounds};
use crate::{
    args::{LaunchArgs, NprocPerNode},
    error::{Error, Result},
    node_count::NodeCount,
};

/// The node that the flags describe.
pub fn read(args: &LaunchArgs, overridden: Option<Source>) -> Result<Detected> {
    let count = args.nnodes.unwrap_or(1.into());
    let NodeCount { least: min_nodes, most: nnodes } = count;
    let endpoint = args.endpoint()?;
    let node_rank = match args.node_rank {
        Some(rank) if rank >= nnodes => {
            let allowed = format!("it must be from 0 to {} (--nnodes is {count})", nnodes - 1);
            return Err(Error::Flag { option: "--node-rank", value: rank.to_string(), allowed });
        }
        Some(rank) => rank,
        None if nnodes == 1 => 0,
        None => return Err(needs("--node-rank", "each node starts its own ranks, numbered from it")),
    };
    if nnodes > 1 && endpoint.is_none() {
        return Err(needs("--rdzv-endpoint", "the ranks of other nodes look for rank 0 there"));
    }
    let nproc_per_node = args.nproc_per_node.map(NprocPerNode::resolve);
    within_bounds(NodeInfo {
        nnodes,
        min_nodes,
        node_rank,
        nproc_per_node,
        endpoint,
        source: Source::Flags,
        overridden,
    })
}

fn needs(needs: &'static str, reason: &'static str) -> Error {
    Error::FlagNeeds { option: "--nnodes", needs, reason }
}

/// This machine alone.
pub fn standalone(nproc_per_node: Option<usize>) -> Result<Detected> {
    let source = if nproc_per_node.is_some() { Source::Flags } else { Source::Standalone };
    within_bounds(NodeInfo {
        nnodes: 1,
        min_nodes: 1,
        node_rank: 0,
        nproc_per_node,
        endpoint: None,
        source,
        overridden: None,
    })
}

/// `--nproc-per-node` against a source that has another number of ranks per node: only a world of one rank can be overridden,
/// since every rank of a larger one has these flags.
pub fn overriding(nproc: usize, rank: &RankInfo) -> Result<Detected> {
    let RankInfo { rank, world_size, local_world_size, source, .. } = *rank;
    if world_size > 1 {
        let allowed = format!(
            "by {source}, this process is rank {rank} of {world_size}, {local_world_size} per node, and each rank would start a \
             world of its own; leave it out, or give --standalone for a world on this machine alone"
        );
        return Err(Error::Flag { option: "--nproc-per-node", value: nproc.to_string(), allowed });
    }
    within_bounds(NodeInfo {
        nnodes: 1,
        min_nodes: 1,
        node_rank: 0,
        nproc_per_node: Some(nproc),
        endpoint: None,
        source: Source::Flags,
        overridden: Some(source),
    })
}
