//! The codes of one unit's gradient: what they leave out, saved and taken back.

use std::ops::Range;
use std::sync::Arc;

use brigade_compress::{CodedSum, Compression, ErrorFeedback, Matrix, Method, PowerSgd};
use brigade_sorted::SortedMap;

use crate::error::{Error, Result};
use crate::optim::{FlatState, SavedState};
use crate::step::strategy::{ReducedUnit, ReductionState};

/// The arrays that are saved: what the codes of each rank left out, with its number behind it; what those of the sums did; PowerSGD's
/// right factors, each where its matrix begins.
const OWN: &str = "error.";
const SUM: &str = "error.sum";
const FACTOR: &str = "factor";

/// Whether an array is one of these.
fn is_of_codes(array: &str) -> bool {
    let rank = array.strip_prefix(OWN).map(str::parse::<usize>);
    [SUM, FACTOR].contains(&array) || matches!(rank, Some(Ok(_)))
}

/// An array that another reduction kept.
pub(super) fn foreign(array: &str) -> Error {
    let how = match is_of_codes(array) {
        true => {
            ", or resume with --strategy sync --compress bf16, which keeps none, up to one checkpoint, and from there with these settings"
        }
        false => "",
    };
    Error::State(format!(
        "the checkpoint has `{array}`, which only the compression (comm.compress, --compress) or strategy (strategy.name, --strategy) that it was saved with can \
         continue; leave these settings out to keep them{how}"
    ))
}

/// The codes of one unit on one rank.
pub(super) struct UnitCodes {
    codes: Codes,
    /// The same at the beginning of a run.
    new: Box<dyn Fn() -> Codes + Send>,
    /// The elements of the unit that this rank codes, without padding.
    covered: Range<usize>,
    /// Of the unit, without padding.
    elements: usize,
    rank: usize,
    ranks: usize,
}

/// How a gradient travels.
pub(super) enum Codes {
    /// Nowhere: the rank is alone. What another number of ranks left out is added once.
    Exact(ErrorFeedback),
    Coded(CodedSum),
    PowerSgd(PowerSgd),
}

impl UnitCodes {
    /// Of the elements `covered` of a unit, as one of some ranks, which have the whole sum in the end if `sends_sums`: then they are of the
    /// unit's own elements. Elements beyond the end of these, or of the unit, are padding. PowerSGD's first factors follow from `seed`.
    pub(super) fn new(
        compression: Compression,
        unit: &ReducedUnit,
        covered: Range<usize>,
        (rank, ranks): (usize, usize),
        sends_sums: bool,
        seed: u64,
    ) -> Self {
        let elements = unit.parameters.last().map_or(0, |last| last.range.end);
        // With padding, so that all ranks cut in the same places.
        let slice = covered.len().div_ceil(ranks);
        let end = if sends_sums { elements.min(unit.own.end) } else { elements };
        let covered = covered.start.min(end)..covered.end.min(end);
        let count = covered.len();
        let matrix = |param: &crate::FlatParam| Matrix::of(param.range.start, &param.shape);
        // A part of a unit has parts of matrices, which travel as they are.
        let matrices = unit.parameters.iter().filter(|_| count == elements).filter_map(matrix);
        let matrices: Vec<_> = matrices.collect();
        let new = move || match compression.codec() {
            _ if ranks == 1 => Codes::Exact(ErrorFeedback::none()),
            Some(codec) => Codes::Coded(CodedSum::new(codec, (rank, ranks), (slice, count), sends_sums)),
            None if compression.method == Method::PowerSgd => {
                Codes::PowerSgd(PowerSgd::new(compression.rank, count, &matrices, seed))
            }
            None => Codes::Exact(ErrorFeedback::none()),
        };
        Self { codes: new(), new: Box::new(new), covered, elements, rank, ranks }
    }

    pub(super) fn codes(&mut self) -> &mut Codes {
        &mut self.codes
    }

    /// Numbers that are coded.
    pub(super) fn count(&self) -> usize {
        self.covered.len()
    }

