//! Steps of many micro-batches: once a pipeline is full, every additional group of micro-batches takes as long as the one
//! before.

use std::sync::Arc;

use super::parts::StepParts;
use super::simulate::{StepPlan, simulate};
use crate::schedule::{Pipeline, ScheduleError};

/// Micro-batches per stage of the two shorter steps that a long one is computed from.
const FILLED: [usize; 2] = [4, 6];

/// The numbers of micro-batches of the two steps that stand for one of `micro_batches`, or none where it is simulated itself.
pub fn shortened(stages: usize, micro_batches: usize) -> Option<[usize; 2]> {
    let [shorter, longer] = FILLED.map(|times| times * stages);
    (micro_batches > longer).then_some([shorter, longer])
}

/// Simulates a step of this many micro-batches: as it is, or from two steps with enough of them to fill the pipeline, whose difference is that of all further groups.
///
/// # Errors
/// If there is no such schedule, or its actions wait for ever.
pub fn simulate_long(
    plan: &StepPlan,
    stages: usize,
    micro_batches: usize,
    mut pipeline: impl FnMut(usize) -> Result<Arc<Pipeline>, ScheduleError>,
) -> Result<StepParts, ScheduleError> {
    let mut simulated = |micro_batches| {
        let pipeline = pipeline(micro_batches)?;
        simulate(plan, &pipeline)
    };
    let Some([shorter, longer]) = shortened(stages, micro_batches) else { return simulated(micro_batches) };
    let (short, long) = (simulated(shorter)?, simulated(longer)?);
    let times = (micro_batches - longer) as f64 / (longer - shorter) as f64;
    Ok(extended(&long, &short, times))
}

/// The longer of two steps with so many times more of what it has beyond the shorter one. What stages wait for changes from one group of micro-batches to the next: a wait that
/// is shorter in the longer step stays as long as it is there, and the others grow by as much less.
fn extended(long: &StepParts, short: &StepParts, times: f64) -> StepParts {
    let (before, waits) = (short.waits(), long.waits());
    let growth = || waits.iter().zip(&before).map(|(long, short)| long - short);
    let (grown, growing): (f64, f64) = (growth().sum(), growth().map(|part| part.max(0.0)).sum());
    let all: f64 = waits.iter().sum();
    let wait = |long: f64, short: f64| {
        if grown > 0.0 {
            long + times * (long - short).max(0.0) * (grown / growing)
        } else if all > 0.0 {
            long * (1.0 + times * grown / all).max(0.0)
        } else {
            0.0
        }
    };
    let [waiting, working] =
        [long.combined(short, wait), long.combined(short, |long, short| long + times * (long - short))];
    let StepParts { all_gather, reduce, send, stragglers, bubble, .. } = waiting;
    StepParts { all_gather, reduce, send, stragglers, bubble, ..working }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(compute: f64, [all_gather, reduce, send, bubble]: [f64; 4]) -> StepParts {
        StepParts { compute, all_gather, reduce, send, bubble, ..StepParts::default() }
    }

    #[test]
    fn waits_that_shrink_stay_and_all_parts_add_up() {
        let short = parts(4.0, [1.0, 2.0, 0.5, 3.0]);
        for (waits, expected) in [
            // All grow, or are the same.
            ([1.5, 2.0, 0.75, 3.25], [6.5, 2.0, 3.25, 5.75]),
            // What some lose is missing from the growth of the others.
            ([3.0, 1.5, 0.5, 2.5], [3.0 + 10.0, 1.5, 0.5, 2.5]),
            // All together shrink a little, and by more than there is of them.
            ([1.0, 2.0, 0.5, 2.75], [0.6, 1.2, 0.3, 1.65]),
            ([1.0, 2.0, 0.5, 0.0], [0.0; 4]),
        ] {
            let long = parts(6.0, waits);
            let found = extended(&long, &short, 10.0);
            assert_eq!(found.compute, 26.0);
            for (found, expected) in
                found.waits().into_iter().zip([expected[0], expected[1], expected[2], 0.0, expected[3]])
            {
                assert!((found - expected).abs() < 1e-9, "{waits:?}: {found} and {expected}");
            }
            let total = long.total() + 10.0 * (long.total() - short.total());
            assert!((found.total() - total.max(26.0)).abs() < 1e-9, "{waits:?}: {found:?} and {total}");
        }
    }
}
