//! How many micro-batches the ranks were given.

use brigade_sorted::SortedMap;

use crate::error::AgreedError;
use crate::run::Session;

/// Most ranks that a message names for one number.
const MAX_NAMED: usize = 8;

impl Session {
    /// Checks that all ranks but servers were given the same number of micro-batches; otherwise they would wait for each other forever. All
    /// ranks call it; `step` names the step.
    pub(crate) fn check_batch_counts(&self, step: &str, count: usize) -> anyhow::Result<()> {
        let mut all = vec![0i64; self.world_size()];
        all[self.rank()] = count as i64;
        self.group().all_gather_in_place(&mut all)?;
        let servers = self.plan.engine.strategy.servers();
        Ok(check(step, &all[..all.len().saturating_sub(servers)])?)
    }
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
}
