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

use std::collections::BTreeMap;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::dist::{Collectives, DATA, Mesh};
use crate::error::{Error, Result};
use crate::model::Float;
use crate::model::activation::{Part, Parts};
use crate::model::block::NamedBlock;
use crate::model::parameters::NewValue;
use crate::nn::leaving_running_state;
use crate::sharding::store::{ParameterStore, cast};
use crate::sharding::unit::Unit;
use crate::sharding::zero::Zero;

/// What a micro-batch adds to running state, by unit.
pub(crate) type Terms = BTreeMap<usize, Tensor<1>>;

/// How forward passes change the running state of the blocks of this rank.
#[derive(Default)]
pub(crate) struct RunningState {
    /// Of each unit of running state, once its block has run.
    updates: BTreeMap<usize, UnitUpdate>,
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

/// A value that makes any term vanish beside its product with a factor, and divides that product without rounding.
const LARGE: f32 = (1u64 << 60) as f32;

/// Terms from here on would not vanish beside such a product.
const LARGEST_TERM: f32 = (1u64 << 30) as f32;

impl RunningState {
    /// Forgets all factors: values were replaced from outside.
    pub(crate) fn clear(&mut self) {
        self.updates.clear();
    }

    /// Gives a block what its forward is to find in training. The first time, it learns how the block updates its state, with
    /// `run`, which runs the block on an input that it may really get.
    pub(crate) fn prepare(
        &mut self,
        index: usize,
        block: &mut NamedBlock,
        store: &ParameterStore,
        mut run: impl FnMut(&NamedBlock) -> Result<Parts>,
    ) -> Result<()> {
        let units = &store.running[index];
        if units.iter().any(|unit| !self.updates.contains_key(unit)) {
            let found = Probe { block: &mut *block, store, units, run: &mut run }.learn()?;
            self.updates.extend(found);
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
    let mut new: BTreeMap<&str, NewValue> = BTreeMap::new();
    for index in units {
        let (unit, flat) = (&store.units[*index].unit, values(*index)?);
        let flat = cast(flat, compute(unit, store).dtype());
        for param in unit.layout.params() {
            new.insert(&param.path, (unit.layout.view(&flat, param), param.shape.clone()));
        }
    }
    if !new.is_empty() {
        block.block.set_running(&mut |path| new.remove(path));
    }
    Ok(())
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
    places.collect::<BTreeMap<_, _>>().into_values().collect()
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

/// Runs a block with several values of its running state.
struct Probe<'a> {
    block: &'a mut NamedBlock,
    store: &'a ParameterStore,
    units: &'a [usize],
    run: &'a mut dyn FnMut(&NamedBlock) -> Result<Parts>,
}

/// The elements of all units, one after the other.
type Values = Vec<f32>;

impl Probe<'_> {
    /// How the block updates each of its units; nothing if this micro-batch cannot tell, because its values are not finite or too
    /// large.
    fn learn(&mut self) -> Result<Vec<(usize, UnitUpdate)>> {
        let mut start = Values::new();
        for unit in self.units {
            start.extend(to_vec(cast(
                self.store.own_values(*unit)?,
                compute(&self.store.units[*unit].unit, self.store).dtype(),
            ))?);
        }
        let (output, after) = self.run_with(&start)?;
        let mut stays: Vec<bool> =
            start.iter().zip(&after).map(|(s, a)| s.to_bits() == a.to_bits()).collect();
        if stays.contains(&true) {
            // What a forward leaves as it is, it leaves as it is from another value, too.
            let other: Values = start
                .iter()
                .zip(&stays)
                .map(|(s, stays)| {
                    if !*stays {
                        *s
                    } else if *s == 0.0 {
                        1.0
                    } else {
                        2.0 * s
                    }
                })
                .collect();
            let (_, after) = self.run_with(&other)?;
            stays
                .iter_mut()
                .enumerate()
                .for_each(|(i, stays)| *stays &= other[i].to_bits() == after[i].to_bits());
        }
        let with = |value: f32| -> Values {
            start.iter().zip(&stays).map(|(s, stays)| if *stays { *s } else { value }).collect()
        };
        let (zeros, ones, large) = (with(0.0), with(1.0), with(LARGE));
        let (output_of_zeros, terms) = self.run_with(&zeros)?;
        let (output_of_ones, after_ones) = self.run_with(&ones)?;
        let (output_of_large, products) = self.run_with(&large)?;
        let is_usable = |i: usize| stays[i] || (products[i].is_finite() && terms[i].abs() < LARGEST_TERM);
        if !(0..start.len()).all(is_usable) {
            return Ok(Vec::new());
        }
        if [&output_of_zeros, &output_of_ones, &output_of_large].into_iter().any(|other| *other != output)
            && self.is_steady(&start, &output)?
        {
            return Err(self.refused(None, "its output in training depends on it"));
        }
        let factor = |i: usize| (!stays[i]).then(|| (products[i] - terms[i]) / LARGE);
        let factors: Vec<Option<f32>> = (0..start.len()).map(factor).collect();
        let tolerance = match self.store.precision.compute {
            Float::F32 => 2f32.powi(-22),
            Float::Bf16 => 2f32.powi(-6),
        };
        // The state may begin at 0, which the term alone explains.
        let is_explained = |i: usize, before: f32, after: f32| {
            let Some(factor) = factors[i] else { return true };
            let (product, term) = (factor * before, terms[i]);
            (after - (product + term)).abs() <= tolerance * (product.abs() + term.abs())
        };
        let are_explained =
            |i: &usize| is_explained(*i, start[*i], after[*i]) && is_explained(*i, ones[*i], after_ones[*i]);
        if let Some(i) = (0..start.len()).find(|i| !are_explained(i)) {
            let what = format!(
                "a forward makes {} of {}, {} of 0, {} of 1 and {:e} of {LARGE:e}",
                after[i], start[i], terms[i], after_ones[i], products[i]
            );
            return Err(self.refused(Some(i), &what));
        }
        let mut together = vec![false; start.len()];
        if self.store.groups.data.size() > 1 {
            let (_, left) = leaving_running_state(|| self.run_with(&large))?;
            let is_left = |i: usize| left[i].to_bits() == LARGE.to_bits() && products[i] != LARGE;
            together.iter_mut().enumerate().for_each(|(i, together)| *together = !stays[i] && is_left(i));
        }
        let (mut found, mut at) = (Vec::new(), 0);
        for unit in self.units {
            let range = at..at + self.store.units[*unit].unit.layout.len();
            at = range.end;
            let update = UnitUpdate {
                factors: factors[range.clone()].to_vec(),
                together: together[range.clone()].to_vec(),
                found: from_vec(zeros[range].to_vec(), &self.store.device),
            };
            found.push((*unit, update));
        }
        Ok(found)
    }

    /// Whether the block gives the same bits again; on GPUs that is not always so.
    fn is_steady(&mut self, start: &Values, output: &[Vec<u8>]) -> Result<bool> {
        Ok(self.run_with(start)?.0 == output)
    }

    /// The output's bytes, and the running state after the forward.
    fn run_with(&mut self, values: &Values) -> Result<(Vec<Vec<u8>>, Values)> {
        let (mut at, device) = (0, self.store.device.clone());
        let layouts = |unit: usize| &self.store.units[unit].unit.layout;
        bind(self.block, self.store, self.units, |unit| {
            let range = at..at + layouts(unit).len();
            at = range.end;
            Ok(from_vec(values[range].to_vec(), &device))
        })?;
        let output = bytes((self.run)(self.block)?)?;
        let left = self.block.block.running_values();
        let mut after = Values::new();
        for param in self.units.iter().flat_map(|unit| layouts(*unit).params()) {
            match left.get(&param.path) {
                Some(value) => after.extend(to_vec(value.flat.clone())?),
                None => return Err(self.refused(None, "it is gone after a forward")),
            }
        }
        Ok((output, after))
    }

    fn refused(&self, element: Option<usize>, why: &str) -> Error {
        let params = self.units.iter().flat_map(|unit| self.store.units[*unit].unit.layout.params());
        let mut before = 0;
        let mut of_element = params.clone().filter(|param| {
            before += param.range.len();
            element.is_some_and(|element| element < before)
        });
        let names: Vec<String> = match of_element.next() {
            Some(param) => vec![format!("`{}`", param.path)],
            None => params.map(|param| format!("`{}`", param.path)).collect(),
        };
        Error::Model(format!(
            "block `{}` has running state that ranks cannot merge, {}: {why}. What can be merged is state that a forward in training changes from s to factor · s + term, with a term that comes from the micro-batch alone, and that its output does not depend on",
            self.block.name,
            names.join(", ")
        ))
    }
}

/// The bytes of an activation's tensors.
pub(crate) fn bytes(parts: Parts) -> Result<Vec<Vec<u8>>> {
    let bytes = |part: Part| {
        let data = match part {
            Part::Float(flat, _) => flat.inner().try_into_data(),
            Part::Int(flat, _) => flat.try_into_data(),
        };
        Ok(data.map_err(|error| Error::Device(error.to_string()))?.as_bytes().to_vec())
    };
    parts.0.into_iter().map(bytes).collect()
}
