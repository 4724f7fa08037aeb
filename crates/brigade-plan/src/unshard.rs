//! When sharded parameters are gathered and freed on a rank.

use brigade_sorted::{SortedMap, SortedSet};

/// When a gathered unit of parameters is freed again (ZeRO-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReshardPolicy {
    /// After each use.
    AfterUse,
    /// After each use, unless the next block needs it, too, as when the last block's backward follows its forward.
    AfterUseUnlessNext,
    /// When no micro-batch is between its forward and its backward.
    AfterBackward,
    /// After the last use of the step.
    AfterStep,
}

impl ReshardPolicy {
    /// What training does in a pipeline of this many stages if nothing else is set: with several, a micro-batch's backward comes long after its forward, and what is gathered
    /// stays until then.
    pub fn usual(stages: usize) -> Self {
        if stages == 1 { Self::AfterUseUnlessNext } else { Self::AfterBackward }
    }
}

/// One block's run in a rank's step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRun {
    /// The units that the block reads.
    pub units: Vec<usize>,
    /// How it changes the number of micro-batches between forward and backward: +1 for a forward that a backward follows, -1 for a
    /// backward, 0 in an evaluation.
    pub in_flight: i32,
}

/// What to do with gathered units around one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnshardStep {
    /// Units whose gathering starts before the run, in this order.
    pub unshard: Vec<usize>,
    /// Units that are freed after it.
    pub reshard: Vec<usize>,
}

/// Plans gathering and freeing for the runs of a step: a unit is gathered `prefetch` runs before it is needed, or as soon as
/// possible after it was last freed.
///
/// At the start and at the end no unit is gathered. All ranks that share the units have the same runs, so they gather in the same
/// order.
pub fn unshard_plan(runs: &[BlockRun], policy: ReshardPolicy, prefetch: usize) -> Vec<UnshardStep> {
    let resharded = resharded(runs, policy);
    let mut present: SortedSet<usize> = SortedSet::new();
    let mut steps: Vec<UnshardStep> = Vec::with_capacity(runs.len());
    for (now, freed) in resharded.iter().enumerate() {
        let mut unshard = Vec::new();
        let ahead = (now + prefetch).min(runs.len() - 1);
        for run in now..=ahead {
            for unit in &runs[run].units {
                // A unit that will be freed before then cannot be gathered for then yet.
                let freed_before = resharded[now..run].iter().any(|freed| freed.contains(unit));
                if !freed_before && present.insert(*unit) {
                    unshard.push(*unit);
                }
            }
        }
        present.retain(|unit| !freed.contains(unit));
        steps.push(UnshardStep { unshard, reshard: freed.clone() });
    }
    steps
}

/// Units to free after each run.
fn resharded(runs: &[BlockRun], policy: ReshardPolicy) -> Vec<Vec<usize>> {
    let mut in_flight: SortedMap<usize, i32> = SortedMap::new();
    let mut resharded = Vec::with_capacity(runs.len());
    for (now, run) in runs.iter().enumerate() {
        let later = &runs[now + 1..];
        let freed = run.units.iter().copied().filter(|unit| {
            let count = in_flight.entry(*unit).or_default();
            *count += run.in_flight;
            let next = later.first().is_some_and(|next| next.units.contains(unit));
            match policy {
                ReshardPolicy::AfterUse => true,
                ReshardPolicy::AfterUseUnlessNext => !next,
                ReshardPolicy::AfterBackward => *count == 0,
                ReshardPolicy::AfterStep => !later.iter().any(|run| run.units.contains(unit)),
            }
        });
        resharded.push(freed.collect());
    }
    resharded
}

/// The most elements that are gathered at once, for units of these sizes.
pub fn most_unsharded(steps: &[UnshardStep], sizes: &[usize]) -> usize {
    let (mut now, mut most) = (0, 0);
    for UnshardStep { unshard, reshard } in steps {
        now += unshard.iter().map(|unit| sizes[*unit]).sum::<usize>();
        most = most.max(now);
        now -= reshard.iter().map(|unit| sizes[*unit]).sum::<usize>();
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks 0..n forward, then backward, `m` times; block n-1 also reads unit 0, as a tied head does.
    fn step(blocks: usize, micro_batches: usize, tied: bool) -> Vec<BlockRun> {
        let run = |block: usize, in_flight| {
            let mut units = vec![block];
            if tied && block > 0 && block == blocks - 1 {
                units.push(0);
            }
            BlockRun { units, in_flight }
        };
        let once = (0..blocks).map(|b| run(b, 1)).chain((0..blocks).rev().map(|b| run(b, -1)));
        let once: Vec<_> = once.collect();
        (0..micro_batches).flat_map(|_| once.clone()).collect()
    }

    fn unshards(steps: &[UnshardStep]) -> usize {
        steps.iter().map(|step| step.unshard.len()).sum()
    }

    const ALL: [ReshardPolicy; 4] = [
        ReshardPolicy::AfterUse,
        ReshardPolicy::AfterUseUnlessNext,
        ReshardPolicy::AfterBackward,
        ReshardPolicy::AfterStep,
    ];

    proptest! {
        #[test]
        fn every_turn_finds_its_units_and_all_are_freed(
            blocks in 1usize..8, micro_batches in 1usize..5, tied in any::<bool>(),
            which in 0usize..4, prefetch in 0usize..4,
        ) {
            let runs = step(blocks, micro_batches, tied);
            let mut present = Vec::new();
            for (run, step) in runs.iter().zip(unshard_plan(&runs, ALL[which], prefetch)) {
                for unit in step.unshard {
                    prop_assert!(!present.contains(&unit), "gathered twice");
                    present.push(unit);
                }
                prop_assert!(run.units.iter().all(|unit| present.contains(unit)), "missing");
                for unit in step.reshard {
                    prop_assert!(present.contains(&unit), "freed twice");
                    present.retain(|other| *other != unit);
                }
            }
            prop_assert!(present.is_empty());
        }
    }

    #[test]
    fn gathers_are_as_many_as_the_policy_says() {
        let (blocks, micro_batches) = (6, 4);
        let runs = step(blocks, micro_batches, false);
        for prefetch in 0..3 {
            let count = |policy| unshards(&unshard_plan(&runs, policy, prefetch));
            assert_eq!(count(ReshardPolicy::AfterUse), 2 * blocks * micro_batches);
            // The last block's backward follows its forward, and the first block's next forward its backward.
            assert_eq!(
                count(ReshardPolicy::AfterUseUnlessNext),
                (2 * blocks - 1) * micro_batches - (micro_batches - 1)
            );
            assert_eq!(count(ReshardPolicy::AfterBackward), blocks * micro_batches);
            assert_eq!(count(ReshardPolicy::AfterStep), blocks);
        }
    }

    #[test]
    fn little_more_is_gathered_than_is_in_use() {
        let runs = step(6, 1, false);
        let most = |policy, prefetch| most_unsharded(&unshard_plan(&runs, policy, prefetch), &[1; 6]);
        assert_eq!(most(ReshardPolicy::AfterUse, 0), 1);
        assert_eq!(most(ReshardPolicy::AfterUse, 1), 2);
        assert_eq!(most(ReshardPolicy::AfterUse, 2), 3);
        assert_eq!(most(ReshardPolicy::AfterBackward, 1), 6);
    }
}
