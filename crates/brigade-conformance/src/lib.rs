//! What [`Collectives`] do on every backend, as checks: one function for each behaviour, called on every rank of a group.
//!
//! A check panics if the collectives behave differently. None assumes where tensors are or what carries them, and each works
//! for any number of ranks, including one; checks that need a peer do nothing on a single rank. A backend's tests
//! instantiate them all:
//!
//! ```no_run
//! # use brigade_core::{Collectives, SingleRankGroup};
//! # fn collectives(_: brigade_comm::Group) -> SingleRankGroup { SingleRankGroup }
//! use brigade_conformance::{Check, Suite, on_ranks};
//! use burn::tensor::Device;
//!
//! fn three_ranks(check: Check) {
//!     on_ranks(3, |group| check(&Suite::new(Device::default()), &collectives(group)));
//! }
//!
//! brigade_conformance::conformance_tests!(three_ranks);
//! # fn main() {}
//! ```

// The whole crate is tests.
#![allow(clippy::unwrap_used)]

mod data_movement;
mod failures;
mod messages;
mod order;
mod placement;
mod ranks;
mod reductions;
mod values;

pub use data_movement::{
    all_gather_joins_in_rank_order, barriers_wait_for_all, broadcasts_come_from_any_root,
    bytes_reach_their_ranks, scalars_of_every_rank_reach_all, traffic_is_counted,
};
pub use failures::{a_failure_is_the_end, another_length_is_an_error_on_every_rank};
pub use messages::{messages_go_around_a_ring, receives_may_be_first, two_messages_each_way};
pub use order::{
    operations_are_waited_for_in_any_order, other_threads_make_and_take_tensors,
    what_is_dropped_still_happens, work_and_collectives_take_turns,
};
pub use placement::{
    buffers_are_filled_under_their_views, inputs_keep_their_values, results_stay_on_the_device,
};
pub use ranks::{on_ranks, on_ranks_in_memory};
pub use reductions::{
    all_reduce_sums_any_length, all_reduce_takes_views, reduce_scatter_gives_each_its_share,
};

use brigade_core::Collectives;
use burn::tensor::{Device, FloatDType};

/// A check, as one rank runs it on its collectives.
pub type Check = fn(&Suite, &dyn Collectives);

/// All checks, by name.
pub const ALL: &[(&str, Check)] = crate::conformance_tests!(@list names);

/// What a rank's checks run on.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The device of the rank's tensors.
    pub device: Device,
    /// The types that are summed and moved: those of [`FLOATS`](Self::FLOATS) that the device computes in.
    pub floats: Vec<FloatDType>,
    /// The other types, in which nothing is checked.
    pub left_out: Vec<FloatDType>,
    /// What sums must equal.
    pub sums: Sums,
    /// Whether lengths that differ between ranks are detected; if not, what happens then is not checked.
    pub finds_mismatches: bool,
}

/// What sums over the ranks must equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sums {
    /// The bits of [`PairwiseSum`](brigade_core::PairwiseSum) in fp32, rounded once to the tensor's type.
    Exact,
    /// The exact sum, up to this many times the type's epsilon times the sum of magnitudes. All ranks
    /// still have the same bits.
    Within(f64),
}

impl Suite {
    /// The types that the suite has values of.
    pub const FLOATS: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];

    /// Requires exact sums of every type that the device computes in, and that mismatches are found. Prints the types that are
    /// left out.
    pub fn new(device: Device) -> Self {
        let (floats, left_out) = apart(|dtype| device.supports_dtype(dtype));
        if !left_out.is_empty() {
            println!("not checked: {left_out:?}, in which {device:?} does not compute");
        }
        Self { device, floats, left_out, sums: Sums::Exact, finds_mismatches: true }
    }

    /// The same suite, if none of these types is left out.
    ///
    /// # Panics
    /// If one is.
    pub fn requiring(self, types: &[FloatDType]) -> Self {
        let Self { device, floats, .. } = &self;
        if let Some(missing) = types.iter().find(|dtype| !floats.contains(dtype)) {
            panic!("{missing:?} is required; on {device:?} only {floats:?} are checked");
        }
        self
    }
}

/// The suite's types that are supported, and those that are not.
fn apart(is_there: impl Fn(FloatDType) -> bool) -> (Vec<FloatDType>, Vec<FloatDType>) {
    Suite::FLOATS.into_iter().partition(|dtype| is_there(*dtype))
}

/// Makes a `#[test]` of every check: each calls the given function, of type `fn(`[`Check`]`)`, with its check.
#[macro_export]
macro_rules! conformance_tests {
    ($run:path) => {
        $crate::conformance_tests! { @list tests $run }
    };
    (@list $form:ident $($run:path)?) => {
        $crate::conformance_tests! { @$form $($run)? =>
            a_failure_is_the_end,
            all_gather_joins_in_rank_order,
            all_reduce_sums_any_length,
            all_reduce_takes_views,
            another_length_is_an_error_on_every_rank,
            barriers_wait_for_all,
            broadcasts_come_from_any_root,
            buffers_are_filled_under_their_views,
            bytes_reach_their_ranks,
            inputs_keep_their_values,
            messages_go_around_a_ring,
            operations_are_waited_for_in_any_order,
            other_threads_make_and_take_tensors,
            receives_may_be_first,
            reduce_scatter_gives_each_its_share,
            results_stay_on_the_device,
            scalars_of_every_rank_reach_all,
            traffic_is_counted,
            two_messages_each_way,
            what_is_dropped_still_happens,
            work_and_collectives_take_turns,
        }
    };
    (@tests $run:path => $($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                $run($crate::$name);
            }
        )+
    };
    (@names => $($name:ident),+ $(,)?) => {
        &[$((stringify!($name), $crate::$name as $crate::Check)),+]
    };
}

#[cfg(test)]
mod tests {
    use std::fs::{read_dir, read_to_string};

    use super::*;

    #[test]
    fn every_check_is_in_the_list() {
        let sources = read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
        let sources: Vec<_> = sources.map(|file| read_to_string(file.unwrap().path()).unwrap()).collect();
        let lines = sources.iter().flat_map(|source| source.lines());
        let checks = lines.filter(|line| line.ends_with(": &Suite, ranks: &dyn Collectives) {"));
        let mut checks: Vec<_> =
            checks.filter_map(|line| line.strip_prefix("pub fn ")?.split('(').next()).collect();
        checks.sort();
        assert_eq!(checks, ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn types_are_checked_or_left_out() {
        let (floats, left_out) = apart(|dtype| dtype != FloatDType::BF16);
        assert_eq!((floats, left_out), (vec![FloatDType::F32, FloatDType::F16], vec![FloatDType::BF16]));
    }
}
