//! Running state: what forward passes in training change beside the optimizer, such as the mean and the variance of a batch norm.
//!
//! Micro-batches run on several ranks at once, so no rank has seen all of them when its forward updates the state. The update is
//! therefore taken apart. A forward that changes a state `s` to `factor · s + term`, where the term depends on the micro-batch and
//! not on `s`, finds zeros for `s` and leaves the term. They are negative zeros, which an update does not leave, so that a forward that updates nothing is seen. After the step the ranks exchange their terms, which are small, and each of
//! them applies all in the order of the global batch. So the state has the same bits on any mesh, recomputation does not apply a
//! micro-batch twice, and a step that is skipped leaves no trace.
//!
//! The factor, which must not change from step to step, is found by running a block several times in the first step. This shows, too, whether its state has such an update
//! at all, and whether its output leaves the state aside; a block for which one is not so is refused by name. In these runs a block is alone: no layer
//! computes over ranks, so that one rank may need more of them than another.

mod probe;

use brigade_kernels::cast;
use brigade_sorted::SortedMap;
use burn::tensor::{Bool, DType, Device, FloatDType, Tensor, TensorData};

use crate::dist::{Collectives, DATA, Mesh};
use crate::error::{Error, Result};
use crate::model::Dtype;
use crate::model::activation::Parts;
use crate::model::block::NamedBlock;
use crate::model::parameters::NewValue;
use crate::sharding::layout::FlatLayout;
use crate::sharding::store::ParameterStore;
use crate::sharding::unit::Unit;
use crate::sharding::zero::Zero;
use probe::Learned;

pub(crate) use probe::Probe;

/// What a micro-batch adds to running state, by unit.
pub(crate) type Terms = SortedMap<usize, Tensor<1>>;

/// How forward passes change the running state of the blocks of this rank.
#[derive(Default)]
pub(crate) struct RunningState {
    /// Of each unit of running state, once its block has run.
    updates: SortedMap<usize, UnitUpdate>,
}

/// Of how many micro-batches a block may leave its state as it is before it is taken to do so always.
const MAX_TRIES: usize = 8;

/// Further than this, two factors are not the same one, rounded.
const SAME_FACTOR: f32 = 1e-5;

/// How forward passes change a unit of running state.
struct UnitUpdate {
    /// Of how many micro-batches it was learned.
    tries: usize,
    /// The factor of each element; none for those that stay as they are (those of a frozen batch norm).
    factors: Vec<Option<f32>>,
    /// The elements whose terms the ranks compute together, as those of a [`SyncBatchNorm`](crate::nn::SyncBatchNorm): all ranks then have
    /// the same term for the micro-batches that they run at the same time, and it is applied once.
    together: Vec<bool>,
    /// What a forward finds in training: zeros, and the values of the elements that stay.
    found: Tensor<1>,
}

impl Learned {
    /// The part of each of these units, which it was learned of.
    fn of_units(self, units: &[usize], store: &ParameterStore) -> Vec<(usize, UnitUpdate)> {
        let mut at = 0;
        let part = |unit: &usize| {
            let range = at..at + store.units[*unit].unit.layout.len();
            at = range.end;
            let update = UnitUpdate {
                tries: 1,
                factors: self.factors[range.clone()].to_vec(),
                together: self.together[range.clone()].to_vec(),
                found: from_vec(self.found[range].to_vec(), &store.device),
            };
            (*unit, update)
        };
        units.iter().map(part).collect()
    }
}

impl RunningState {
    /// Forgets all factors: values were replaced from outside.
    pub(crate) fn clear(&mut self) {
        self.updates.clear();
    }

