//! Ranks that `mpirun` or `mpiexec` started.

use brigade_comm::MAX_WORLD_SIZE;

use super::{
    detected::{Detected, RankInfo, Source},
    variables::Variables,
};
use crate::{
    endpoint::{DEFAULT_MASTER_PORT, Endpoint},
    error::Result,
};

struct Names {
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

/// MPICH's and Intel MPI's process manager (Hydra) names the local numbers `MPI_*`.
const PMI: Names = Names {
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};

/// The rank that an MPI launcher started. Its environment has no address: `MASTER_ADDR` gives it, which only
/// a world on one node can do without.
pub fn read(env: Variables, source: Source) -> Result<Detected> {
    let names = if source == Source::Pmi { PMI } else { OPEN_MPI };
    let set = [names.rank, names.size];
    let hint = format!("the MPI launcher sets {} and {} together", names.rank, names.size);
    let world_size = env.need(env.number(names.size, 1, MAX_WORLD_SIZE)?, names.size, &set, &hint)?;
    let rank = env.need(env.index(names.rank, world_size, names.size)?, names.rank, &set, &hint)?;
    // A launcher that does not count the ranks of a node is taken to have started all of them on this one.
    let local_world_size = env.number(names.local_size, 1, world_size)?.unwrap_or(world_size);
    let given = env.index(names.local_rank, local_world_size, "the number of ranks on this node")?;
    let local_rank = given.unwrap_or(rank % local_world_size);
    let endpoint = match env.endpoint("MASTER_ADDR", "MASTER_PORT")? {
        None if local_world_size == world_size => {
            let port = env.port("MASTER_PORT")?.unwrap_or(DEFAULT_MASTER_PORT);
            Some(Endpoint { host: "127.0.0.1".into(), port })
        }
        given => given,
    };
    let hint =
        "with several nodes the ranks need the address of rank 0's host, e.g. mpirun -x MASTER_ADDR=<host>";
    let endpoint = env.need(endpoint, "MASTER_ADDR", &set, hint)?;
    Ok(Detected::Rank(RankInfo {
        rank,
        local_rank,
        world_size,
        local_world_size,
        node_rank: None,
        endpoint,
        source,
    }))
}
