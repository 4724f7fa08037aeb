//! What the ranks of one machine need together, and whether it has that.

use std::ops::Add;

use brigade_core::plan::{Alternative, Footprint};
use brigade_report::HumanBytes;

use super::machine::{Machine, Memory};
use super::plan::Assessment;

/// What ranks of one machine need, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Need {
    /// The largest of them.
    largest: u64,
    all: u64,
}

impl Add for Need {
    type Output = Self;

    /// Of two models that the same ranks hold.
    fn add(self, other: Self) -> Self {
        Self { largest: self.largest + other.largest, all: self.all + other.all }
    }
}

impl Need {
    /// Of the first ranks of a mesh whose pipeline stages have `dp` ranks each, or of several such, one after the other.
    pub(super) fn of(footprint: &Footprint, dp: usize, machine: &Machine) -> Self {
        let stages = &footprint.stages;
        let peaks = (0..machine.ranks).map(|rank| {
            stages.get(rank / dp.max(1) % stages.len().max(1)).map_or(0, |stage| stage.memory.peak())
        });
        let peaks: Vec<u64> = peaks.collect();
        Self { largest: peaks.iter().copied().max().unwrap_or(0), all: peaks.iter().sum() }
    }

    fn describe(&self, machine: &Machine) -> String {
        let (largest, all) = (HumanBytes(self.largest), HumanBytes(self.all));
        match (&machine.memory, machine.ranks) {
            (Memory::Host(_), ranks) if ranks > 1 => {
                format!("about {all} on this machine, on {ranks} ranks of up to {largest}")
            }
            (Memory::Host(_), _) => format!("about {all} on this machine"),
            (Memory::Device(_), _) => format!("about {largest} on a device"),
        }
    }
}

/// Compares a need with what a machine has. `beside` is memory that no alternative changes; `alternatives` is called only if the need does not fit.
pub(super) fn assessment(
    machine: &Machine,
    need: Need,
    beside: Option<Need>,
    alternatives: impl FnOnce() -> Vec<Alternative>,
) -> Assessment {
    let need = beside.map_or(need, |beside| need + beside);
    let fits = machine.has(need.largest, need.all);
    let (needs, has) = (need.describe(machine), machine.describe());
    let mut text = format!("the run will need {needs}; {has}");
    if fits {
        return Assessment { fits, text };
    }
    let planned = alternatives().into_iter().filter_map(|Alternative { flags, configuration }| {
        let footprint = Footprint::of(&configuration).ok()?;
        let alternative = Need::of(&footprint, configuration.dp * configuration.replicas, machine);
        Some((flags, beside.map_or(alternative, |beside| alternative + beside)))
    });
    let mut least: Option<(String, Need)> = None;
    for (flags, other) in planned {
        if machine.has(other.largest, other.all) {
            let all = other.describe(machine);
            text.push_str(&format!("; with `{flags}` it would need {all}"));
            return Assessment { fits, text };
        }
        if other.all < least.as_ref().map_or(need.all, |(_, least)| least.all) {
            least = Some((flags, other));
        }
    }
    match least {
        Some((flags, least)) => {
            let all = least.describe(machine);
            text.push_str(&format!(
                "; even with `{flags}` it would need {all}: it takes a smaller model or more machines"
            ));
        }
        None => text.push_str("; it takes a smaller model or more machines"),
    }
    Assessment { fits, text }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use brigade_core::plan::{Configuration, SavedActivations, UnitSize};
    use brigade_report::{AddressSpace, MemoryCapacity};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Four blocks of 4 MiB of parameters, and of 64 MiB inside for each of 4 samples, on two ranks.
    fn configuration() -> Configuration {
        let (boundary_activations, saved_activations) = activations(4).unwrap();
        Configuration {
            units: (0..4).map(|block| UnitSize::trained(1 << 20, vec![block])).collect(),
            boundary_activations,
            saved_activations,
            split: vec![4],
            dp: 2,
            micro_batches: 2,
            ..Configuration::default()
        }
    }

    fn activations(samples: usize) -> Option<brigade_core::plan::Activations> {
        let saved = 64 * MIB * samples as u64;
        let block = SavedActivations { saved, peak: saved + MIB, output: 0, deferred: 0 };
        Some((vec![Vec::new(); 4], [vec![block; 4], vec![SavedActivations::default()]].concat()))
    }

    fn said(available: u64, left: Option<u64>) -> Assessment {
        let address_space = left.map(|left| AddressSpace { limit: 2 * left, left });
        let source = "available on this machine".to_owned();
        let memory = Memory::Host(MemoryCapacity { available, source, address_space });
        let machine = Machine { ranks: 2, memory };
        let configuration = configuration();
        let footprint = Footprint::of(&configuration).unwrap();
        let need = Need::of(&footprint, 2, &machine);
        assessment(&machine, need, None, || configuration.alternatives(4, &[1.0; 4], activations))
    }

    #[test]
    fn the_first_settings_that_fit_are_named() {
        assert!(said(4 << 30, None).fits);
        for (available, flags) in [
            (1600 * MIB, "--micro-batch-size 2"),
            (1000 * MIB, "--recompute all"),
            (500 * MIB, "--micro-batch-size 1 --recompute all"),
        ] {
            let found = said(available, None);
            assert!(
                !found.fits && found.text.contains(&format!("with `{flags}` it would")),
                "{}",
                found.text
            );
        }
        let text = said(64 * MIB, None).text;
        assert!(text.starts_with("the run will need about 2."), "{text}");
        assert!(
            text.contains("on 2 ranks of up to 1.") && text.contains("64.00 MiB are available"),
            "{text}"
        );
        assert!(text.contains("even with `--micro-batch-size 1 --recompute all --zero 3"), "{text}");
        let text = said(4 << 30, Some(512 * MIB)).text;
        assert!(
            text.contains("an address space of 1.00 GiB (ulimit -v), of which 512.00 MiB is free; with `--"),
            "{text}"
        );
    }
}
