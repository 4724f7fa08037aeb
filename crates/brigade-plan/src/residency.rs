//! When sharded parameters are whole on a rank.

use std::collections::{BTreeMap, BTreeSet};

/// When a unit of parameters that was gathered is freed again (ZeRO-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Release {
    /// After each use.
    AfterUse,
    /// After each use, unless the very next block needs it too: the last block's backward follows its forward.
    AfterUseUnlessNext,
    /// When no micro-batch is between its forward and its backward any more.
    AfterBackward,
    /// After the last use of the step.
    AfterStep,
}

/// One block's turn in a rank's step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The units that the block reads.
    pub units: Vec<usize>,
    /// How many micro-batches are between forward and backward after it: +1 for a forward that a
    /// backward follows, -1 for a backward, 0 in an evaluation.
    pub in_flight: i32,
}

/// What to do with gathered units around one turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// Units whose gathering starts before the turn, in this order.
    pub gather: Vec<usize>,
    /// Units that are freed after it.
    pub release: Vec<usize>,
}

/// Plans gathering and freeing for the turns of a step: a unit is gathered `prefetch` turns before it
/// is needed, or as soon after its last release as that is possible.
///
/// At the start and at the end no unit is gathered. All ranks that share the units run the same turns
/// and so gather in the same order.
pub fn residency(turns: &[Turn], release: Release, prefetch: usize) -> Vec<Moves> {
    let releases = releases(turns, release);
    let mut present: BTreeSet<usize> = BTreeSet::new();
    let mut moves: Vec<Moves> = Vec::with_capacity(turns.len());
    for (now, freed) in releases.iter().enumerate() {
        let mut gather = Vec::new();
        let ahead = (now + prefetch).min(turns.len() - 1);
        for turn in now..=ahead {
            for unit in &turns[turn].units {
                // What is to be freed before then cannot be gathered for then yet.
                let freed_before = releases[now..turn].iter().any(|freed| freed.contains(unit));
                if !freed_before && present.insert(*unit) {
                    gather.push(*unit);
                }
            }
        }
        present.retain(|unit| !freed.contains(unit));
        moves.push(Moves { gather, release: freed.clone() });
    }
    moves
}

/// Units to free after each turn.
fn releases(turns: &[Turn], release: Release) -> Vec<Vec<usize>> {
    let mut in_flight: BTreeMap<usize, i32> = BTreeMap::new();
    let mut releases = Vec::with_capacity(turns.len());
    for (now, turn) in turns.iter().enumerate() {
        let later = &turns[now + 1..];
        let freed = turn.units.iter().copied().filter(|unit| {
            let count = in_flight.entry(*unit).or_default();
            *count += turn.in_flight;
            let next = later.first().is_some_and(|next| next.units.contains(unit));
            match release {
                Release::AfterUse => true,
                Release::AfterUseUnlessNext => !next,
                Release::AfterBackward => *count == 0,
                Release::AfterStep => !later.iter().any(|turn| turn.units.contains(unit)),
            }
        });
        releases.push(freed.collect());
    }
    releases
}

/// The most elements that are gathered at once, for units of these sizes.
pub fn most_gathered(moves: &[Moves], sizes: &[usize]) -> usize {
    let (mut now, mut most) = (0, 0);
    for Moves { gather, release } in moves {
        now += gather.iter().map(|unit| sizes[*unit]).sum::<usize>();
        most = most.max(now);
        now -= release.iter().map(|unit| sizes[*unit]).sum::<usize>();
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks 0..n forward, then backward, `m` times; block n-1 also reads unit 0, as a tied head does.
    fn step(blocks: usize, micro_batches: usize, tied: bool) -> Vec<Turn> {
        let turn = |block: usize, in_flight| {
            let mut units = vec![block];
            if tied && block > 0 && block == blocks - 1 {
                units.push(0);
            }
            Turn { units, in_flight }
        };
        let once = (0..blocks).map(|b| turn(b, 1)).chain((0..blocks).rev().map(|b| turn(b, -1)));
        let once: Vec<_> = once.collect();
        (0..micro_batches).flat_map(|_| once.clone()).collect()
    }

    fn gathers(moves: &[Moves]) -> usize {
        moves.iter().map(|moves| moves.gather.len()).sum()
    }

    const ALL: [Release; 4] =
        [Release::AfterUse, Release::AfterUseUnlessNext, Release::AfterBackward, Release::AfterStep];

    proptest! {
        #[test]
        fn every_turn_finds_its_units_and_all_are_freed(
            blocks in 1usize..8, micro_batches in 1usize..5, tied in any::<bool>(),
            which in 0usize..4, prefetch in 0usize..4,
        ) {
            let turns = step(blocks, micro_batches, tied);
            let mut present = Vec::new();
            for (turn, moves) in turns.iter().zip(residency(&turns, ALL[which], prefetch)) {
                for unit in moves.gather {
                    prop_assert!(!present.contains(&unit), "gathered twice");
                    present.push(unit);
                }
                prop_assert!(turn.units.iter().all(|unit| present.contains(unit)), "missing");
                for unit in moves.release {
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
        let turns = step(blocks, micro_batches, false);
        for prefetch in 0..3 {
            let count = |release| gathers(&residency(&turns, release, prefetch));
            assert_eq!(count(Release::AfterUse), 2 * blocks * micro_batches);
            // The last block's backward follows its forward, and the first block's next forward its backward.
            assert_eq!(
                count(Release::AfterUseUnlessNext),
                (2 * blocks - 1) * micro_batches - (micro_batches - 1)
            );
            assert_eq!(count(Release::AfterBackward), blocks * micro_batches);
            assert_eq!(count(Release::AfterStep), blocks);
        }
    }

    #[test]
    fn little_more_is_gathered_than_is_in_use() {
        let turns = step(6, 1, false);
        let most = |release, prefetch| most_gathered(&residency(&turns, release, prefetch), &[1; 6]);
        assert_eq!(most(Release::AfterUse, 0), 1);
        assert_eq!(most(Release::AfterUse, 1), 2);
        assert_eq!(most(Release::AfterUse, 2), 3);
        assert_eq!(most(Release::AfterBackward, 1), 6);
    }
}
