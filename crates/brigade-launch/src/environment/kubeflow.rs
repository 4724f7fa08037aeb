//! Kubeflow's `PET_*`: torchrun's flags as variables.

use super::{
    detected::{Detected, NodeInfo, Source},
    variables::Variables,
};
use crate::{
    args::NprocPerNode,
    error::{Error, Result},
    node_count::NodeCount,
    parse::node_count,
};

const HINT: &str = "with several nodes set PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR together";

/// The node that `PET_*` describes. What is not set has torchrun's default.
pub fn read(env: Variables) -> Result<Detected> {
    let several = ["PET_NNODES"];
    let count = env.get("PET_NNODES").map_or(Ok(1.into()), |text| {
        node_count(&text).map_err(|allowed| Error::variable("PET_NNODES", &text, allowed))
    })?;
    let NodeCount { least: min_nodes, most: nnodes } = count;
    let nproc_per_node = match env.get("PET_NPROC_PER_NODE").as_deref() {
        // One for each device, of which the caller knows.
        None | Some("auto" | "gpu") => None,
        Some(text) => {
            let parsed = text.parse().map(NprocPerNode::resolve);
            Some(parsed.map_err(|allowed| Error::variable("PET_NPROC_PER_NODE", text, allowed))?)
        }
    };
    let node_rank = env.index("PET_NODE_RANK", nnodes, "PET_NNODES")?;
    let endpoint = env.endpoint("PET_MASTER_ADDR", "PET_MASTER_PORT")?;
    let (node_rank, endpoint) = match nnodes {
        1 => (0, None),
        _ => (
            env.need(node_rank, "PET_NODE_RANK", &several, HINT)?,
            Some(env.need(endpoint, "PET_MASTER_ADDR", &several, HINT)?),
        ),
    };
    let (source, overridden) = (Source::Kubeflow, None);
    Ok(Detected::Node(NodeInfo {
        nnodes,
        min_nodes,
        node_rank,
        nproc_per_node,
        endpoint,
        source,
        overridden,
    }))
}
