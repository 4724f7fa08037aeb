//! What holds of every configuration.

use proptest::prelude::*;

use super::{hidden, stages};
use crate::footprint::{Configuration, MemoryFootprint, SavedActivations, StageFootprint, UnitSize};
use crate::{PipelineScheduleKind, ReshardPolicy};

const RELEASES: [ReshardPolicy; 4] = [
    ReshardPolicy::AfterUse,
    ReshardPolicy::AfterUseUnlessNext,
    ReshardPolicy::AfterBackward,
    ReshardPolicy::AfterStep,
];

prop_compose! {
    /// Any configuration that can be, with units that are shared at random.
    fn configurations()(
        (pp, chunks, dp) in (1usize..4, 1usize..3, 1usize..5),
        split in prop::collection::vec(1usize..4, 6),
        units in prop::collection::vec(
            ((1usize..5000, prop::collection::vec(0usize..100, 1..3)), (prop::bool::weighted(0.8), prop::bool::weighted(0.2))),
            1..9,
        ),
        (groups, zero_stage, reshard, prefetch) in (1usize..4, 0u8..4, prop::sample::select(&RELEASES[..]), 0usize..4),
        (each, recompute_every, which, offload) in (any::<bool>(), 0usize..3, 0usize..4, any::<bool>()),
        (compute, reduce, tied_each_micro_batch) in (1usize..3, 1usize..3, any::<bool>()),
        saved_activations in prop::collection::vec((0u64..1000, 0u64..1000, 0u64..1000, 0u64..1000), 19),
    ) -> Configuration {
        let split = split[..pp * chunks].to_vec();
        let blocks: usize = split.iter().sum();
        let unit = |((elements, users), (trainable, keep_in_f32)): ((usize, Vec<usize>), (bool, bool))| {
            let mut users: Vec<usize> = users.into_iter().map(|user| user % blocks).collect();
            users.sort();
            users.dedup();
            UnitSize { trainable, keep_in_f32, ..UnitSize::trained(elements, users) }
        };
        use PipelineScheduleKind::{GPipe, Interleaved, OneFOneB, ZbH1, ZbH2, Zbv};
        let schedule = match chunks {
            1 => [GPipe, OneFOneB, ZbH1, ZbH2][which],
            _ => [Interleaved, Zbv][which % 2],
        };
        Configuration {
            units: units.into_iter().map(unit).collect(),
            boundary_activations: vec![vec![hidden()]; blocks],
            saved_activations: saved_activations[..=blocks].iter().map(|&(saved, more, output, deferred)| SavedActivations { saved, peak: saved + more, output, deferred }).collect(),
            pp, dp, replicas: 1, split, schedule, chunks, tied_each_micro_batch,
            micro_batches: groups * pp, sync_every: 1, outer: None,
            zero_stage, reshard, prefetch, recompute_every,
            reduce_each_micro_batch: each,
            compute_bytes: 2 * compute,
            reduce_bytes: 2 * reduce,
            compression: Default::default(),
            gather_codes: Default::default(),
            optimizer_bytes: 8,
            offload,
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_below_its_formula(configuration in configurations()) {
        for stage in stages(&configuration) {
            let MemoryFootprint { parameters, gradients, optimizer, boundary_activations, saved_activations } = stage.memory;
            for amount in [parameters, gradients, optimizer] {
                prop_assert!(amount.formula <= amount.peak && amount.live <= amount.peak, "{amount:?}");
            }
            for amount in [boundary_activations, saved_activations] {
                prop_assert!(amount.peak <= amount.formula && amount.live == 0, "{amount:?}");
            }
            prop_assert!(parameters.formula <= parameters.live && optimizer.live == optimizer.peak);
        }
    }

    #[test]
    fn gradients_cost_as_if_the_owner_alone_read_them(mut configuration in configurations()) {
        // Blocks that share parameters have no second half.
        configuration.saved_activations.clear();
        let mut alone = configuration.clone();
        alone.units.iter_mut().for_each(|unit| unit.users.truncate(1));
        for (shared, alone) in stages(&configuration).iter().zip(stages(&alone)) {
            prop_assert_eq!(shared.memory.gradients, alone.memory.gradients);
            prop_assert_eq!(shared.memory.optimizer, alone.memory.optimizer);
            prop_assert_eq!(shared.traffic.all_reduce, alone.traffic.all_reduce);
            prop_assert_eq!(shared.traffic.reduce_scatter, alone.traffic.reduce_scatter);
        }
    }

    #[test]
    fn two_parts_of_a_model_cost_what_both_do(configuration in configurations(), cut in any::<prop::sample::Index>()) {
        let (left, right) = configuration.units.split_at(cut.index(configuration.units.len()));
        // Without boundary activations, so that no part sends activations.
        let of = |units: &[UnitSize]| stages(&Configuration { units: units.to_vec(), boundary_activations: Vec::new(), ..configuration.clone() });
        let nothing = of(&[]);
        for (((both, left), right), nothing) in of(&configuration.units).iter().zip(of(left)).zip(of(right)).zip(nothing) {
            let (b, l, r) = (both.memory, left.memory, right.memory);
            prop_assert_eq!(b.parameters.live, l.parameters.live + r.parameters.live);
            prop_assert_eq!(b.gradients.live, l.gradients.live + r.gradients.live);
            prop_assert_eq!(b.optimizer.live, l.optimizer.live + r.optimizer.live);
            prop_assert!(b.parameters.peak <= l.parameters.peak + r.parameters.peak);
            let operations = |stage: &StageFootprint| stage.traffic.by_operation();
            for (index, (name, sent)) in operations(both).into_iter().enumerate() {
                let parts = [operations(&left)[index].1, operations(&right)[index].1];
                prop_assert_eq!(sent.bytes, parts[0].bytes + parts[1].bytes, "{}", name);
                let calls = parts[0].calls + parts[1].calls - operations(&nothing)[index].1.calls;
                prop_assert_eq!(sent.calls, calls, "{}", name);
            }
        }
    }

    #[test]
    fn a_higher_zero_stage_holds_no_more(configuration in configurations()) {
        let mut whole = configuration;
        whole.units.iter_mut().for_each(|unit| unit.elements *= 256 * whole.dp);
        let held = [0, 1, 2, 3].map(|zero_stage| stages(&Configuration { zero_stage, ..whole.clone() }));
        for pair in held.windows(2) {
            for (lower, higher) in pair[0].iter().zip(&pair[1]) {
                let (lower, higher) = (lower.memory, higher.memory);
                prop_assert!(higher.parameters.live <= lower.parameters.live);
                prop_assert!(higher.optimizer.peak <= lower.optimizer.peak);
                for (lower, higher) in [
                    (lower.parameters, higher.parameters),
                    (lower.gradients, higher.gradients),
                    (lower.optimizer, higher.optimizer),
                ] {
                    prop_assert!(higher.formula <= lower.formula);
                }
            }
        }
    }
}
