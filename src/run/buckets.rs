//! How long the network delays a message, and how many bytes of gradients travel together because of that.

use std::time::{Duration, Instant};

use brigade_comm::{Group, ProcessGroup};
use brigade_core::Buckets;

use crate::settings::{CollectivesBackend, Settings, SumOrder};

/// Messages one after the other whose mean is the network's delay: a rank that began late finds some of the others' there, and waits the longer
/// for the next.
const MESSAGES: usize = 4;

/// How often that is measured; the least counts.
const ROUNDS: usize = 2;

/// What a link is taken to move in a second while a message crosses the network: 1 Gbit/s.
const BYTES_PER_SECOND: f64 = 125e6;

/// The largest bucket that is chosen: PyTorch's default.
const LARGEST: f64 = 25e6;

/// The smallest that is worth a copy.
const SMALLEST: f64 = 64e3;

/// What travels together: as much as `comm.bucket_cap_mb` says, or else, between hosts, what 1 Gbit/s moves in two delays of the network, which an all-reduce costs at
/// least. NCCL does not say which of its groups are on several hosts, and how MPI adds by itself may depend on the size, so that a measured one would change the bits.
pub(super) fn buckets(settings: &Settings, network_delay: Option<Duration>) -> Buckets {
    let set = settings.comm.bucket_cap_mb;
    match set > 0.0 {
        true => Buckets { bytes: (set * 1e6).ceil() as usize, within_hosts: true },
        false => {
            let is_fit =
                settings.collectives() != CollectivesBackend::Nccl && settings.comm.order == SumOrder::Tree;
            let delay = network_delay.filter(|_| is_fit);
            Buckets { bytes: delay.map_or(0, for_delay), within_hosts: false }
        }
    }
}

/// How long a message of a few bytes takes between the ranks that are furthest from each other; none where all are on one host. All
/// ranks call it together, and get the same.
///
/// # Errors
/// If a rank failed.
pub(super) fn network_delay(group: &Group) -> anyhow::Result<Option<Duration>> {
    group.spans_hosts().then(|| measured(group)).transpose()
}

fn measured(group: &dyn ProcessGroup) -> anyhow::Result<Duration> {
    let gather = |seconds: f64| -> anyhow::Result<f64> {
        let all = group.all_gather_scalars(&[seconds]).wait()?;
        Ok(all.into_iter().fold(0.0, f64::max))
    };
    // They begin together.
    gather(0.0)?;
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..MESSAGES {
            gather(0.0)?;
        }
        least = least.min(begin.elapsed().as_secs_f64() / MESSAGES as f64);
    }
    Ok(Duration::from_secs_f64(gather(least)?))
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

    #[test]
    fn libraries_that_add_by_themselves_have_buckets_only_if_they_are_set() {
        let mut settings = Settings::default();
        let mut of = |collectives, order, set| {
            let comm = &mut settings.comm;
            (comm.collectives, comm.order, comm.bucket_cap_mb) = (collectives, order, set);
            buckets(&settings, Some(Duration::from_millis(1))).bytes
        };
        assert_eq!(of(CollectivesBackend::Host, SumOrder::Tree, 0.0), 250_000);
        assert_eq!(of(CollectivesBackend::Mpi, SumOrder::Tree, 0.0), 250_000);
        for (collectives, order) in
            [(CollectivesBackend::Mpi, SumOrder::Engine), (CollectivesBackend::Nccl, SumOrder::Tree)]
        {
            assert_eq!(of(collectives, order, 0.0), 0);
            assert_eq!(of(collectives, order, 1.0), 1_000_000);
        }
    }
}
