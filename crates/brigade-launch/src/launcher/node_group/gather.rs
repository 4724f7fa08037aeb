//! What the launchers all-gather: a status of fixed size, and any value as JSON.

use brigade_comm::Group;
use serde::{Serialize, de::DeserializeOwned};

use super::status::{BYTES, NodeStatus};

/// The longest JSON that a launcher takes from another, in bytes.
const MAX_JSON: usize = 16 << 20;

/// The statuses of all nodes.
pub fn statuses(group: &Group, status: NodeStatus) -> brigade_comm::Result<Vec<NodeStatus>> {
    let mut bytes = vec![0u8; group.size() * BYTES];
    bytes[group.rank() * BYTES..][..BYTES].copy_from_slice(&status.encode());
    group.all_gather_in_place(&mut bytes)?;
    bytes.chunks_exact(BYTES).enumerate().map(|(node, bytes)| read(node, NodeStatus::decode(bytes))).collect()
}

/// The values of all nodes, of which each gives its own as JSON.
pub fn values<T: Serialize + DeserializeOwned>(group: &Group, own: Vec<u8>) -> brigade_comm::Result<Vec<T>> {
    let mut sizes = vec![0i64; group.size()];
    sizes[group.rank()] = i64::try_from(own.len()).unwrap_or(i64::MAX);
    group.all_gather_in_place(&mut sizes)?;
    let value = |(node, size): (usize, i64)| {
        let size = read(node, usize::try_from(size).ok().filter(|size| (1..=MAX_JSON).contains(size)))?;
        let mut json = if node == group.rank() { own.clone() } else { vec![0; size] };
        group.broadcast_in_place(&mut json, node)?;
        read(node, serde_json::from_slice(&json).ok())
    };
    sizes.into_iter().enumerate().map(value).collect()
}

/// What a launcher sent, or an error that names the launcher that sent something unreadable.
fn read<T>(node: usize, found: Option<T>) -> brigade_comm::Result<T> {
    let reason = "it sent something that this launcher cannot read; is it a different version?".into();
    found.ok_or(brigade_comm::Error::PeerFailed { peer: node, reason })
}
