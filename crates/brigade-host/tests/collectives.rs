//! The behaviour of collectives, on Flex: sums have the bits of one process.

use brigade_conformance::{Check, Suite, on_ranks};
use brigade_host::{HostCollectives, Placement};
use burn::tensor::Device;

fn check_on(ranks: usize, placement: Placement, check: Check) {
    on_ranks(ranks, |group| check(&Suite::new(Device::flex()), &HostCollectives::new(group, placement)));
}

mod in_host_memory {
    use super::{Check, Placement, check_on};

    fn three(check: Check) {
        check_on(3, Placement::Host, check);
    }

    brigade_conformance::conformance_tests!(three);
}

/// As on a device with memory of its own, whose values are copied in and out.
mod on_a_device {
    use super::{Check, Placement, check_on};

    fn four(check: Check) {
        check_on(4, Placement::DEVICE, check);
    }

    brigade_conformance::conformance_tests!(four);
}

mod alone {
    use super::{Check, Placement, check_on};

    fn one(check: Check) {
        check_on(1, Placement::Host, check);
    }

    brigade_conformance::conformance_tests!(one);
}
