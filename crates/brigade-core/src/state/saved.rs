//! What was saved, by parameter: parameters need not be grouped to units as they were when they were saved.

use std::ops::Range;

use brigade_checkpoint::{PARAMETERS, ParameterMetadata, UnitMetadata as SavedUnit};
use brigade_sorted::{SortedMap, SortedSet};

use crate::error::{BoxError, Error, Result};
use crate::sharding::layout::FlatLayout;

/// Reads saved state.
pub trait StateReader {
    /// All units that were saved.
    fn units(&self) -> &[SavedUnit];

    /// Fills `values` with the elements of a slot from `start` on.
    ///
    /// # Errors
    /// If they cannot be read, or are not what was written.
    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError>;
}

/// Where each parameter was saved.
pub(super) struct SavedParameters {
    units: Vec<SavedUnit>,
    /// By the number of a worker other than the first, and the name of a unit, what it saved of that.
    by_worker: SortedMap<(usize, String), SavedUnit>,
    /// How many workers' inner states there are.
    workers: usize,
    /// By name, the numbers of the unit and of the parameter in it.
    places: SortedMap<String, (usize, usize)>,
}

impl SavedParameters {
    pub(super) fn new(from: &dyn StateReader) -> Self {
        let (mut units, mut by_worker) = (Vec::new(), SortedMap::new());
        for unit in from.units() {
            match worker_of(&unit.name) {
                Some((worker, name)) => drop(by_worker.insert((worker, name.to_owned()), unit.clone())),
                None => units.push(unit.clone()),
            }
        }
        let places = units.iter().enumerate().flat_map(|(unit, saved)| {
            let parameters = saved.parameters.iter().enumerate();
            parameters.map(move |(parameter, found)| (found.name.clone(), (unit, parameter)))
        });
        Self { places: places.collect(), units, by_worker, workers: saved_workers(from.units()) }
    }

    /// What is restored of a unit's own state on a worker: what stands before the names of its units, and the unit that has the state. A
    /// worker that was not there takes the state of the saved one whose number is its own modulo theirs.
    pub(super) fn of_worker<'s>(&'s self, unit: &'s SavedUnit, worker: usize) -> (String, &'s SavedUnit) {
        let saved = worker % self.workers;
        match self.by_worker.get(&(saved, unit.name.clone())) {
            Some(own) => (of_worker(saved), own),
            None => (String::new(), unit),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<(&SavedUnit, &ParameterMetadata)> {
        let (unit, parameter) = self.places.get(name)?;
        let unit = &self.units[*unit];
        Some((unit, &unit.parameters[*parameter]))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The first of the units in which a block's parameters of `layout` were saved. All of them must have been trained, or not,
    /// and the optimizer's state of all be of one kind.
    pub(super) fn unit(&self, block: &str, layout: &FlatLayout, trainable: bool) -> Option<&SavedUnit> {
        let found = layout.params().iter().map(|param| self.find(&format!("{block}.{}", param.path)));
        let units: Vec<&SavedUnit> = found.map(|found| Some(found?.0)).collect::<Option<_>>()?;
        let (first, rest) = units.split_first()?;
        let slots = |unit: &SavedUnit| unit.slots.iter().cloned().collect::<SortedSet<_>>();
        let alike = |unit: &&&SavedUnit| slots(unit) == slots(first) && unit.scalars == first.scalars;
        let all_alike =
            !trainable || rest.iter().filter(|unit| unit.name != first.name).all(|unit| alike(&unit));
        let fits = |unit: &&SavedUnit| {
            unit.trainable == trainable && unit.slots.iter().any(|slot| slot == PARAMETERS)
        };
        (all_alike && units.iter().all(fits)).then_some(*first)
    }

    /// Reads the elements of a slot in `range` of a layout, from units with `prefix` before their names; neighbours that were saved as
    /// neighbours at once.
    pub(super) fn read(
        &self,
        from: &mut dyn StateReader,
        prefix: &str,
        (block, layout): (&str, &FlatLayout),
        slot: &str,
        range: Range<usize>,
    ) -> Result<Vec<f32>> {
        let mut parts: Vec<(&str, Range<usize>)> = Vec::new();
        for param in layout.params() {
            let part = param.range.start.max(range.start)..param.range.end.min(range.end);
            if part.is_empty() {
                continue;
            }
            let name = format!("{block}.{}", param.path);
            let (unit, found) =
                self.find(&name).ok_or_else(|| Error::State(format!("`{name}` is not in the checkpoint")))?;
            let start = found.start + part.start - param.range.start;
            match parts.last_mut() {
                Some((last, elements)) if *last == unit.name && elements.end == start => {
                    elements.end += part.len();
                }
                _ => parts.push((&unit.name, start..start + part.len())),
            }
        }
        let mut values = vec![0.0; range.len()];
        let mut rest = values.as_mut_slice();
        for (unit, elements) in parts {
            let (part, behind) = rest.split_at_mut(elements.len());
            from.read(&format!("{prefix}{unit}"), slot, elements.start, part).map_err(Error::Load)?;
            rest = behind;
        }
        Ok(values)
    }
}

/// How many workers' inner states are among saved units: 1 also where there were no workers.
pub fn saved_workers(units: &[SavedUnit]) -> usize {
    units.iter().filter_map(|unit| worker_of(&unit.name)).map(|(worker, _)| worker + 1).max().unwrap_or(1)
}

/// The prefix of the names of the units that a worker other than the first saves.
pub(super) fn of_worker(worker: usize) -> String {
    format!("worker.{worker}/")
}

/// The number of the worker that saved a unit of this name, and the unit's own name, if it was not the first one.
fn worker_of(unit: &str) -> Option<(usize, &str)> {
    let (worker, name) = unit.strip_prefix("worker.")?.split_once('/')?;
    Some((worker.parse().ok()?, name))
}
