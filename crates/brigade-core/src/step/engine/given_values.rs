//! What parameters hold before training gives them their initial values.

use brigade_random::{keyed, keyed_bytes};
use brigade_sorted::SortedMap;

use crate::dist::Collectives;
use crate::error::{Error, Result};
use crate::model::chain::blocks::Blocks;
use crate::model::chain::ties::Tie;
use crate::model::parameters::Unfit;

/// Checks that parameters which already have values have the same ones on all ranks, as these train together from there on. A parameter
/// without a value gets one that follows from its path, and the follower of a tie that of its owner; where values are loaded, these count.
/// All ranks call it together.
///
/// # Errors
/// If values differ; if the model has parameters that cannot be trained: no floats, or in another layout than they are given in.
pub(crate) fn check_given_values(chain: &Blocks, ties: &[Tie], world: &dyn Collectives) -> Result<()> {
    let is_compared = world.size() > 1;
    let mut own = Vec::new();
    for (block, named) in chain.blocks.iter().enumerate() {
        let name = |path: &str| format!("{}.{path}", named.name);
        if let Some((path, why)) = named.block.unfit() {
            let why = match why {
                Unfit::NotFloat => {
                    "is a parameter of integers or booleans, which Brigade neither trains nor saves; hold numbers that never change in a \
                     tensor without `Param`, and others as floats"
                }
                Unfit::Mapped => {
                    "is a parameter with a `load_mapper`, whose values are laid out differently in use and in files, which Brigade cannot train; \
                     Burn's linear layers have one with `LinearLayout::Col`: use `LinearLayout::Row`"
                }
            };
            return Err(Error::Model(format!("`{}` {why}", name(&path))));
        }
        let given = if is_compared { named.block.given_values() } else { SortedMap::new() };
        for (path, value) in given {
            let is_follower = ties.iter().any(|tie| tie.follower == (block, path.clone()));
            if is_follower || chain.loads(&name(&path), &value.shape)? {
                continue;
            }
            let values = value.flat.try_into_vec_as::<f32>();
            let values = values.map_err(|error| Error::Device(error.to_string()))?;
            let name = name(&path);
            let digest = digest(keyed_bytes(0, name.as_bytes()), &values);
            own.push((name, digest));
        }
    }
    if world.size() == 1 {
        return Ok(());
    }
    let whole = own.iter().fold(own.len() as u64, |whole, (_, digest)| keyed(whole, *digest));
    let count = own.len();
    let summary = gather(world, [count as u64, whole])?;
    if summary.iter().all(|other| *other == summary[0]) {
        return Ok(());
    }
    if let Some(rank) = (0..summary.len()).find(|rank| summary[*rank][0] != summary[0][0]) {
        return Err(Error::Model(format!(
            "rank {rank} has {} with values, and rank 0 has {}: all ranks must make the same model",
            match summary[rank][0] {
                1 => "1 parameter".to_owned(),
                count => format!("{count} parameters"),
            },
            summary[0][0]
        )));
    }
    let all = gather(world, own.iter().map(|(_, digest)| *digest))?;
    let differs = |index: usize| (1..all.len()).find(|rank| all[*rank][index] != all[0][index]);
    let found = (0..count).find_map(|index| Some((index, differs(index)?)));
    let Some((index, rank)) = found else { return Ok(()) };
    Err(Error::Model(format!(
        "`{}` has different values on rank {rank} and rank 0: a parameter that has values before training must have the same values on every \
        rank. Draw them from a seed that all ranks have (`with_seed`), or let Burn's `Initializer` draw them, which gives them the same \
        values on any mesh",
        own[index].0
    )))
}

/// A digest of numbers, one multiplication for two of them: models may have billions. No cryptographic hash such as blake3 is needed, which would be slower: it
/// finds mistakes, not attacks.
fn digest(seed: u64, values: &[f32]) -> u64 {
    let mut digest = seed;
    let pairs = values.chunks_exact(2);
    let last = pairs.remainder().iter().map(|value| u64::from(value.to_bits()));
    let pairs = pairs.map(|pair| u64::from(pair[0].to_bits()) << 32 | u64::from(pair[1].to_bits()));
    for bits in pairs.chain(last) {
        digest = (digest.rotate_left(23) ^ bits).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    keyed(digest, values.len() as u64)
}

/// Numbers of all ranks, in halves that a float holds.
fn gather(world: &dyn Collectives, own: impl IntoIterator<Item = u64>) -> Result<Vec<Vec<u64>>> {
    let halves = own.into_iter().flat_map(|number| [number >> 32, number & 0xffff_ffff]);
    let all = world.all_gather_scalars(halves.map(|half| half as f64).collect()).wait()?;
    let whole = |halves: &[f64]| ((halves[0] as u64) << 32) | halves[1] as u64;
    Ok(all.iter().map(|halves| halves.chunks_exact(2).map(whole).collect()).collect())
}
