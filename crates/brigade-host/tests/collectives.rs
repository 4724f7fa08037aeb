//! The conformance suite on Flex, over each engine of process groups. Sums have the bits of one process.

#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use brigade_comm::ProcessGroup;
use brigade_conformance::{Check, Suite, on_ranks, on_ranks_in_memory};
use brigade_core::{Collectives, DP, Mesh, PP};
use brigade_host::{HostCollectives, MemorySpace, groups};
use burn::tensor::{Device, FloatDType, Tensor};

/// The suite on an engine of which this starts the ranks: on three in host memory, on four as on devices with memory of their
/// own, whose values are copied in and out, and on one that is alone.
macro_rules! on_engine {
    ($engine:ident, $on_ranks:path) => {
        mod $engine {
            use super::*;

            fn check_on(ranks: usize, memory_space: MemorySpace, check: Check) {
                $on_ranks(ranks, |group| {
                    check(&Suite::new(Device::flex()), &HostCollectives::new(group, memory_space));
                });
            }

            on_engine! { @ranks in_host_memory: 3, MemorySpace::Host }
            on_engine! { @ranks on_a_device: 4, MemorySpace::DEVICE }
            on_engine! { @ranks alone: 1, MemorySpace::Host }
        }
    };
    (@ranks $name:ident: $ranks:literal, $memory_space:expr) => {
        mod $name {
            use super::*;

            fn run(check: Check) {
                check_on($ranks, $memory_space, check);
            }

            brigade_conformance::conformance_tests!(run);
        }
    };
}

// Byte streams between the ranks, driven by a thread of each group.
on_engine!(over_streams, on_ranks);

// Buffers that the ranks exchange in memory, without streams, descriptors or threads for progress.
on_engine!(in_memory, on_ranks_in_memory);

/// Values whose sum depends on the order of the additions.
fn given(rank: usize, dtype: FloatDType) -> Tensor<1> {
    let values: Vec<f32> =
        (0..50_000).map(|i| ((rank * 7919 + i * 104_729) % 1013) as f32 * 0.1 + 1e-3).collect();
    Tensor::<1>::from_floats(&values[..], &Device::flex()).cast(dtype)
}

/// The bits of an all-reduce and a reduce-scatter on each rank.
fn bits(group: impl ProcessGroup + 'static) -> Vec<Vec<u8>> {
    let ranks = HostCollectives::new(group, MemorySpace::Host);
    let (rank, size) = (ranks.rank(), ranks.size());
    let sums = [FloatDType::F32, FloatDType::BF16].map(|dtype| {
        let all = ranks.all_reduce(given(rank, dtype)).wait().unwrap();
        let share = ranks.reduce_scatter(given(rank, dtype).slice(0..49_980 / size * size)).wait().unwrap();
        [all, share].map(|sum| sum.into_data().as_bytes().to_vec())
    });
    sums.into_iter().flatten().collect()
}

/// A rank, and the bytes of each of its results.
type RankBits = (usize, Vec<Vec<u8>>);

#[test]
fn engines_give_equal_bits() {
    for size in [2, 3, 5] {
        let found: [Mutex<Vec<RankBits>>; 2] = Default::default();
        let record =
            |engine: usize, rank: usize, bits: Vec<Vec<u8>>| found[engine].lock().unwrap().push((rank, bits));
        on_ranks(size, |group| record(0, group.rank(), bits(group)));
        on_ranks_in_memory(size, |group| record(1, group.rank(), bits(group)));
        let [streams, memory] = found.map(|found| {
            let mut found = found.into_inner().unwrap();
            found.sort();
            found
        });
        assert!(streams.len() == size && streams == memory, "{size} ranks");
    }
}

#[test]
fn any_engine_has_the_groups_of_a_mesh() {
    on_ranks_in_memory(4, |world| {
        let rank = world.rank();
        let groups = groups(&world, Mesh::new(4, [(PP, 2), (DP, 2)]).unwrap(), MemorySpace::Host).unwrap();
        let members = |group: &dyn Collectives| {
            let found = group.all_gather_scalars(vec![rank as f64]).wait().unwrap();
            found.into_iter().map(|values| values[0] as usize).collect::<Vec<_>>()
        };
        let (stage, replica) = (rank / 2, rank % 2);
        assert_eq!(members(&*groups.over(&[DP])), [2 * stage, 2 * stage + 1]);
        assert_eq!(members(&*groups.over(&[PP])), [replica, 2 + replica]);
        assert_eq!(members(&**groups.world()), [0, 1, 2, 3]);
    });
}
