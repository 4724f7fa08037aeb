//! How a model is split into stages.

use std::ops::Range;

use crate::columns::counted;

/// An impossible split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option} = {given} is not possible: {allowed}")]
pub struct SplitError {
    /// Full name of the option.
    pub option: &'static str,
    /// What was given.
    pub given: String,
    /// What is allowed.
    pub allowed: String,
}

/// Splits blocks of these costs into `stages` runs of neighbours so that the most expensive run is as cheap as possible; among such
/// splits, it chooses the one whose runs end as early as possible. No run is empty.
///
/// # Errors
/// If there are fewer blocks than stages.
pub fn balanced(costs: &[f64], stages: usize) -> Result<Vec<usize>, SplitError> {
    let blocks = costs.len();
    if stages == 0 || stages > blocks {
        return Err(SplitError {
            option: "mesh.pp x pipeline.chunks (--pp, --chunks)",
            given: stages.to_string(),
            allowed: format!(
                "the model has {}, and no stage may be empty; at most {}",
                counted(blocks, "block"),
                counted(blocks, "stage")
            ),
        });
    }
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(costs.iter().scan(0.0, |sum, cost| {
            *sum += cost.max(0.0);
            Some(*sum)
        }))
        .collect();
    // dearest[k][n]: the dearest run in the best cut of the first n blocks into k runs; cut[k][n]: where its last run begins.
    let mut dearest = vec![vec![f64::INFINITY; blocks + 1]; stages + 1];
    let mut cut = vec![vec![0; blocks + 1]; stages + 1];
    dearest[0][0] = 0.0;
    for k in 1..=stages {
        for n in k..=blocks {
            for start in k - 1..n {
                let cost = dearest[k - 1][start].max(sums[n] - sums[start]);
                if cost < dearest[k][n] {
                    (dearest[k][n], cut[k][n]) = (cost, start);
                }
            }
        }
    }
    let (mut counts, mut end) = (vec![0; stages], blocks);
    for k in (1..=stages).rev() {
        counts[k - 1] = end - cut[k][end];
        end = cut[k][end];
    }
    Ok(counts)
}

/// Splits blocks of these costs so that each part ends with the block that brings all up to it to its share of the sum. Balanced where that would leave a part without blocks.
///
/// # Errors
/// As [`balanced`].
pub fn by_shares(costs: &[f64], stages: usize) -> Result<Vec<usize>, SplitError> {
    let all: f64 = costs.iter().sum();
    let (mut counts, mut sum) = (vec![0; stages.max(1)], 0.0);
    let mut part = 0;
    for cost in costs {
        counts[part] += 1;
        sum += cost;
        let share = all * (part + 1) as f64 / stages.max(1) as f64;
        // Shares that are equal but for rounding are reached.
        if part + 1 < stages && sum >= share * (1.0 - 1e-12) {
            part += 1;
        }
    }
    if stages == 0 || counts.contains(&0) { balanced(costs, stages) } else { Ok(counts) }
}

/// The number of blocks in each of `stages` parts: as given, or balanced by cost.
///
/// # Errors
/// As [`by_hand`] and [`balanced`].
pub fn split(given: &[usize], costs: &[f64], stages: usize) -> Result<Vec<usize>, SplitError> {
    if given.is_empty() {
        return balanced(costs, stages);
    }
    by_hand(given, costs.len(), stages)?;
    Ok(given.to_vec())
}

/// Checks a split that was given by hand: the right number of stages, none empty, no block left out.
///
/// # Errors
/// If it is not so.
pub fn by_hand(counts: &[usize], blocks: usize, stages: usize) -> Result<(), SplitError> {
    let error =
        |allowed: String| SplitError { option: "pipeline.stages", given: format!("{counts:?}"), allowed };
    let sum = counts.iter().sum::<usize>();
    if counts.len() != stages {
        return Err(error(format!(
            "{} {} needed, one for each of mesh.pp x pipeline.chunks (--pp, --chunks) parts; for these set --pp {} --chunks 1",
            counted(stages, "number"),
            if stages == 1 { "is" } else { "are" },
            counts.len()
        )));
    }
    if let Some(empty) = counts.iter().position(|count| *count == 0) {
        return Err(error(format!("stage {empty} would be empty; each needs at least one block")));
    }
    if sum != blocks {
        let differs = if sum < blocks { "leaves some out" } else { "has more" };
        return Err(error(format!(
            "the model has {}, and the sum, {sum}, {differs}",
            counted(blocks, "block")
        )));
    }
    Ok(())
}

/// The blocks of each stage, from their numbers of blocks.
pub fn ranges(counts: &[usize]) -> Vec<Range<usize>> {
    counts
        .iter()
        .scan(0, |end, count| {
            let start = *end;
            *end += count;
            Some(start..*end)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stages_are_a_disjoint_complete_cover(costs in prop::collection::vec(0u32..100, 1..30), stages in 1usize..9) {
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            match balanced(&costs, stages) {
                Err(_) => prop_assert!(stages > costs.len()),
                Ok(counts) => {
                    prop_assert!(by_hand(&counts, costs.len(), stages).is_ok());
                    let ranges = ranges(&counts);
                    prop_assert_eq!(ranges[0].start, 0);
                    prop_assert_eq!(ranges[stages - 1].end, costs.len());
                    prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                }
            }
        }

        #[test]
        fn no_cut_is_better(costs in prop::collection::vec(0u32..20, 3..9)) {
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            let dearest = |counts: &[usize]| {
                ranges(counts).into_iter().map(|run| costs[run].iter().sum::<f64>()).fold(0.0, f64::max)
            };
            let best = dearest(&balanced(&costs, 3).unwrap());
            for a in 1..costs.len() - 1 {
                for b in a + 1..costs.len() {
                    prop_assert!(best <= dearest(&[a, b - a, costs.len() - b]));
                }
            }
        }
    }

    #[test]
    fn parts_end_where_their_share_is_reached() {
        // 16 layers and a head of four of them: the tenth layer is half of all.
        let costs: Vec<f64> = [0.0].into_iter().chain([1.0; 16]).chain([4.0]).collect();
        assert_eq!(by_shares(&costs, 2).unwrap(), [11, 7]);
        assert_eq!(by_shares(&costs, 4).unwrap(), [6, 5, 5, 2]);
        // Where the head alone has several shares, the rest would be empty.
        assert_eq!(by_shares(&costs, 8).unwrap(), balanced(&costs, 8).unwrap());
        assert!(by_shares(&costs, 19).is_err() && by_shares(&costs, 0).is_err());
    }

    #[test]
    fn messages_say_what_is_wrong() {
        assert_eq!(balanced(&[1.0; 4], 4).unwrap(), [1, 1, 1, 1]);
        assert_eq!(balanced(&[0.1, 1.0, 1.0, 1.0, 1.0, 2.0], 2).unwrap(), [4, 2]);
        let text = balanced(&[1.0; 3], 4).unwrap_err().to_string();
        assert!(text.contains("the model has 3 blocks"), "{text}");
        for (given, word) in [
            (vec![5, 2], "sum, 7, leaves some out"),
            (vec![5, 8], "has more"),
            (vec![12, 0], "stage 1 would be empty"),
            (vec![12], "2 numbers"),
        ] {
            let text = by_hand(&given, 12, 2).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
