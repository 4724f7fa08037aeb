//! Running state: what forward passes in training change beside the optimizer, such as the mean and the variance of a batch norm.
//!
//! Micro-batches run on several ranks at once, so no rank has seen all of them when its forward updates the state. The update is
//! therefore taken apart. A forward that changes a state `s` to `factor · s + term`, where the term depends on the micro-batch and
//! not on `s`, finds zeros for `s` and leaves the term. After the step the ranks exchange their terms, which are small, and each of
//! them applies all in the order of the global batch. So the state has the same bits on any mesh, recomputation does not apply a
//! micro-batch twice, and a step that is skipped leaves no trace.
//!
//! The factor, which must not change from step to step, is found by running a block several times in the first step. This shows, too, whether its state has such an update
//! at all, and whether its output leaves the state aside; a block for which one is not so is refused by name. In these runs a block is alone: no layer
//! computes over ranks, so that one rank may need more of them than another.

mod probe;

use brigade_sorted::SortedMap;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::dist::{Collectives, DATA, Mesh};
use crate::error::{Error, Result};
use crate::model::Float;
use crate::model::activation::Parts;
use crate::model::block::NamedBlock;
use crate::model::parameters::NewValue;
use crate::model::parameters::precision::cast;
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

/// How forward passes change a unit of running state.
struct UnitUpdate {
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
        if units.iter().any(|unit| !self.updates.contains_key(unit)) {
            let layouts: Vec<_> = units.iter().map(|unit| &store.units[*unit].unit.layout).collect();
            let mut start = Vec::new();
            for unit in units {
                start.extend(to_vec(store.own_values(*unit)?)?);
            }
            let over_ranks = store.groups.data.size() > 1;
            let learned = Probe::of(block, layouts, None, over_ranks, &mut run).learn(&start)?;
            self.updates.extend(learned.into_iter().flat_map(|learned| learned.of_units(units, store)));
        }
        bind(block, store, units, |unit| match self.updates.get(&unit) {
            Some(update) => Ok(update.found.clone()),
            None => store.own_values(unit),
        })
    }

    /// What a training forward has left in a block that was [prepared](Self::prepare).
    pub(crate) fn terms(index: usize, block: &NamedBlock, store: &ParameterStore) -> Terms {
        let left = block.block.running_values();
        let of = |unit: &usize| {
            let layout = &store.units[*unit].unit.layout;
            let value =
                |path: &String| Some((path.clone(), cast(left.get(path)?.flat.clone(), FloatDType::F32)));
            let values = layout.params().iter().filter_map(|param| value(&param.path)).collect();
            (*unit, layout.pack(values, layout.len(), &store.device))
        };
        store.running[index].iter().map(of).collect()
    }

    /// Applies the terms of all ranks' micro-batches since the last update, this rank's being `terms`. All ranks that run other
    /// micro-batches call it together.
    pub(crate) fn apply(&self, terms: &[Terms], store: &mut ParameterStore) -> Result<()> {
        let units: Vec<usize> = store.running.iter().flatten().copied().collect();
        let (Some(_), count) = (units.first(), terms.len()) else { return Ok(()) };
        if let Some(unit) = units.iter().find(|unit| !self.updates.contains_key(unit)) {
            return Err(Error::Model(format!(
                "`{}` cannot be updated: in every micro-batch of this rank it was not finite, or too large to separate from its \
                factor",
                store.units[*unit].unit.name
            )));
        }
        let own = terms.iter().flat_map(|terms| units.iter().filter_map(|unit| terms.get(unit).cloned()));
        let all = gathered(Tensor::cat(own.collect(), 0), &*store.groups.data)?;
        let each: usize = units.iter().map(|unit| self.updates[unit].factors.len()).sum();
        let (mesh, rank) = (store.groups.mesh(), store.groups.world.rank());
        let in_order = order(mesh, rank, &store.zero, count);
        let mut start = 0;
        for unit in units {
            let UnitUpdate { factors, together, .. } = &self.updates[&unit];
            let mut values = to_vec(store.own_values(unit)?)?;
            for position in &in_order {
                let is_first_rank = *position < count;
                let terms = &all[position * each + start..][..factors.len()];
                for (index, (value, term)) in values.iter_mut().zip(terms).enumerate() {
                    if let Some(factor) = factors[index]
                        && (is_first_rank || !together[index])
                    {
                        *value = factor * *value + term;
                    }
                }
            }
            start += factors.len();
            let values = from_vec(values, &store.device);
            store.set_running(unit, values);
        }
        Ok(())
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
fn compute(unit: &Unit, store: &ParameterStore) -> Float {
    if unit.keep_in_f32 { Float::F32 } else { store.precision.compute }
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
