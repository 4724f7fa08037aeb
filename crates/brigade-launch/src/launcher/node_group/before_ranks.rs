//! What the launchers of all nodes decide together before they start ranks.

use std::time::Duration;

use brigade_comm::{AuthToken, Timeouts, World};
use serde::{Serialize, de::DeserializeOwned};

use super::{NodeDescription, check_alike, gather, join, lost_node};
use crate::{
    endpoint::{Endpoint, host_name},
    environment::NodeInfo,
    error::{Error, Result},
    launcher::listener,
};

/// The launchers of all nodes before they [start ranks](crate::launch): a small world with one rank for each node.
///
/// Every launcher calls the same methods in the same order. A launcher that ends, or does not call for the host timeout, fails the next call of all
/// others.
pub struct LauncherGroup {
    world: World,
    endpoint: Endpoint,
}

impl LauncherGroup {
    /// Meets the launchers of the other nodes where they will meet for [`launch`](crate::launch), too. `decides`: the option that asks for what
    /// they decide; `nproc`: the ranks that each of them starts; `init`: how long they wait for each other; `host`: how long one of them may be out of
    /// reach.
    ///
    /// # Errors
    /// If the program was built without the feature `clusters`, the node does not know where the others are, they do not all come, or one of
    /// them decides something else, nothing, or starts another number of ranks.
    pub fn join(
        node: &NodeInfo,
        decides: &str,
        nproc: usize,
        token: AuthToken,
        init: Duration,
        host: Duration,
    ) -> Result<Self> {
        crate::check_nnodes(node.nnodes)?;
        let NodeInfo { nnodes, node_rank, .. } = *node;
        let Some(endpoint) = node.endpoint.clone() else {
            let allowed = "several nodes need the address of node 0".into();
            return Err(Error::LaunchConfig { field: "endpoint", value: "not set".into(), allowed });
        };
        let listener = match node_rank {
            0 => Some(listener::bind(Some(&endpoint), nnodes)?.0),
            _ => None,
        };
        let timeouts = Timeouts { init, step: host, host };
        let world = join::world(node_rank, nnodes, endpoint.to_string(), listener, token, timeouts).map_err(
            |error| {
                let reason = error.to_string();
                Error::NodeRendezvous { node: node_rank, endpoint: endpoint.to_string(), reason }
            },
        )?;
        let group = Self { world, endpoint };
        let own = NodeDescription {
            host: host_name(),
            nproc,
            max_restarts: 0,
            restart_count: 0,
            decides: decides.into(),
        };
        match check_alike(&group.all_gather(&own)?, node_rank) {
            Ok(()) => Ok(group),
            Err(error) => {
                // All see it, so they leave together.
                drop(group.leave());
                Err(error)
            }
        }
    }

    /// The values of all nodes, by their numbers.
    ///
    /// # Errors
    /// If a launcher is gone, or sent something else.
    pub fn all_gather<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        // Serializing plain data to memory cannot fail; the others would say that they cannot read it.
        let json = serde_json::to_vec(value).unwrap_or_default();
        gather::values(self.world.group(), json).map_err(node_lost)
    }

    /// On node 0: an endpoint on its host that is free now.
    ///
    /// # Errors
    /// If the system has no free port.
    pub fn free_endpoint(&self) -> Result<Endpoint> {
        let (_, port) = listener::bind_free_port(&self.endpoint)?;
        Ok(Endpoint { host: self.endpoint.host.clone(), port })
    }

    /// Tells the others why this launcher will not go on.
    pub fn abort(&self, reason: &str) {
        self.world.group().abort(reason);
    }

    /// Returns when all launchers have called it. Then nobody listens at their endpoint any more.
    ///
    /// # Errors
    /// If a launcher is gone.
    pub fn leave(self) -> Result<()> {
        self.world.shutdown().map_err(node_lost)
    }
}

fn node_lost(error: brigade_comm::Error) -> Error {
    let lost = lost_node(error);
    Error::NodeLost { node: lost.node, reason: lost.reason }
}
