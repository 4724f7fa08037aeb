//! Which adapter a rank takes.

use crate::adapters::{Adapter, AdapterKind};
use crate::error::Error;

/// The adapters that ranks may use, best first: GPUs, or software drivers if there is no GPU.
pub(crate) fn usable(adapters: &[Adapter]) -> Vec<&Adapter> {
    let mut usable: Vec<&Adapter> = adapters.iter().collect();
    if usable.iter().any(|adapter| adapter.kind != AdapterKind::Software) {
        usable.retain(|adapter| adapter.kind != AdapterKind::Software);
    }
    // The sort is stable: within a kind, the API's order remains.
    usable.sort_by_key(|adapter| adapter.kind);
    usable
}

/// The adapter of local rank `local_rank`; see `device`.
pub(crate) fn choose(adapters: &[Adapter], local_rank: usize) -> Result<&Adapter, Error> {
    let usable = usable(adapters);
    let (Some(first), Some(last)) = (usable.first(), usable.last()) else { return Err(Error::NoAdapter) };
    if local_rank >= usable.len() && first.kind != last.kind {
        let found = usable.iter().map(|adapter| adapter.to_string()).collect();
        return Err(Error::TooFewAdapters { local_rank, found });
    }
    Ok(usable[local_rank % usable.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GraphicsApi;

    fn machine(kinds: &[AdapterKind]) -> Vec<Adapter> {
        let of = |i: usize| Adapter {
            name: format!("adapter {i}"),
            api: GraphicsApi::Vulkan,
            kind: kinds[i],
            index: kinds[..i].iter().filter(|kind| **kind == kinds[i]).count(),
        };
        (0..kinds.len()).map(of).collect()
    }

    #[test]
    fn ranks_take_the_best_first_and_share_only_equals() {
        use AdapterKind::{Discrete as D, Integrated as I, Software as S, Virtual as V};
        for (kinds, ranks) in [
            (&[D][..], vec![Some(0), Some(0), Some(0)]),
            (&[D, D], vec![Some(0), Some(1), Some(0), Some(1)]),
            (&[I, D, S, D], vec![Some(1), Some(3), Some(0), None]),
            (&[S, V, I], vec![Some(2), Some(1), None]),
            (&[S, I], vec![Some(1), Some(1)]),
            (&[S], vec![Some(0), Some(0)]),
            (&[], vec![None]),
        ] {
            let machine = machine(kinds);
            for (rank, expected) in ranks.into_iter().enumerate() {
                let chosen = choose(&machine, rank).ok();
                assert_eq!(chosen, expected.map(|i: usize| &machine[i]), "rank {rank} of {kinds:?}");
            }
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let none = choose(&[], 0).unwrap_err().to_string();
        assert!(none.contains("Vulkan driver") && none.contains("mesa-vulkan-drivers"), "{none}");
        let mixed = machine(&[AdapterKind::Integrated, AdapterKind::Discrete]);
        let few = choose(&mixed, 2).unwrap_err().to_string();
        assert!(few.contains("local rank 2") && few.contains("at most 2 ranks"), "{few}");
        assert!(
            few.contains("adapter 1 (discrete GPU, Vulkan), adapter 0 (integrated GPU, Vulkan)"),
            "{few}"
        );
    }
}
