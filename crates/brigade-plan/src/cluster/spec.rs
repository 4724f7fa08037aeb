//! Clusters in a word: `2x8xH100-80GB`.

use std::path::Path;
use std::str::FromStr;

use super::kinds::{kind, nearest};
use super::{Cluster, ClusterError};

/// Nodes, devices of a node, and devices in all that a cluster may have.
pub(super) const MOST: usize = 1 << 20;

impl FromStr for Cluster {
    type Err = ClusterError;

    /// Reads `NxGxKIND`: nodes, devices of each, and their kind.
    ///
    /// ```
    /// use brigade_plan::cluster::Cluster;
    /// let cluster: Cluster = "2x8xH100-80GB".parse()?;
    /// assert_eq!((cluster.nodes, cluster.devices()), (2, 16));
    /// let error = "2x8xH100-90GB".parse::<Cluster>().unwrap_err().to_string();
    /// assert!(error.contains("did you mean H100-80GB"), "{error}");
    /// # Ok::<(), brigade_plan::cluster::ClusterError>(())
    /// ```
    fn from_str(given: &str) -> Result<Self, ClusterError> {
        let form = || ClusterError::Form { given: given.to_owned() };
        let mut parts = given.splitn(3, ['x', 'X', '*']);
        let (nodes, devices, name) = match (parts.next(), parts.next(), parts.next()) {
            (Some(nodes), Some(devices), Some(name)) => (nodes, devices, name),
            _ => return Err(form()),
        };
        let number = |text: &str, option: &str| -> Result<usize, ClusterError> {
            let number: usize = text.trim().parse().map_err(|_| form())?;
            in_range(given, option, number).map(|()| number)
        };
        let (nodes, devices_per_node) = (number(nodes, "nodes")?, number(devices, "devices of a node")?);
        in_range(given, "devices", nodes.saturating_mul(devices_per_node))?;
        let one = named(given, name.trim())?;
        let mut cluster = Self { name: given.to_owned(), nodes, devices_per_node, ..one };
        cluster.own_host();
        Ok(cluster)
    }
}

impl Cluster {
    /// Reads `NxGxKIND`, or a TOML file where the text ends in `.toml` or names a file.
    ///
    /// # Errors
    /// If it is neither, or says what cannot be.
    pub fn read(given: &str) -> Result<Self, ClusterError> {
        let path = Path::new(given);
        if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml")) || path.is_file() {
            Self::read_file(path)
        } else {
            given.parse()
        }
    }
}

/// A number of nodes or devices.
pub(super) fn in_range(given: &str, option: &str, number: usize) -> Result<(), ClusterError> {
    if (1..=MOST).contains(&number) {
        return Ok(());
    }
    let (given, option, value) = (given.to_owned(), option.to_owned(), number.to_string());
    Err(ClusterError::Value { given, option, value, allowed: format!("from 1 to {MOST}") })
}

/// The kind of this name.
fn named(given: &str, name: &str) -> Result<Cluster, ClusterError> {
    kind(name).ok_or_else(|| ClusterError::Kind {
        given: given.to_owned(),
        kind: name.to_owned(),
        meant: meant(name),
    })
}

/// The kinds that this name may stand for.
pub(super) fn meant(name: &str) -> String {
    let near = nearest(name);
    match near.is_empty() {
        true => format!("kinds are {}", super::kinds::names()),
        false => format!("did you mean {}?", near.join(" or ")),
    }
}
