//! What a mesh saves is what any other mesh goes on from: the same state, and the same weights after more steps, as of a run
//! that was never stopped.

use std::collections::BTreeMap;

use brigade::checkpoints::{PARAMETERS, UnitMetadata, WriteItem};
use brigade::core::{BoxError, Error, Groups, StateReader, Zero};

use crate::mesh::{on_mesh, on_threads, same_bits};
use crate::parameters::frozen;
use crate::row::{Gpt, MIXED, Row};

/// A state in memory, put together from the pieces of all ranks.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    units: Vec<UnitMetadata>,
    slots: BTreeMap<(String, String), Vec<Option<f32>>>,
}

impl Saved {
    pub fn of(ranks: Vec<(Vec<UnitMetadata>, Vec<WriteItem>)>) -> Self {
        let mut saved = Self::default();
        let units: BTreeMap<String, UnitMetadata> =
            ranks.iter().flat_map(|(units, _)| units).map(|unit| (unit.name.clone(), unit.clone())).collect();
        for unit in ranks.iter().flat_map(|(units, _)| units) {
            assert_eq!(*unit, units[&unit.name], "ranks agree on units");
        }
        for piece in ranks.into_iter().flat_map(|(_, pieces)| pieces) {
            let unit = &units[&piece.unit];
            assert!(unit.slots.contains(&piece.slot), "{} of {}", piece.slot, piece.unit);
            let slot =
                saved.slots.entry((piece.unit, piece.slot)).or_insert_with(|| vec![None; unit.elements]);
            for (index, value) in piece.values.into_iter().enumerate() {
                assert!(slot[piece.start + index].replace(value).is_none(), "every element is saved once");
            }
        }
        saved.units = units.into_values().collect();
        assert!(saved.slots.values().flatten().all(Option::is_some), "every element is saved");
        saved
    }

    /// The same with other values of the parameters that are not trained.
    pub fn with_frozen(mut self, value: f32) -> Self {
        let names: Vec<_> =
            self.units.iter().filter(|unit| !unit.trainable).map(|unit| unit.name.clone()).collect();
        let frozen = self.slots.iter_mut().filter(|((unit, _), _)| names.contains(unit));
        let count = frozen.map(|(_, values)| values.fill(Some(value))).count();
        assert!(count > 0, "something is frozen");
        self
    }

    /// The values of all parameters, by unit.
    pub fn parameters(&self) -> BTreeMap<String, Vec<f32>> {
        let slots = self.slots.iter().filter(|((_, slot), _)| slot == PARAMETERS);
        let values = |values: &Vec<Option<f32>>| values.iter().map(|value| value.unwrap()).collect();
        slots.map(|((unit, _), found)| (unit.clone(), values(found))).collect()
    }

    /// What a worker has of its own.
    pub fn of_worker(&self, worker: usize) -> BTreeMap<(String, String), Vec<u32>> {
        let prefix = format!("worker.{worker}/");
        let own = |((unit, slot), values): (&(String, String), &Vec<Option<f32>>)| {
            let unit = match worker {
                0 if unit.contains('/') || slot == PARAMETERS || slot.starts_with("outer.") => return None,
                0 => unit.as_str(),
                _ => unit.strip_prefix(&prefix)?,
            };
            let bits = values.iter().map(|value| value.unwrap().to_bits()).collect();
            Some(((unit.to_owned(), slot.clone()), bits))
        };
        self.slots.iter().filter_map(own).collect()
    }

    /// The same with other values of the parameters.
    pub fn with_parameters(mut self, parameters: &BTreeMap<String, Vec<f32>>) -> Self {
        for (unit, values) in parameters {
            let slot = self.slots.get_mut(&(unit.clone(), PARAMETERS.to_owned())).unwrap();
            *slot = values.iter().copied().map(Some).collect();
        }
        self
    }

    /// The same without the numbers that the optimizer keeps of a unit.
    pub fn without_scalars(mut self, name: &str) -> Self {
        let unit = self.units.iter_mut().find(|unit| unit.name == name).unwrap();
        assert!(!std::mem::take(&mut unit.scalars).is_empty(), "{name} has some");
        self
    }

    /// Every array, with the names of its unit and its slot.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &str, Vec<f32>)> {
        let values = |values: &Vec<Option<f32>>| values.iter().map(|value| value.unwrap()).collect();
        self.slots.iter().map(move |((unit, slot), found)| (unit.as_str(), slot.as_str(), values(found)))
    }

    fn bits(&self) -> BTreeMap<&(String, String), Vec<u32>> {
        let bits = |values: &Vec<Option<f32>>| values.iter().map(|value| value.unwrap().to_bits()).collect();
        self.slots.iter().map(|(name, values)| (name, bits(values))).collect()
    }

    pub fn same(&self, other: &Self, what: &str) {
        assert_eq!(self.units, other.units, "{what}");
        assert!(self.bits() == other.bits(), "{what}");
    }
}