    /// Gives a block what its forward is to find in training. The first time, it learns how the block updates its state, with
    /// `run`, which runs a copy of the block in fp32 on an input that it may really get: in bf16, a factor of 0.99 is rounded to 0.9883, and a mean that is updated with that converges to
    /// six sevenths of what it should be.
    pub(crate) fn prepare(
        &mut self,
        index: usize,
        block: &mut NamedBlock,
        store: &ParameterStore,
        mut run: impl FnMut(&NamedBlock) -> Result<Parts>,
    ) -> Result<()> {
        let units = &store.running[index];
        let is_learned = |unit: &usize| match self.updates.get(unit) {
            Some(update) => update.tries >= MAX_TRIES || update.factors.iter().all(Option::is_some),
            None => false,
        };
        if !units.iter().all(is_learned) {
            let layouts: Vec<_> = units.iter().map(|unit| &store.units[*unit].unit.layout).collect();
            let mut start = Vec::new();
            for unit in units {
                start.extend(to_vec(store.own_values(*unit)?)?);
            }
            let over_ranks = store.groups.data.size() > 1;
            let learned = Probe::of(block, layouts, None, over_ranks, &mut run).learn(&start)?;
            for (unit, learned) in learned.into_iter().flat_map(|learned| learned.of_units(units, store)) {
                match self.updates.get_mut(&unit) {
                    Some(update) => update.learn_more(learned)?,
                    None => drop(self.updates.insert(unit, learned)),
                }
            }
        }
        bind(block, store, units, |unit| match self.updates.get(&unit) {
            Some(update) => Ok(update.found.clone()),
            None => store.own_values(unit),
        })
    }

    /// What a training forward has left in a block that was [prepared](Self::prepare).
    pub(crate) fn terms(&self, index: usize, block: &NamedBlock, store: &ParameterStore) -> Terms {
        let left = block.block.running_values();
        let of = |unit: &usize| {
            let layout = &store.units[*unit].unit.layout;
            let value =
                |path: &String| Some((path.clone(), cast(left.get(path)?.flat.clone(), FloatDType::F32)));
            let values = layout.params().iter().filter_map(|param| value(&param.path)).collect();
            let left = layout.pack(values, layout.len(), &store.device);
            let dtype = compute(&store.units[*unit].unit, store).dtype();
            let term = match self.updates.get(unit) {
                Some(update) => update.term(left, dtype),
                // This micro-batch could not tell terms from state.
                None => from_vec(vec![UNKNOWN; layout.len()], &store.device),
            };
            (*unit, term)
        };
        store.running[index].iter().map(of).collect()
    }

