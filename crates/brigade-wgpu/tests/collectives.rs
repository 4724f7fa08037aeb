//! Collectives between ranks that are threads and share one adapter: sums have the same bits as in one process.

#![allow(clippy::unwrap_used)]

mod adapter;

use adapter::device_or_skip;
use brigade_conformance::{Check, Suite, on_ranks};
use brigade_core::Mesh;
use brigade_wgpu::groups;

fn three(check: Check) {
    let Some(device) = device_or_skip() else { return };
    on_ranks(3, |group| {
        let groups = groups(&group, Mesh::data_parallel(3)).unwrap();
        check(&Suite::new(device.clone()), &**groups.world());
    });
}

brigade_conformance::conformance_tests!(three);