impl StateReader for &Saved {
    fn units(&self) -> &[UnitMetadata] {
        &self.units
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        let slot = self.slots.get(&(unit.to_owned(), slot.to_owned())).ok_or("no such slot")?;
        for (index, value) in values.iter_mut().enumerate() {
            *value = slot[start + index].ok_or("nothing there")?;
        }
        Ok(())
    }
}

pub fn snapshot(engine: &Gpt) -> (Vec<UnitMetadata>, Vec<WriteItem>) {
    let snapshot = engine.snapshot().unwrap();
    let bytes = snapshot.bytes();
    let (units, pieces) = snapshot.read().unwrap();
    assert_eq!(bytes, pieces.iter().map(|piece| 4 * piece.values.len() as u64).sum::<u64>());
    (units, pieces)
}

/// Trains `row` for the steps, from a saved state or from the start; gives weights of rank 0 and the state of all.
pub fn train(
    row: &Row,
    from: Option<&Saved>,
    steps: std::ops::Range<u64>,
) -> (Vec<brigade::core::NamedTensor>, Saved) {
    let ranks = on_mesh(&row.mesh(), |groups: Groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        if let Some(mut saved) = from {
            // What an engine held before does not matter.
            row.step(&mut engine, 77, &groups);
            engine.restore(steps.start, &mut saved).unwrap();
        }
        let held = snapshot(&engine);
        for step in steps.clone() {
            if let Some(report) = row.step(&mut engine, step, &groups) {
                assert_eq!(report.step, step + 1);
            }
        }
        let saved = snapshot(&engine);
        (engine.tensors(0).unwrap(), held, saved)
    });
    let (mut weights, mut held, mut saved) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, (tensors, before, after)) in ranks.into_iter().enumerate() {
        if rank == 0 {
            weights = tensors;
        }
        held.push(before);
        saved.push(after);
    }
    if let Some(from) = from {
        Saved::of(held).same(from, &format!("what {row:?} took back is what was saved"));
    }
    (weights, Saved::of(saved))
}

fn rows(base: &Row) -> Vec<Row> {
    let meshes = [(1, 1, 0), (1, 4, 3), (2, 2, 1), (4, 1, 0), (1, 2, 2), (2, 2, 3), (3, 1, 0), (1, 4, 0)];
    let row = |(pp, dp, stage)| Row {
        pp,
        dp,
        micro_batches: 4 / dp,
        zero: Zero { stage, ..Zero::default() },
        ..base.clone()
    };
    meshes.into_iter().map(row).collect()
}

fn every_mesh_goes_on_from_every_mesh(base: &Row) {
    every_row_goes_on_from_every_row(&rows(base));
}

/// From half of the steps on.
pub fn every_row_goes_on_from_every_row(rows: &[Row]) {
    let (weights, last) = train(&rows[0], None, 0..4);
    for from in rows {
        let (_, saved) = train(from, None, 0..2);
        for to in rows {
            let what = format!("from {from:?} to {to:?}");
            let (resumed, state) = train(to, Some(&saved), 2..4);
            same_bits(&resumed, &weights, &what);
            state.same(&last, &what);
        }
    }
}

#[test]
fn every_mesh_goes_on_from_every_mesh_tied() {
    every_mesh_goes_on_from_every_mesh(&Row { tied: true, ..Row::default() });
}

#[test]
fn every_mesh_goes_on_from_every_mesh_with_other_optimizers() {
    every_mesh_goes_on_from_every_mesh(&Row { optimizer: "lion", masked: true, ..Row::default() });
    every_mesh_goes_on_from_every_mesh(&Row { optimizer: "sgd", ..Row::default() });
}

#[test]
fn masters_are_saved_where_blocks_compute_in_bf16() {
    for offload in [false, true] {
        let base = Row { precision: MIXED, offload, tied: true, ..Row::default() };
        let rows = rows(&base);
        for (from, to) in [(1, 2), (2, 0), (5, 1), (0, 5)] {
            // Sums and steps are those of the mesh; what is taken back is what was saved.
            let (_, saved) = train(&rows[from], None, 0..2);
            train(&rows[to], Some(&saved), 2..3);
        }
    }
}

