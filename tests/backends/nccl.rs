//! The behaviour of collectives on CUDA: by NCCL on as many GPUs as there are, and through host memory on one.

use brigade::comm::Group;
use brigade::core::Mesh;
use brigade_conformance::{Check, Suite, Sums, on_ranks};
use brigade_cuda::{NcclOptions, RankGpu};

use crate::backend::is_there;

/// How many GPUs there are; none where the test is left out.
fn gpus() -> Option<usize> {
    let gpus = brigade_cuda::gpu_count().unwrap_or(0);
    is_there("cuda", "BRIGADE_REQUIRE_CUDA", gpus > 0).then_some(gpus)
}

fn with_nccl(group: &Group, synchronous: bool, check: Check) {
    let gpu = RankGpu::open(group.rank(), group.size(), false).unwrap();
    let options = NcclOptions { synchronous, even_alone: true };
    let mesh = Mesh::data_parallel(group.size());
    let groups = brigade_cuda::groups(group, mesh, &gpu, options).unwrap();
    let suite = Suite::new(gpu.device()).requiring(&Suite::FLOATS);
    let suite = Suite { sums: Sums::Within(4.0), finds_mismatches: false, ..suite };
    check(&suite, &**groups.world());
}

mod by_events {
    use super::{Check, gpus, on_ranks, with_nccl};

    fn on_all(check: Check) {
        let Some(gpus) = gpus() else { return };
        on_ranks(gpus.min(4), |group| with_nccl(&group, false, check));
    }

    brigade_conformance::conformance_tests!(on_all);
}

mod synchronous {
    use super::{Check, gpus, on_ranks, with_nccl};

    fn on_all(check: Check) {
        let Some(gpus) = gpus() else { return };
        on_ranks(gpus.min(4), |group| with_nccl(&group, true, check));
    }

    brigade_conformance::conformance_tests!(on_all);
}

mod through_the_host {
    use super::{Check, Mesh, RankGpu, Suite, gpus, on_ranks};

    fn three(check: Check) {
        if gpus().is_none() {
            return;
        }
        on_ranks(3, |group| {
            let gpu = RankGpu::open(group.rank(), group.size(), true).unwrap();
            let groups = brigade_cuda::host_groups(&group, Mesh::data_parallel(3)).unwrap();
            check(&Suite::new(gpu.device()).requiring(&Suite::FLOATS), &**groups.world());
        });
    }

    brigade_conformance::conformance_tests!(three);
}
