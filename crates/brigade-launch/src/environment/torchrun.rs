//! `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and related variables.

use brigade_comm::MAX_WORLD_SIZE;

use super::{
    detected::{Detected, NodeInfo, RankInfo, Source},
    variables::Variables,
};
use crate::error::{Error, Result};

const SET: [&str; 3] = ["RANK", "WORLD_SIZE", "MASTER_ADDR"];
const HINT: &str = "set RANK, WORLD_SIZE and MASTER_ADDR together, or none of them";

/// The rank that torchrun, or Brigade's own launcher, started.
pub fn read(env: Variables, source: Source) -> Result<Detected> {
    let world_size = env.need(env.number("WORLD_SIZE", 1, MAX_WORLD_SIZE)?, "WORLD_SIZE", &SET, HINT)?;
    let rank = env.need(env.index("RANK", world_size, "WORLD_SIZE")?, "RANK", &SET, HINT)?;
    let mut endpoint = env.need(env.endpoint("MASTER_ADDR", "MASTER_PORT")?, "MASTER_ADDR", &SET, HINT)?;
    if agent_listens(env) {
        endpoint.port = endpoint.port.checked_add(1).unwrap_or(endpoint.port - 1);
    }
    let (local_rank, local_world_size) = local(env, world_size)?;
    let node_rank = env.number("GROUP_RANK", 0, MAX_WORLD_SIZE - 1)?;
    Ok(Detected::Rank(RankInfo {
        rank,
        local_rank,
        world_size,
        local_world_size,
        node_rank,
        endpoint,
        source,
    }))
}

/// Whether torchrun's own agent listens at `MASTER_PORT`, so that rank 0 takes the port after it.
fn agent_listens(env: Variables) -> bool {
    env.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// `LOCAL_RANK` and `LOCAL_WORLD_SIZE`: both, or neither, which counts as one rank a node.
fn local(env: Variables, world_size: usize) -> Result<(usize, usize)> {
    let set = ["LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    if set.iter().all(|name| env.get(name).is_none()) {
        return Ok((0, 1));
    }
    let hint = "set LOCAL_RANK and LOCAL_WORLD_SIZE together, or neither";
    let size = env.number(set[1], 1, world_size)?;
    let size = env.need(size, set[1], &set, hint)?;
    let rank = env.need(env.index(set[0], size, set[1])?, set[0], &set, hint)?;
    Ok((rank, size))
}

/// Vertex AI without a `CLUSTER_SPEC`: `RANK` is the number of this node, `NNODES` or `WORLD_SIZE` the number of nodes.
pub fn read_nodes(env: Variables) -> Result<Detected> {
    let count = if env.get("WORLD_SIZE").is_some() { "WORLD_SIZE" } else { "NNODES" };
    let set = [count, "RANK"];
    let hint = match count {
        "NNODES" => {
            "set NNODES, RANK (the node's number) and MASTER_ADDR together; a rank's own set has WORLD_SIZE instead"
        }
        _ => {
            "on Vertex AI, set WORLD_SIZE (the number of nodes), RANK (the node's number) and MASTER_ADDR together; a rank's own set has LOCAL_RANK, too"
        }
    };
    let nnodes = env.need(env.number(count, 1, MAX_WORLD_SIZE)?, count, &set, hint)?;
    let node_rank = env.need(env.index("RANK", nnodes, count)?, "RANK", &set, hint)?;
    let endpoint = env.endpoint("MASTER_ADDR", "MASTER_PORT")?;
    if nnodes > 1 && endpoint.is_none() {
        let missing = "MASTER_ADDR".into();
        return Err(Error::Incomplete { present: count.into(), missing, hint: hint.into() });
    }
    Ok(Detected::Node(NodeInfo {
        nnodes,
        min_nodes: nnodes,
        node_rank,
        nproc_per_node: None,
        endpoint: endpoint.filter(|_| nnodes > 1),
        source: Source::VertexNodes,
        overridden: None,
    }))
}
