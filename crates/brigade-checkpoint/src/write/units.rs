//! The units of a checkpoint, from what each rank says of those that it has a part of.

use brigade_sorted::SortedMap;

use crate::error::{Error, Result};
use crate::format::unit::{Scalar, UnitMetadata};

/// The units of all ranks, each once, in the order of their names. `counts_differ`: whether the ranks with parts of a unit may have made
/// different numbers of updates. Integers among its scalars count these, and the largest is saved; all else must be equal.
///
/// # Errors
/// If two ranks differ in the same unit.
pub fn merge_units(of_ranks: Vec<Vec<UnitMetadata>>, counts_differ: bool) -> Result<Vec<UnitMetadata>> {
    let mut merged: SortedMap<String, UnitMetadata> = SortedMap::new();
    for (rank, units) in of_ranks.into_iter().enumerate() {
        for mut unit in units {
            let Some(known) = merged.get_mut(&unit.name) else {
                drop(merged.insert(unit.name.clone(), unit));
                continue;
            };
            if counts_differ {
                set_larger_counts(known, &mut unit);
            }
            if *known != unit {
                let (known, unit) = (Box::new(known.clone()), Box::new(unit));
                return Err(Error::UnitsDiffer { rank, known, unit });
            }
        }
    }
    Ok(merged.into_values().collect())
}

fn set_larger_counts(one: &mut UnitMetadata, other: &mut UnitMetadata) {
    for (name, own) in &mut one.scalars {
        if let (Scalar::Int(own), Some(Scalar::Int(others))) = (own, other.scalars.get_mut(name)) {
            let larger = *own.max(others);
            (*own, *others) = (larger, larger);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn unit(name: &str, time: Scalar) -> UnitMetadata {
        UnitMetadata {
            name: name.into(),
            elements: 4,
            trainable: true,
            parameters: Vec::new(),
            slots: vec!["momentum.1".into()],
            scalars: SortedMap::from([("time".into(), time)]),
        }
    }

    #[test]
    fn ranks_agree_on_units_or_only_differ_in_counts() {
        let [few, many] = [3, 5].map(Scalar::Int);
        let same = vec![vec![unit("b", few)], vec![unit("a", few), unit("b", few)]];
        for counts_differ in [false, true] {
            let merged = merge_units(same.clone(), counts_differ).unwrap();
            assert_eq!(merged, [unit("a", few), unit("b", few)]);
        }
        for other in [[few, many], [many, few]] {
            let ranks = || other.map(|count| vec![unit("a", count)]).to_vec();
            let refused = merge_units(ranks(), false).unwrap_err().to_string();
            assert!(refused.starts_with("rank 1 and an earlier one differ in unit \"a\""), "{refused}");
            assert_eq!(merge_units(ranks(), true).unwrap(), [unit("a", many)]);
        }
        let shorter = UnitMetadata { elements: 3, ..unit("a", few) };
        let scaled = unit("a", Scalar::Float(0.5));
        for other in [shorter, scaled, UnitMetadata { scalars: SortedMap::new(), ..unit("a", few) }] {
            assert!(merge_units(vec![vec![unit("a", few)], vec![other]], true).is_err());
        }
    }
}