    /// Applies the terms of all ranks' micro-batches since the last update, this rank's being `terms`. All ranks that run other
    /// micro-batches call it together.
    ///
    /// # Errors
    /// If micro-batches change state in different ways.
    pub(crate) fn apply(&mut self, terms: &[Terms], store: &mut ParameterStore) -> Result<()> {
        let units: Vec<usize> = store.running.iter().flatten().copied().collect();
        let (Some(_), count) = (units.first(), terms.len()) else { return Ok(()) };
        let unlearned = |name: &str, which: &str| {
            Error::Model(format!(
                "`{name}` cannot be updated: in {which} it was not finite, or too large to separate from its factor"
            ))
        };
        if let Some(unit) = units.iter().find(|unit| !self.updates.contains_key(unit)) {
            let unit = &store.units[*unit].unit;
            let names = unit.layout.params().iter().map(|param| unit.full_name(&param.path));
            let names = names.collect::<Vec<_>>().join("`, `");
            return Err(unlearned(&names, "every micro-batch of this rank"));
        }
        // A rank sends the terms of its micro-batches, and the factors that it has found.
        let own = terms.iter().flat_map(|terms| units.iter().filter_map(|unit| terms.get(unit).cloned()));
        let factors = units.iter().flat_map(|unit| &self.updates[unit].factors);
        let factors: Vec<f32> = factors.map(|factor| factor.unwrap_or(f32::NAN)).collect();
        let each = factors.len();
        let own = own.chain([from_vec(factors, &store.device)]);
        let all = gathered(Tensor::cat(own.collect(), 0), &*store.groups.data)?;
        let of_rank = (count + 1) * each;
        let (mesh, rank) = (store.groups.mesh(), store.groups.world.rank());
        let in_order = order(mesh, rank, &store.zero, count);
        let mut start = 0;
        for unit in units {
            let update = self.updates.get_mut(&unit).ok_or_else(|| Error::Model("a unit is gone".into()))?;
            let layout = &store.units[unit].unit.layout;
            let refused = |path: &str| {
                Err(Error::Model(format!(
                    "`{}` is running state that micro-batches change in different ways; what can be merged is state that every \
                     forward which changes it changes from s to factor · s + term, with the same factor",
                    store.units[unit].unit.full_name(path)
                )))
            };
            let mut values = to_vec(store.own_values(unit)?)?;
            let found_by = |at: usize, index: usize| all[at * of_rank + count * each + start + index];
            let factors = match update.merged(all.len() / of_rank, found_by) {
                Ok(factors) => factors,
                Err(element) => return refused(layout.path_of(element)),
            };
            for position in &in_order {
                let (at, micro_batch) = (position / count, position % count);
                let terms = &all[at * of_rank + micro_batch * each + start..][..factors.len()];
                // What ranks compute together is taken from the first of them.
                let is_unknown = |(index, term): (usize, &f32)| {
                    term.to_bits() == UNKNOWN.to_bits() && !(at > 0 && update.together[index])
                };
                if let Some(element) = terms.iter().enumerate().position(is_unknown) {
                    let name = store.units[unit].unit.full_name(layout.path_of(element));
                    return Err(unlearned(&name, "a micro-batch"));
                }
                for param in layout.params() {
                    let range = param.range.clone();
                    let is_untouched = |index: usize| terms[index].to_bits() == NOTHING.to_bits();
                    if range.clone().all(is_untouched) {
                        continue;
                    }
                    for index in range {
                        match factors[index] {
                            _ if at > 0 && update.together[index] => {}
                            Some(factor) if !found_by(at, index).is_nan() => {
                                values[index] = factor * values[index] + terms[index];
                            }
                            _ if is_untouched(index) => {}
                            _ => return refused(&param.path),
                        }
                    }
                }
            }
            start += factors.len();
            update.take(factors)?;
            let values = from_vec(values, &store.device);
            store.set_running(unit, values);
        }
        Ok(())
    }
}

/// What a forward finds that is to leave its term, and leaves if it has none.
const NOTHING: f32 = -0.0;

/// Stands for the terms of a micro-batch before the factors are known: no value that a computation gives.
const UNKNOWN: f32 = f32::from_bits(0x7fc0_b12d);

impl UnitUpdate {
    /// Takes what another micro-batch says of elements that stayed until now.
    fn learn_more(&mut self, other: Self) -> Result<()> {
        self.tries += 1;
        let is_new = |index: &usize| self.factors[*index].is_none() && other.factors[*index].is_some();
        let new: Vec<usize> = (0..self.factors.len()).filter(is_new).collect();
        for index in &new {
            (self.factors[*index], self.together[*index]) = (other.factors[*index], other.together[*index]);
        }
        self.find_nothing(&new)
    }

    /// The factors of all ranks, of which `found_by` says what each found, or the element that two found different ones of.
    fn merged(
        &self,
        ranks: usize,
        found_by: impl Fn(usize, usize) -> f32,
    ) -> std::result::Result<Vec<Option<f32>>, usize> {
        let of = |index: usize| {
            let mut found = (0..ranks).map(|at| found_by(at, index)).filter(|factor| !factor.is_nan());
            let first = found.next();
            let is_same =
                |other: f32| first.is_none_or(|first| (other - first).abs() <= SAME_FACTOR * first.abs());
            if found.all(is_same) { Ok(first) } else { Err(index) }
        };
        (0..self.factors.len()).map(of).collect()
    }

