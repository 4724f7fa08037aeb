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
    Ok(long.combined(&short, |long, short| long + times * (long - short)))
}