/// Three ranks do not divide what two or four do.
#[test]
fn shards_of_any_number() {
    let wide = |dp: usize, stage| Row {
        dp,
        micro_batches: 1,
        zero: Zero { stage, ..Zero::default() },
        ..Row::default()
    };
    let (_, saved) = train(&wide(3, 2), None, 0..2);
    for row in [wide(2, 3), wide(4, 1), wide(5, 3), wide(1, 0)] {
        train(&row, Some(&saved), 2..3);
    }
}

#[test]
fn frozen_parameters_are_saved_too() {
    for (from, to) in [((1, 1), (2, 2)), ((2, 2), (1, 1)), ((1, 4), (4, 1)), ((3, 2), (1, 2))] {
        for stage in [0, 3] {
            frozen::goes_on(from, to, stage);
        }
    }
}

/// A reader that takes down what is read.
struct Tracking<'a>(&'a Saved, Vec<(String, String, std::ops::Range<usize>)>);

impl StateReader for Tracking<'_> {
    fn units(&self) -> &[UnitMetadata] {
        &self.0.units
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        self.1.push((unit.to_owned(), slot.to_owned(), start..start + values.len()));
        let mut saved = self.0;
        saved.read(unit, slot, start, values)
    }
}

/// Files are sorted by unit, slot and element.
#[test]
fn a_rank_reads_what_it_needs_once_and_in_the_order_of_files() {
    let base = Row { layers: 11, tied: true, ..Row::default() };
    let (_, saved) = train(&base, None, 0..1);
    let total: usize = saved.slots.values().map(Vec::len).sum();
    for row in rows(&base) {
        let read = on_threads(row.pp, row.dp, |groups: Groups| {
            let mut engine = row.engine(groups).unwrap();
            let mut tracking = Tracking(&saved, Vec::new());
            engine.restore(1, &mut tracking).unwrap();
            let order = |(unit, slot, range): &(String, String, std::ops::Range<usize>)| {
                (unit.clone(), slot.clone(), range.start)
            };
            assert!(tracking.1.iter().map(order).is_sorted(), "{row:?}: {:?}", tracking.1);
            let slots: std::collections::BTreeSet<_> =
                tracking.1.iter().map(|(unit, slot, _)| (unit, slot)).collect();
            assert_eq!(slots.len(), tracking.1.len(), "{row:?}: each slot in one range");
            tracking.1.iter().map(|(.., range)| range.len()).sum::<usize>()
        });
        assert!(read.iter().all(|elements| *elements <= total), "{row:?}");
        // Stages share the units, and ZeRO-3's ranks the elements of each; only a shared table is read twice.
        let shares = row.pp * if row.zero.stage == 3 { row.dp } else { 1 };
        assert!(
            read.iter().sum::<usize>() <= row.pp * row.dp * total / shares + shares * 4 * 24 * 12,
            "{row:?}: {read:?}"
        );
    }
}

#[test]
fn another_model_or_optimizer_is_refused_by_name() {
    let (_, saved) = train(&Row::default(), None, 0..1);
    let refused = |row: Row, saved: &Saved| {
        let mut engine = row.engine(Groups::single_rank()).unwrap();
        let mut saved = saved;
        match engine.restore(1, &mut saved) {
            Err(Error::State(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let why = refused(Row { layers: 4, ..Row::default() }, &saved);
    assert!(why.contains("`h.3.") && why.contains("is not in the checkpoint"), "{why}");
    let why = refused(Row { layers: 2, ..Row::default() }, &saved);
    assert!(why.contains("the checkpoint's parameter `h.2."), "{why}");
    let why = refused(Row { tied: true, ..Row::default() }, &saved);
    assert!(why.contains("head.lm_head"), "{why}");
    let why = refused(Row { optimizer: "sgd", ..Row::default() }, &saved);
    assert!(why.contains("another kind") && why.contains("momentum.moment_1"), "{why}");
    let mut other = saved.clone();
    let parameter = &mut other.units[1].parameters[0];
    parameter.shape.push(1);
    let why = refused(Row::default(), &other);
    assert!(why.contains("has the shape"), "{why}");
    let mut without = saved.clone();
    without.units[1].slots.retain(|slot| slot != PARAMETERS);
    assert!(refused(Row::default(), &without).contains("differ from the checkpoint"));
    let mut broken = saved;
    broken.slots.retain(|(_, slot), _| slot != PARAMETERS);
    let mut engine = Row::default().engine(Groups::single_rank()).unwrap();
    let mut reader = &broken;
    assert!(matches!(engine.restore(1, &mut reader), Err(Error::Load(_))));
}