    /// Takes the factors that other ranks have found, too.
    fn take(&mut self, factors: Vec<Option<f32>>) -> Result<()> {
        let is_new = |index: &usize| self.factors[*index].is_none() && factors[*index].is_some();
        let new: Vec<usize> = (0..factors.len()).filter(is_new).collect();
        self.factors = factors;
        self.find_nothing(&new)
    }

    /// Lets a forward find [`NOTHING`] for these elements.
    fn find_nothing(&mut self, elements: &[usize]) -> Result<()> {
        if !elements.is_empty() {
            let device = self.found.device();
            let mut found = to_vec(self.found.clone())?;
            elements.iter().for_each(|index| found[*index] = NOTHING);
            self.found = from_vec(found, &device);
        }
        Ok(())
    }

    /// What a forward has left, as a term: [`NOTHING`] of elements that stay, and no number of those that did not.
    fn term(&self, left: Tensor<1>, dtype: FloatDType) -> Tensor<1> {
        if self.factors.iter().all(Option::is_some) {
            return left;
        }
        let stays: Vec<bool> = self.factors.iter().map(Option::is_none).collect();
        let stays = Tensor::<1, Bool>::from_data(TensorData::from(&stays[..]), &left.device());
        let found = cast(cast(self.found.clone(), dtype), FloatDType::F32);
        let is_same = left.clone().equal(found);
        let term = left.mask_fill(stays.clone().bool_and(is_same.clone()), NOTHING);
        term.mask_fill(stays.bool_and(is_same.bool_not()), f32::NAN)
    }
}

/// Gives a block the running state of the store.
pub(crate) fn bind_running(index: usize, block: &mut NamedBlock, store: &ParameterStore) -> Result<()> {
    bind(block, store, &store.running[index], |unit| store.own_values(unit))
}

fn bind(
    block: &mut NamedBlock,
    store: &ParameterStore,
    units: &[usize],
    mut values: impl FnMut(usize) -> Result<Tensor<1>>,
) -> Result<()> {
    let mut bound = Vec::new();
    for unit in units {
        let (flat, unit) = (values(*unit)?, &store.units[*unit].unit);
        bound.push((&unit.layout, cast(flat, compute(unit, store).dtype())));
    }
    set_running(block, &bound);
    Ok(())
}

/// Gives a block running state, packed as these layouts say.
fn set_running(block: &mut NamedBlock, values: &[(&FlatLayout, Tensor<1>)]) {
    let mut new: SortedMap<&str, NewValue> = SortedMap::new();
    for (layout, flat) in values {
        for param in layout.params() {
            new.insert(&param.path, (layout.view(flat, param), param.shape.clone()));
        }
    }
    if !new.is_empty() {
        block.block.set_running(&mut |path| new.remove(path));
    }
}

/// The number type in which a block has its running state.
fn compute(unit: &Unit, store: &ParameterStore) -> Dtype {
    if unit.keep_in_f32 { Dtype::F32 } else { store.precision.compute }
}

/// The places of the micro-batches of all ranks, as they are gathered, in the order of the global batch.
fn order(mesh: &Mesh, rank: usize, zero: &Zero, count: usize) -> Vec<usize> {
    let members = mesh.members(rank, &DATA);
    let places = members.iter().enumerate().flat_map(|(at, member)| {
        (0..count).map(move |k| (zero.micro_batch_number(mesh, *member, k, count), at * count + k))
    });
    places.collect::<SortedMap<_, _>>().into_values().collect()
}

fn gathered(own: Tensor<1>, ranks: &dyn Collectives) -> Result<Vec<f32>> {
    to_vec(if ranks.size() > 1 { ranks.all_gather(own).wait()? } else { own })
}

fn to_vec(values: Tensor<1>) -> Result<Vec<f32>> {
    values.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))
}

fn from_vec(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (device, DType::F32))
}
