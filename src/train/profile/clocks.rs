//! The clocks of all ranks, as one.

use brigade_core::Collectives;

/// How often ranks look at their clocks together; one of the times is rarely disturbed.
const ROUNDS: usize = 16;

/// How a rank's clock relates to that of rank 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ClockOffset {
    /// By how many microseconds it is ahead.
    pub ahead: f64,
    /// By how many it may be more or less than that.
    pub error: f64,
    /// The time on rank 0's clock when the ranks began to look.
    pub origin: f64,
}

/// Compares the clocks of all ranks, which all call it. `now`: the time in microseconds.
///
/// No rank comes out of a collective before the last one has gone in. So there is an instant between the two times at which a rank looks, before
/// and after, that is the same on all ranks; of several rounds, the one that took the least time says the most.
pub(super) fn compare(ranks: &dyn Collectives, now: impl Fn() -> f64) -> anyhow::Result<ClockOffset> {
    let mut own = Vec::with_capacity(2 * ROUNDS);
    for _ in 0..ROUNDS {
        let before = now();
        ranks.all_gather_scalars(vec![before]).wait()?;
        own.extend([before, now()]);
    }
    let all = ranks.all_gather_scalars(own).wait()?;
    Ok(offset(&all[ranks.rank()], &all[0]))
}

/// From the times of a rank and of rank 0: before and after each round.
fn offset(own: &[f64], first: &[f64]) -> ClockOffset {
    let rounds = || own.chunks_exact(2).zip(first.chunks_exact(2));
    let least = rounds().map(|(own, first)| own[0] - first[1]).fold(f64::NEG_INFINITY, f64::max);
    let most = rounds().map(|(own, first)| own[1] - first[0]).fold(f64::INFINITY, f64::min);
    // Clocks that may well agree are left alone: those of one host do.
    let ahead = if least <= 0.0 && 0.0 <= most { 0.0 } else { (least + most) / 2.0 };
    ClockOffset { ahead, error: ((most - least) / 2.0).max(0.0), origin: first[0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_is_found_within_its_error() {
        // What ranks see of rounds in which the last one goes in at 100, 200 and 300: they go in earlier and come out later.
        let seen = |ahead: f64, early: [f64; 3], late: [f64; 3]| -> Vec<f64> {
            (0..3)
                .flat_map(|round| {
                    let at = 100.0 * (round + 1) as f64 + ahead;
                    [at - early[round], at + late[round]]
                })
                .collect()
        };
        let first = seen(0.0, [5.0, 0.0, 30.0], [9.0, 2.0, 8.0]);
        let found = offset(&seen(5000.0, [0.0, 40.0, 1.0], [3.0, 6.0, 50.0]), &first);
        assert!((found.ahead - 5000.0).abs() <= found.error && found.error < 8.0, "{found:?}");
        assert_eq!(found.origin, 95.0);
        assert_eq!(offset(&seen(1.0, [0.0; 3], [4.0; 3]), &first).ahead, 0.0);
    }
}
