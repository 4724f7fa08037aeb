//! Outer steps of one part of the model after the other.

use crate::error::{Error, Result};

/// How the outer steps of a model's parts follow each other, and are hidden behind inner steps: Streaming DiLoCo (Douillard et al.,
/// "Streaming DiLoCo with overlapping communication", 2025).
///
/// Block `b` belongs to fragment `b % count`. In each round of inner steps the outer steps of the fragments end at equal distances, the last one
/// with the round, so none is under way between two rounds. A worker's values are then those that it alone has;
/// the model's are those after the fragments' last outer steps, which all workers have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fragments {
    /// How many, from 1 to the number of blocks.
    pub count: usize,
    /// The inner steps that a worker makes while a fragment's sum over the workers is under way: fewer than from the end of one fragment's to the
    /// end of the next one's.
    pub overlap: u64,
    /// The part of its own values that a worker keeps when an outer step ends, from 0 to 1: it continues with `mixing` times its own, and
    /// `1 - mixing` times the common ones. α in the paper, which takes 0.5.
    pub mixing: f64,
}

/// What is due after an inner step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// The outer step of a fragment begins.
    Begin(usize),
    /// The second phase of its sum begins.
    NextPhase,
    /// It ends.
    End,
}

impl Fragments {
    /// What is due after `step`, counted from 1, in rounds of this many inner steps, in this order.
    pub(crate) fn due(self, step: u64, inner_steps: u64) -> Vec<Due> {
        let place = (step.max(1) - 1) % inner_steps + 1;
        let middle = self.overlap.div_ceil(2);
        let of_fragment = |fragment: usize| {
            let end = self.end(fragment, inner_steps);
            let begin = end.saturating_sub(self.overlap);
            let moments = [(begin, Due::Begin(fragment)), (begin + middle, Due::NextPhase), (end, Due::End)];
            moments.into_iter().filter(move |(moment, _)| *moment == place).map(|(_, due)| due)
        };
        (0..self.count).flat_map(of_fragment).collect()
    }

    /// The step of a round with which a fragment's outer step ends.
    fn end(self, fragment: usize, inner_steps: u64) -> u64 {
        (fragment as u64 + 1) * inner_steps / self.count.max(1) as u64
    }

    /// Checks that they are possible with this many inner steps, and blocks if their number is known.
    ///
    /// # Errors
    /// If there are too many fragments, the overlap is too long, or the mixing is no share.
    pub fn check(self, inner_steps: u64, blocks: Option<usize>) -> Result<()> {
        let refuse = |option: &'static str, given: String, allowed: String| {
            Err(Error::Setting { option, given, allowed })
        };
        let most = usize::try_from(inner_steps).unwrap_or(usize::MAX).min(blocks.unwrap_or(usize::MAX));
        if self.count == 0 || self.count > most {
            let blocks =
                blocks.map_or_else(String::new, |blocks| format!(" and {blocks} blocks in the model"));
            let allowed = format!("with {inner_steps} inner steps{blocks} it must be from 1 to {most}");
            return refuse("strategy.fragments (--fragments)", self.count.to_string(), allowed);
        }
        let limit = self.end(0, inner_steps);
        if self.overlap >= limit {
            let allowed = format!(
                "with strategy.inner_steps = {inner_steps} and strategy.fragments = {} an outer step ends every {limit} steps; it must be less",
                self.count
            );
            return refuse("strategy.overlap_steps (--overlap-steps)", self.overlap.to_string(), allowed);
        }
        if !(0.0..=1.0).contains(&self.mixing) {
            let allowed = "it must be from 0 to 1; 0 keeps none of a worker's own values".into();
            return refuse("strategy.outer_mixing", self.mixing.to_string(), allowed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_follow_each_other_and_none_is_under_way_at_the_end() {
        for inner_steps in 1..20u64 {
            for count in 1..=inner_steps as usize {
                let limit = inner_steps / count as u64;
                for overlap in 0..limit {
                    let fragments = Fragments { count, overlap, mixing: 0.5 };
                    fragments.check(inner_steps, None).unwrap();
                    let (mut under_way, mut ended) = (None, Vec::new());
                    for step in 1..=3 * inner_steps {
                        for due in fragments.due(step, inner_steps) {
                            match due {
                                Due::Begin(fragment) => {
                                    assert_eq!(under_way.replace((fragment, 1, step)), None);
                                }
                                Due::NextPhase => under_way.iter_mut().for_each(|(_, phase, _)| *phase += 1),
                                Due::End => {
                                    let (fragment, phase, begun) = under_way.take().unwrap();
                                    assert_eq!((phase, step - begun), (2, overlap));
                                    ended.push(fragment);
                                }
                            }
                        }
                        assert!(under_way.is_none() || !step.is_multiple_of(inner_steps));
                    }
                    let expected: Vec<usize> = (0..3).flat_map(|_| 0..count).collect();
                    assert_eq!(ended, expected, "{inner_steps} {fragments:?}");
                }
                let too_long = Fragments { count, overlap: limit, mixing: 0.5 };
                assert!(too_long.check(inner_steps, None).is_err());
            }
        }
    }
}
