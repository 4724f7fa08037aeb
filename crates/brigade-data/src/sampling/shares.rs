//! Sources by their shares of the samples.

use crate::error::{Error, Result};

/// A source's size, and how much of the samples it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SourceShare {
    /// The number of its sequences.
    pub len: usize,
    /// Its share, as a part of the sum of all weights; above 0.
    pub weight: f64,
}

/// A source's places in an epoch.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// How many sequences come before its own.
    pub(super) first_sequence: u64,
    pub(super) len: u64,
    /// How many draws come before its own.
    pub(super) first_draw: u64,
    /// How many draws of an epoch it has.
    pub(super) draws: u64,
}

/// The draws of one epoch, of which there are as many as sequences: to each source its share, rounded so that the sum is right, and at least
/// one.
pub(super) fn parts(shares: &[SourceShare]) -> Result<Vec<Part>> {
    let refuse = |option, given: String, allowed: &str| {
        Err(Error::InvalidSetting { option, given, allowed: allowed.into() })
    };
    for SourceShare { len, weight } in shares {
        if !(weight.is_finite() && *weight > 0.0) {
            return refuse("data.source.weight", weight.to_string(), "it must be a number above 0");
        }
        if *len == 0 {
            return refuse("samples to train on", "0".into(), "it must be at least 1");
        }
    }
    if shares.is_empty() {
        return refuse("samples to train on", "0".into(), "it must be at least 1");
    }
    let total: u64 = shares.iter().map(|share| share.len as u64).sum();
    let weights: f64 = shares.iter().map(|share| share.weight).sum();
    let ideal: Vec<f64> = shares.iter().map(|share| share.weight / weights * total as f64).collect();
    let mut draws: Vec<u64> = ideal.iter().map(|ideal| (*ideal as u64).max(1)).collect();
    // Where the rounding takes away most, it gives first, and the other way round.
    let missing = |draws: &[u64], source: usize| ideal[source] - draws[source] as f64;
    loop {
        let given: u64 = draws.iter().sum();
        let sources = 0..draws.len();
        let by_missing =
            |a: &usize, b: &usize| missing(&draws, *a).total_cmp(&missing(&draws, *b)).then(b.cmp(a));
        if given < total {
            let Some(source) = sources.max_by(by_missing) else { break };
            draws[source] += 1;
        } else if given > total {
            let Some(source) = sources.filter(|source| draws[*source] > 1).min_by(by_missing) else { break };
            draws[source] -= 1;
        } else {
            break;
        }
    }
    let (mut first_sequence, mut first_draw) = (0, 0);
    Ok(shares
        .iter()
        .zip(draws)
        .map(|(share, draws)| {
            let part = Part { first_sequence, len: share.len as u64, first_draw, draws };
            first_sequence += part.len;
            first_draw += draws;
            part
        })
        .collect())
}
