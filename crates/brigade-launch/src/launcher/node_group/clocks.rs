//! Whether the nodes' clocks agree.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brigade_comm::Group;

/// Logs are hard to compare when clocks differ by more. It is longer than the launchers take to read theirs, one after the other.
const TOLERANCE: Duration = Duration::from_secs(5);

/// The clocks of all nodes, in milliseconds since 1970, read at the same time but for the time of one exchange.
pub fn gather(group: &Group) -> brigade_comm::Result<Vec<i64>> {
    // All wait for the last one.
    group.all_gather_in_place(&mut vec![0i64; group.size()])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut clocks = vec![0i64; group.size()];
    clocks[group.rank()] = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    group.all_gather_in_place(&mut clocks)?;
    Ok(clocks)
}

/// The nodes whose clocks differ from node 0's by more than is tolerated, and by how many seconds they are ahead of it.
pub fn differing(clocks: &[i64]) -> Vec<(usize, f64)> {
    let first = clocks.first().copied().unwrap_or(0);
    let ahead = |(node, clock): (usize, &i64)| (node, clock.saturating_sub(first) as f64 / 1000.0);
    let differs = |(_, seconds): &(usize, f64)| seconds.abs() > TOLERANCE.as_secs_f64();
    clocks.iter().enumerate().map(ahead).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_from_node_0s_are_named() {
        let now = 1_780_000_000_000;
        assert_eq!(differing(&[now, now + 4_900, now - 4_900]), []);
        assert_eq!(differing(&[now, now + 340_500, now, now - 7_200_000]), [(1, 340.5), (3, -7200.0)]);
        assert_eq!(differing(&[now]), []);
        assert_eq!(differing(&[]), []);
    }
}
