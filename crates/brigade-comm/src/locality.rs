//! Where ranks run.

use std::fs;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Where a rank runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// Its host: ranks with the same number can share memory. Hosts are numbered by their first ranks.
    pub host: usize,
    /// The NUMA node whose cores it is bound to; none if it may run on several, or the system does not say.
    pub numa: Option<usize>,
    /// The address of the interface by which other hosts reach it, where [`Join::interfaces`](crate::Join::interfaces) chooses one.
    #[serde(default)]
    pub address: Option<IpAddr>,
}

/// Numbers the hosts of ranks by their identities. One that is empty is equal to no other. The numbers that the ranks bring are replaced.
pub(crate) fn localities<'a>(ranks: impl Iterator<Item = (&'a str, Locality)>) -> Vec<Locality> {
    let mut hosts: Vec<&str> = Vec::new();
    let mut number = |identity: &'a str| {
        let known = hosts.iter().position(|host| *host == identity && !identity.is_empty());
        known.unwrap_or_else(|| {
            hosts.push(identity);
            hosts.len() - 1
        })
    };
    ranks.map(|(identity, locality)| Locality { host: number(identity), ..locality }).collect()
}

/// The NUMA node whose cores this process is bound to, if it is one.
pub(crate) fn numa_node() -> Option<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let mut nodes = fs::read_dir("/sys/devices/system/node").ok()?.flatten().filter_map(|entry| {
        let node: usize = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cores = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        let is_allowed = |core: usize| core < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(core);
        ranges(cores.trim()).into_iter().flatten().any(is_allowed).then_some(node)
    });
    let first = nodes.next()?;
    nodes.next().is_none().then_some(first)
}

/// The ranges of a list as in `0-3,8`.
fn ranges(list: &str) -> Vec<std::ops::RangeInclusive<usize>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_by_their_first_ranks() {
        let identities = ["b", "a", "", "b", "", "a"].map(|identity| (identity, Locality::default()));
        let hosts: Vec<usize> =
            localities(identities.into_iter()).iter().map(|locality| locality.host).collect();
        assert_eq!(hosts, [0, 1, 2, 0, 3, 1]);
    }

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(ranges("0-3,8"), [0..=3, 8..=8]);
        assert_eq!(ranges(""), []);
    }
}