    /// What a coded sum makes; nothing where there is none.
    pub(super) fn coded<R: Default>(&mut self, work: impl FnOnce(&mut CodedSum) -> R) -> R {
        match &mut self.codes {
            Codes::Coded(coded) => work(coded),
            _ => R::default(),
        }
    }

    /// What PowerSGD makes; nothing where there is none.
    pub(super) fn power_sgd<R: Default>(&mut self, work: impl FnOnce(&mut PowerSgd) -> R) -> R {
        match &mut self.codes {
            Codes::PowerSgd(power) => work(power),
            _ => R::default(),
        }
    }

    pub(super) fn in_flight_bytes(&self) -> u64 {
        match &self.codes {
            Codes::Exact(_) => 4 * self.count() as u64,
            Codes::Coded(coded) => coded.code_bytes() as u64,
            Codes::PowerSgd(power) => power.in_flight_bytes(),
        }
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        match &self.codes {
            Codes::Exact(errors) => errors.bytes(),
            Codes::Coded(coded) => coded.own.bytes() + coded.sum.bytes(),
            Codes::PowerSgd(power) => power.kept_bytes(),
        }
    }

    pub(super) fn commit(&mut self, updates: bool) {
        match &mut self.codes {
            Codes::Exact(errors) if updates => *errors = ErrorFeedback::none(),
            Codes::Exact(errors) => errors.commit(false),
            Codes::Coded(coded) => coded.commit(updates),
            Codes::PowerSgd(power) => power.commit(updates),
        }
    }

    fn own(&self) -> &ErrorFeedback {
        match &self.codes {
            Codes::Exact(errors) => errors,
            Codes::Coded(coded) => &coded.own,
            Codes::PowerSgd(power) => &power.own,
        }
    }

    /// The elements of the slice whose sum this rank codes, where what that leaves out is kept.
    fn slice(&self) -> Option<Range<usize>> {
        match &self.codes {
            Codes::Coded(coded) if !coded.sum.is_none() => {
                let slice = coded.place(self.rank);
                Some(self.covered.start + slice.start..self.covered.start + slice.end)
            }
            _ => None,
        }
    }

    pub(super) fn state(&self, share: Range<usize>) -> ReductionState {
        let mut state = ReductionState::default();
        let mut piece = |start: usize, name: &str, values: &Arc<Vec<f32>>, count: usize| {
            let piece = Piece { name: name.to_owned(), values: values.clone(), range: 0..count };
            state.pieces.push((start, Box::new(piece) as Box<dyn FlatState>));
        };
        let mut arrays = Vec::new();
        if let Some(own) = self.own().kept() {
            arrays.extend((0..self.ranks).map(|rank| format!("{OWN}{rank}")));
            piece(self.covered.start, &format!("{OWN}{}", self.rank), own, self.count());
        }
        if let (Codes::Coded(CodedSum { sum, .. }), Some(slice)) = (&self.codes, self.slice())
            && let Some(sum) = sum.kept()
        {
            arrays.push(SUM.to_owned());
            piece(slice.start, SUM, sum, slice.len());
        }
        if let Codes::PowerSgd(power) = &self.codes
            && power.factors().next().is_some()
        {
            arrays.push(FACTOR.to_owned());
            let mut all = vec![0.0; self.elements];
            for (matrix, factor) in power.factors() {
                all[matrix.start..][..factor.len()].copy_from_slice(factor);
            }
            piece(share.start, FACTOR, &Arc::new(all[share.clone()].to_vec()), share.len());
        }
        state.arrays = arrays;
        state
    }

    /// Which elements of an array this rank continues with.
    pub(super) fn needs(&self, array: &str) -> Range<usize> {
        let is_own = |rank: &str| rank.parse::<usize>().is_ok_and(|rank| rank % self.ranks == self.rank);
        match (array, self.slice()) {
            (SUM, Some(slice)) => slice,
            // What sums have left out is a part of the whole like any other.
            (SUM, None) if self.rank == 0 => self.covered.clone(),
            (FACTOR, _) if matches!(self.codes, Codes::PowerSgd(_)) => 0..self.elements,
            _ if array.strip_prefix(OWN).is_some_and(is_own) => self.covered.clone(),
            _ => 0..0,
        }
    }

