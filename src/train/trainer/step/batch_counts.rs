//! Whether the ranks were given micro-batches that go together.

use std::hash::{DefaultHasher, Hash, Hasher};

use brigade_core::{Activation, Batch};
use brigade_sorted::SortedMap;

use crate::error::AgreedError;
use crate::run::Session;

/// Most ranks that a message names for one number.
const MAX_NAMED: usize = 8;

/// What a rank was given for a step, in three numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GivenBatches {
    count: i64,
    /// Targets that count in the loss.
    targets: i64,
    /// Of the inputs, if they are compared.
    digest: i64,
}

impl GivenBatches {
    /// Micro-batches, of which the inputs are compared if that `compares_inputs`: their bytes have to be copied from the device.
    ///
    /// # Errors
    /// If the device does not give the values.
    pub(crate) fn of<I: Activation + Clone, T>(
        batches: &[Batch<I, T>],
        compares_inputs: bool,
    ) -> anyhow::Result<Self> {
        let mut digest = DefaultHasher::new();
        for batch in batches.iter().filter(|_| compares_inputs) {
            batch.input_digest()?.hash(&mut digest);
        }
        let targets = batches.iter().map(|batch| batch.valid_targets as i64).sum();
        Ok(Self { count: batches.len() as i64, targets, digest: digest.finish().cast_signed() })
    }
}

impl Session {
    /// Checks that all ranks but servers were given the same number of micro-batches, as otherwise they would wait for each other forever, and the ranks of a
    /// pipeline the same ones: its first stage takes the inputs, its last one the targets. All ranks call it; `step` names the step.
    pub(crate) fn check_batches(&self, step: &str, given: GivenBatches) -> anyhow::Result<()> {
        let mut all = vec![0i64; 3 * self.world_size()];
        let own = [given.count, given.targets, given.digest];
        all[3 * self.rank()..][..3].copy_from_slice(&own);
        self.group().all_gather_in_place(&mut all)?;
        let servers = self.plan.engine.strategy.servers();
        let all: Vec<&[i64]> = all.chunks_exact(3).take(self.world_size().saturating_sub(servers)).collect();
        let counts: Vec<i64> = all.iter().map(|given| given[0]).collect();
        check(step, &counts)?;
        let pipelines: Vec<usize> = (0..all.len()).map(|rank| self.pipeline_of(rank)).collect();
        Ok(check_pipelines(step, &all, &pipelines)?)
    }
}

/// `pipelines`: that of each rank.
fn check_pipelines(step: &str, all: &[&[i64]], pipelines: &[usize]) -> Result<(), AgreedError> {
    let mut first_of: SortedMap<usize, usize> = SortedMap::new();
    for (rank, (given, pipeline)) in all.iter().zip(pipelines).enumerate() {
        let first = *first_of.entry(*pipeline).or_insert(rank);
        if all[first] == *given {
            continue;
        }
        let what = match (all[first][1], given[1]) {
            (one, other) if one != other => format!("micro-batches with {one} and {other} valid targets"),
            _ => "micro-batches with other inputs".to_owned(),
        };
        return Err(AgreedError(format!(
            "{step}: ranks {first} and {rank} are stages of one pipeline, but were given {what}; all ranks of a pipeline must give the same ones, so divide data by \
            `Session::data_parallel_rank`"
        )));
    }
    Ok(())
}

fn check(step: &str, all: &[i64]) -> Result<(), AgreedError> {
    let mut by_count: SortedMap<i64, Vec<usize>> = SortedMap::new();
    all.iter().enumerate().for_each(|(rank, count)| by_count.entry(*count).or_default().push(rank));
    if by_count.len() < 2 {
        return Ok(());
    }
    let named = |(count, ranks): (&i64, &Vec<usize>)| {
        let s = if ranks.len() == 1 { "" } else { "s" };
        let first: Vec<String> = ranks.iter().take(MAX_NAMED).map(usize::to_string).collect();
        let more = match ranks.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{count} on rank{s} {}{more}", first.join(", "))
    };
    let numbers: Vec<String> = by_count.iter().map(named).collect();
    Err(AgreedError(format!(
        "{step}: ranks were given different numbers of micro-batches: {}; every rank must give the same \
        number",
        numbers.join("; ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_named_with_their_ranks() {
        let message = |all: &[i64]| check("step 3", all).err().map(|error| error.to_string());
        assert_eq!(message(&[4]), None);
        assert_eq!(message(&[2, 2, 2]), None);
        let said = "step 3: ranks were given different numbers of micro-batches: 0 on rank 1; 2 on ranks 0, 2; every rank must give the \
        same number";
        assert_eq!(message(&[2, 0, 2]).as_deref(), Some(said));
        let many: Vec<i64> = (0..12).map(|rank| i64::from(rank == 11)).collect();
        let said = message(&many).unwrap();
        assert!(said.contains(": 0 on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3 more; 1 on rank 11; "), "{said}");
    }

    #[test]
    fn stages_of_a_pipeline_have_the_same_batches() {
        let message = |all: [[i64; 3]; 4]| {
            let all: Vec<&[i64]> = all.iter().map(|given| given.as_slice()).collect();
            check_pipelines("step 1", &all, &[0, 1, 0, 1]).err().map(|error| error.to_string())
        };
        let (one, other) = ([2, 8, 5], [2, 6, 7]);
        assert_eq!(message([one, other, one, other]), None);
        let said = message([one, other, one, one]).unwrap();
        assert!(said.starts_with("step 1: ranks 1 and 3 are stages of one pipeline, but were given micro-batches with 6 and 8 valid"), "{said}");
        let said = message([one, other, [2, 8, 6], other]).unwrap();
        assert!(said.contains("ranks 0 and 2") && said.contains("other inputs"), "{said}");
    }
}
