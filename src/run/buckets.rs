//! How many bytes of gradients travel together.

use std::time::{Duration, Instant};

use brigade_comm::{Group, ProcessGroup};

use crate::settings::Settings;

/// Messages of which the fastest tells the network's delay.
const MESSAGES: usize = 5;

/// What a link is taken to move in a second while a message crosses the network: 1 Gbit/s.
const BYTES_PER_SECOND: f64 = 125e6;

/// The largest bucket that is chosen: PyTorch's default.
const LARGEST: f64 = 25e6;

/// The smallest that is worth a copy.
const SMALLEST: f64 = 64e3;

/// Bytes of gradients that travel together: what `comm.bucket_cap_mb` says, or else what 1 Gbit/s moves in two delays of the network, which an all-reduce costs at
/// least. All ranks call it together, and get the same.
///
/// # Errors
/// If a rank failed.
pub(super) fn bucket_bytes(settings: &Settings, group: &Group) -> anyhow::Result<usize> {
    let set = settings.comm.bucket_cap_mb;
    if set > 0.0 {
        return Ok((set * 1e6).ceil() as usize);
    }
    let host = |rank| group.locality(rank).host;
    if (0..group.size()).all(|rank| host(rank) == host(0)) {
        return Ok(0);
    }
    Ok(for_delay(delay(group)?))
}

/// How long a message of a few bytes takes between the ranks that are furthest from each other.
fn delay(group: &dyn ProcessGroup) -> anyhow::Result<Duration> {
    let mut fastest = Duration::MAX;
    for _ in 0..MESSAGES {
        let begin = Instant::now();
        group.all_gather_scalars(&[0.0]).wait()?;
        fastest = fastest.min(begin.elapsed());
    }
    let all = group.all_gather_scalars(&[fastest.as_secs_f64()]).wait()?;
    Ok(Duration::from_secs_f64(all.into_iter().fold(0.0, f64::max)))
}

/// Below a size, each unit travels by itself.
fn for_delay(delay: Duration) -> usize {
    match 2.0 * delay.as_secs_f64() * BYTES_PER_SECOND {
        bytes if bytes < SMALLEST => 0,
        bytes => bytes.min(LARGEST) as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_with_the_delay_up_to_a_limit() {
        let of = |micros| for_delay(Duration::from_micros(micros));
        assert_eq!([of(50), of(1000), of(20_000), of(1_000_000)], [0, 250_000, 5_000_000, 25_000_000]);
    }
}