    pub(super) fn restore(&mut self, saved: &SavedState) -> Result<()> {
        if let Some(array) = saved.slots.keys().find(|array| !is_of_codes(array)) {
            return Err(foreign(array));
        }
        self.codes = (self.new)();
        let slice = self.slice();
        let has_errors = saved.slots.keys().any(|array| array.starts_with(OWN));
        let length = self.own().kept().map_or(self.count(), |own| own.len());
        let mut own = vec![0.0; length];
        for (array, values) in saved.slots.iter().filter(|(array, _)| array.starts_with(OWN)) {
            if array != SUM || slice.is_none() {
                own.iter_mut().zip(values).for_each(|(own, value)| *own += value);
            }
        }
        let own = if has_errors { ErrorFeedback::from(own) } else { self.own().clone() };
        match &mut self.codes {
            Codes::Exact(errors) => *errors = own,
            Codes::Coded(coded) => {
                coded.own = own;
                if let (Some(_), Some(values)) = (slice, saved.slots.get(SUM)) {
                    let mut values = values.clone();
                    values.resize(coded.sum.kept().map_or(0, |sum| sum.len()), 0.0);
                    coded.sum = ErrorFeedback::from(values);
                }
            }
            Codes::PowerSgd(power) => {
                power.own = own;
                if let Some(all) = saved.slots.get(FACTOR) {
                    power.set_factors(|matrix| &all[matrix.start..][..matrix.rows * matrix.columns]);
                }
            }
        }
        Ok(())
    }
}

/// A piece of an array that is saved.
struct Piece {
    name: String,
    values: Arc<Vec<f32>>,
    range: Range<usize>,
}

impl FlatState for Piece {
    fn bytes(&self) -> u64 {
        (size_of::<f32>() * self.range.len()) as u64
    }

    fn read(self: Box<Self>) -> Result<SavedState> {
        let slots = SortedMap::from([(self.name, self.values[self.range].to_vec())]);
        Ok(SavedState { slots, scalars: SortedMap::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlatLayout;

    /// Shards whose elements three ranks of a host cannot divide into equal parts, so that the last part ends behind its shard.
    #[test]
    fn with_three_ranks_on_a_host_every_element_is_saved_once() {
        let layout = FlatLayout::new([("weight".to_owned(), vec![10, 70])]);
        let (shards, within, hosts) = (2, 3, 2);
        let mut saved: SortedMap<String, Vec<Range<usize>>> = SortedMap::new();
        for shard in 0..shards {
            let own = layout.shard(shard, shards);
            let unit = ReducedUnit {
                name: "block".to_owned(),
                parameters: layout.params().to_vec(),
                elements: layout.padded_len(shards),
                own: own.clone(),
                is_updated: true,
                served: Vec::new(),
            };
            let part = own.len().div_ceil(within);
            assert!(part * within > own.len(), "parts of a shard have the same length");
            for rank in 0..within {
                let covered = own.start + rank * part..own.start + (rank + 1) * part;
                for host in 0..hosts {
                    let compression = Compression { method: Method::OneBit, ..Compression::default() };
                    let codes = UnitCodes::new(compression, &unit, covered.clone(), (host, hosts), true, 0);
                    for (start, piece) in codes.state(0..0).pieces {
                        for (array, values) in piece.read().expect("a piece is in memory").slots {
                            saved.entry(array).or_default().push(start..start + values.len());
                        }
                    }
                }
            }
        }
        assert_eq!(saved.len(), hosts + 1, "{saved:?}");
        for (array, mut ranges) in saved {
            ranges.retain(|range| !range.is_empty());
            ranges.sort_by_key(|range| range.start);
            let mut end = 0;
            for range in ranges {
                assert_eq!(range.start, end, "{array}");
                end = range.end;
            }
            assert_eq!(end, layout.len(), "{array}");
        }
    }
}
