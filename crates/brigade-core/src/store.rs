//! The parameters of one rank: whole, or sharded and gathered where they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::activation::Part;
use crate::clock::Clock;
use crate::collectives::{Filled, Pending, PendingTensor, Refillable};
use crate::error::{Error, Result};
use crate::flat::NewValue;
use crate::groups::Groups;
use crate::memory::Bytes;
use crate::model::NamedBlock;
use crate::optimizer::{FlatOptimizer, OptimizerFactory};
use crate::optimizer_state::SavedState;
use crate::ties::Shared;
use crate::unit::Unit;
use crate::zero::{Precision, Zero};

/// One unit on this rank.
pub(crate) struct Stored {
    pub unit: Unit,
    /// Elements of the whole buffer, padded so that shards are equal.
    pub length: usize,
    /// The elements that this rank reduces, steps and keeps.
    pub own: Range<usize>,
    /// Steps the own elements; none where another stage owns the unit and this one only reads it.
    pub optimizer: Option<Box<dyn FlatOptimizer>>,
    /// The own elements, where the whole buffer does not hold them: in fp32 where they are stepped here.
    own_values: Option<Tensor<1>>,
    whole: Whole,
}

/// The whole buffer, in the type that blocks compute in.
#[expect(clippy::large_enum_variant, reason = "there is one for each unit")]
enum Whole {
    Absent,
    Arriving(PendingTensor),
    Present(Tensor<1>),
    /// A buffer that is filled and emptied in its place, under the views that blocks hold.
    Empty(Box<dyn Refillable>),
    Filling(Pending<Box<dyn Filled>>),
    Filled(Box<dyn Filled>),
}

impl Whole {
    fn is_in_place(&self) -> bool {
        matches!(self, Self::Empty(_) | Self::Filling(_) | Self::Filled(_))
    }

    /// Frees what was gathered. What is still arriving is waited for: it is written until then.
    fn free(&mut self) -> Result<()> {
        *self = match std::mem::replace(self, Self::Absent) {
            Self::Filling(pending) => Self::empty(pending.wait()?),
            Self::Filled(buffer) => Self::empty(buffer),
            Self::Empty(buffer) => Self::Empty(buffer),
            Self::Absent | Self::Arriving(_) | Self::Present(_) => Self::Absent,
        };
        Ok(())
    }

    fn empty(buffer: Box<dyn Filled>) -> Self {
        // SAFETY: only blocks and their graphs hold tensors of the buffer, and `Block` says that they are read in a block's turn
        // alone. That is on this thread, which is here.
        Self::Empty(unsafe { buffer.release() })
    }
}

/// All units that this rank's blocks read.
pub(crate) struct Store {
    pub units: Vec<Stored>,
    /// For each block of the model, the pipeline rank that holds it.
    pub holders: Vec<usize>,
    /// The model's shared parameters.
    pub shared: Vec<Shared>,
    /// For each block of the model, the units that it reads here; empty for blocks of other ranks.
    pub by_block: Vec<Vec<usize>>,
    pub groups: Groups,
    pub zero: Zero,
    pub precision: Precision,
    pub device: Device,
    /// Where own values are kept and stepped, where that is not the device.
    pub offload: Option<Device>,
    /// For each block of the model, whether its parameters are views of buffers that are there. A graph knows its
    /// parameters, so a block whose graph is kept must not be given others.
    pub handed_out: Vec<bool>,
    /// Bytes of parameters that are not trained.
    pub frozen_bytes: u64,
    pub bytes: Bytes,
}

impl Store {
    /// The parameters that a block before `cut` owns, and that one behind it reads.
    pub(crate) fn shared_across(&self, cut: usize) -> impl DoubleEndedIterator<Item = &Shared> {
        self.shared.iter().filter(move |shared| shared.owner < cut && shared.last_reader >= cut)
    }

    /// The pipeline rank that holds a block.
    pub(crate) fn stage_of(&self, block: usize) -> usize {
        self.holders[block]
    }

    /// Whether units are cut into shards, one for each data-parallel rank.
    pub(crate) fn is_sharded(&self) -> bool {
        self.zero.shards_optimizer() && self.groups.dp.size() > 1
    }

    /// Whether parameters are whole only where they are used.
    pub(crate) fn gathers(&self) -> bool {
        self.zero.shards_parameters() && self.groups.dp.size() > 1
    }

    /// Whether a gathered buffer can be freed while graphs still view it. Where it cannot, a graph
    /// that is kept keeps it alive.
    pub(crate) fn frees_under_graphs(&self) -> bool {
        self.units.iter().all(|stored| stored.whole.is_in_place())
    }

    /// Adds a unit with its whole values (fp32, not padded). `optimizer`: none where another stage owns it.
    pub(crate) fn add(
        &mut self,
        unit: Unit,
        values: Tensor<1>,
        optimizer: Option<&OptimizerFactory>,
    ) -> Result<()> {
        let (rank, ranks) = (self.groups.dp.rank(), self.groups.dp.size());
        let (length, own) = match self.is_sharded() {
            true => (unit.layout.padded_len(ranks), unit.layout.shard(rank, ranks)),
            false => (unit.layout.len(), 0..unit.layout.len()),
        };
        let compute = self.precision.compute.dtype();
        let stepped_on = self.offload.as_ref().unwrap_or(&self.device);
        let optimizer = optimizer.map(|factory| factory.build(&unit.layout, own.clone(), stepped_on));
        let padding = Tensor::zeros([length - unit.layout.len()], (&self.device, DType::F32));
        let values = if length > unit.layout.len() { Tensor::cat(vec![values, padding], 0) } else { values };
        let stepped_apart = compute != FloatDType::F32 || self.offload.is_some();
        let apart = self.gathers() || (optimizer.is_some() && stepped_apart);
        let own_values = apart.then(|| compact(values.clone().slice(own.clone()))).transpose()?;
        let own_values = match (&optimizer, &self.offload) {
            (Some(_), Some(host)) => own_values.map(|values| values.to_device(host)),
            (Some(_), None) => own_values,
            (None, _) => own_values.map(|values| cast(values, compute)),
        };
        let whole = match self.gathers() {
            false => Whole::Present(cast(values, compute)),
            true => match self.groups.dp.refillable(own.len(), compute, &self.device) {
                Some(buffer) => Whole::Empty(buffer),
                None => Whole::Absent,
            },
        };
        for user in unit.users.iter().filter(|user| self.holders[user.block] == self.groups.pp.rank()) {
            self.by_block[user.block].push(self.units.len());
        }
        self.units.push(Stored { unit, length, own, optimizer, own_values, whole });
        self.count();
        Ok(())
    }

    /// The own elements of a unit: in fp32 where it is stepped here.
    pub(crate) fn own_values(&self, unit: usize) -> Result<Tensor<1>> {
        let stored = &self.units[unit];
        match (&stored.own_values, &stored.whole) {
            (Some(values), _) => Ok(values.clone()),
            (None, Whole::Present(whole)) => Ok(whole.clone().slice(stored.own.clone())),
            _ => Err(Error::Model(format!("the parameters of `{}` are not there", stored.unit.name))),
        }
    }

    /// New own elements as the blocks' device and type need them.
    fn to_compute(&self, values: Tensor<1>) -> Tensor<1> {
        cast(values.to_device(&self.device), self.precision.compute.dtype())
    }

    /// Replaces the own elements after a step, and starts to make the whole buffer of them where it is kept.
    pub(crate) fn set_own_values(&mut self, unit: usize, values: Tensor<1>) {
        if self.units[unit].own_values.is_some() {
            self.units[unit].own_values = Some(values.clone());
        }
        if !self.gathers() {
            let (sharded, values) = (self.is_sharded(), self.to_compute(values));
            self.units[unit].whole = match sharded {
                true => Whole::Arriving(self.groups.dp.all_gather(values)),
                false => Whole::Present(values),
            };
        }
    }

    /// Takes saved values, without padding: of the own elements where parameters are gathered for use, else of all.
    pub(crate) fn restore_values(&mut self, unit: usize, values: Vec<f32>) -> Result<()> {
        let gathers = self.gathers();
        let host = self.offload.clone().unwrap_or_else(|| self.device.clone());
        let device = if self.units[unit].optimizer.is_some() { host } else { self.device.clone() };
        let (compute, stored) = (self.precision.compute.dtype(), &mut self.units[unit]);
        let mut values = values;
        values.resize(if gathers { stored.own.len() } else { stored.length }, 0.0);
        let own = if gathers { 0..stored.own.len() } else { stored.own.clone() };
        let length = values.len();
        let values = Tensor::from_data(TensorData::new(values, [length]), (&device, DType::F32));
        if stored.own_values.is_some() {
            let own = if own.len() == length { values.clone() } else { compact(values.clone().slice(own))? };
            stored.own_values = Some(if stored.optimizer.is_some() { own } else { cast(own, compute) });
        }
        match gathers {
            true => stored.whole.free()?,
            false => stored.whole = Whole::Present(cast(values.to_device(&self.device), compute)),
        }
        self.count();
        Ok(())
    }

    /// Takes an optimizer's saved state of the own elements that are no padding.
    pub(crate) fn restore_optimizer(&mut self, unit: usize, saved: &SavedState) -> Result<()> {
        let device = self.offload.clone().unwrap_or_else(|| self.device.clone());
        let stored = &mut self.units[unit];
        let restored =
            stored.optimizer.as_mut().map_or(Ok(()), |optimizer| optimizer.restore(saved, &device));
        restored.map_err(|error| Error::State(format!("`{}`: {error}", stored.unit.name)))
    }

    /// Starts to send new own elements to the stages that read a unit without stepping it.
    pub(crate) fn lend(&self, unit: usize, values: &Tensor<1>) -> Vec<Pending<()>> {
        let users = self.units[unit].unit.users.iter().map(|user| self.holders[user.block]);
        let readers: BTreeSet<usize> = users.filter(|stage| *stage != self.groups.pp.rank()).collect();
        let send = |reader: usize| {
            let flat = self.to_compute(values.clone());
            let shape = vec![flat.dims()[0]];
            self.groups.pp.send(vec![Some(Part::Float(flat, shape))], reader)
        };
        readers.into_iter().map(send).collect()
    }

    /// Receives the new own elements of the units that other stages step.
    pub(crate) fn borrow(&mut self, clock: &mut Clock) -> Result<()> {
        for unit in 0..self.units.len() {
            let stored = &self.units[unit];
            if stored.optimizer.is_some() {
                continue;
            }
            let pending = self.groups.pp.receive(self.stage_of(stored.unit.home), &self.device);
            match clock.waiting("pipeline", || pending.wait())?.pop() {
                Some(Some(Part::Float(flat, _))) if flat.dims()[0] == stored.own.len() => {
                    self.set_own_values(unit, flat);
                }
                _ => {
                    let name = &stored.unit.name;
                    return Err(Error::Model(format!(
                        "a stage sent something else than the values of `{name}`"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Starts to gather a unit.
    pub(crate) fn gather(&mut self, unit: usize) {
        let Some(own) = self.units[unit].own_values.clone().map(|values| self.to_compute(values)) else {
            return;
        };
        let whole = &mut self.units[unit].whole;
        *whole = match std::mem::replace(whole, Whole::Absent) {
            // SAFETY: only blocks and their graphs hold tensors of the buffer, and `Block` says that they are read in a block's
            // turn alone. None of a block that reads this unit begins before `settle` has waited for it.
            Whole::Empty(buffer) => Whole::Filling(unsafe { buffer.fill(own) }),
            Whole::Absent => Whole::Arriving(self.groups.dp.all_gather(own)),
            other => other,
        };
        self.count();
    }

    /// Waits until the units of a block are there.
    pub(crate) fn settle(&mut self, block: usize, clock: &mut Clock) -> Result<()> {
        for unit in &self.by_block[block] {
            let whole = &mut self.units[*unit].whole;
            match std::mem::replace(whole, Whole::Absent) {
                Whole::Arriving(pending) => {
                    *whole = Whole::Present(clock.waiting("all_gather", || pending.wait())?);
                }
                Whole::Filling(pending) => {
                    *whole = Whole::Filled(clock.waiting("all_gather", || pending.wait())?);
                }
                other => *whole = other,
            }
        }
        Ok(())
    }

    /// Frees a gathered unit.
    pub(crate) fn release(&mut self, unit: usize, blocks: &mut [NamedBlock]) -> Result<()> {
        let stored = &mut self.units[unit];
        stored.whole.free()?;
        if !stored.whole.is_in_place() {
            for user in &stored.unit.users {
                if !self.by_block[user.block].contains(&unit) {
                    continue;
                }
                self.handed_out[user.block] = false;
                let nothing = |path: &str| {
                    let (_, target) = user.params.iter().find(|(own, _)| own == path)?;
                    let param = stored.unit.layout.param(target)?;
                    Some((Tensor::empty([0], &self.device), vec![0; param.shape.len()]))
                };
                blocks[user.block].block.replace(&mut { nothing });
            }
        }
        self.count();
        Ok(())
    }

    /// Makes a block's parameters views of the flat buffers that are there.
    pub(crate) fn hand_out(&mut self, index: usize, block: &mut NamedBlock) {
        let mut values: BTreeMap<&str, NewValue> = BTreeMap::new();
        for unit in &self.by_block[index] {
            let Stored { unit, whole, .. } = &self.units[*unit];
            let whole = match whole {
                Whole::Present(tensor) => tensor.clone(),
                Whole::Empty(buffer) => buffer.tensor(),
                Whole::Filled(buffer) => buffer.tensor(),
                Whole::Absent | Whole::Arriving(_) | Whole::Filling(_) => continue,
            };
            for user in unit.users.iter().filter(|user| user.block == index) {
                for (path, target) in &user.params {
                    if let Some(param) = unit.layout.param(target) {
                        values.insert(path, (unit.layout.view(&whole, param), param.shape.clone()));
                    }
                }
            }
        }
        block.block.replace(&mut |path| values.remove(path));
        let is_there = |unit: &usize| {
            matches!(self.units[*unit].whole, Whole::Present(_) | Whole::Empty(_) | Whole::Filled(_))
        };
        self.handed_out[index] = self.by_block[index].iter().all(is_there);
    }

    /// Whether a block's parameters are emptied in their place, so that its output must not view them.
    pub(crate) fn empties_in_place(&self, block: usize) -> bool {
        self.by_block[block].iter().any(|unit| self.units[*unit].whole.is_in_place())
    }

    /// A unit's whole values without padding, gathered from all ranks of the stage.
    pub(crate) fn whole_values(&self, unit: usize) -> Result<Tensor<1>> {
        let own = self.own_values(unit)?.to_device(&self.device);
        let whole = if self.is_sharded() { self.groups.dp.all_gather(own).wait()? } else { own };
        Ok(whole.slice(0..self.units[unit].unit.layout.len()))
    }

    fn count(&mut self) {
        let size = self.precision.compute.bytes();
        let unit = |stored: &Stored| {
            let own_size = if stored.optimizer.is_some() { 4 } else { size };
            let own = stored.own_values.as_ref().map_or(0, |_| stored.own.len() * own_size);
            let whole = match stored.whole {
                Whole::Absent | Whole::Empty(_) => 0,
                _ => stored.length * size,
            };
            (own + whole) as u64
        };
        self.bytes.set(self.frozen_bytes + self.units.iter().map(unit).sum::<u64>());
    }
}

pub(crate) fn cast(tensor: Tensor<1>, dtype: FloatDType) -> Tensor<1> {
    if tensor.dtype() == dtype.into() { tensor } else { tensor.cast(dtype) }
}

/// The same values in memory of their own, of their size.
pub(crate) fn compact(tensor: Tensor<1>) -> Result<Tensor<1>> {
    let (device, dtype) = (tensor.device(), tensor.dtype());
    let shared = tensor.clone();
    let data = tensor.try_into_data().map_err(|error| Error::Device(error.to_string()))?;
    drop(shared);
    Ok(Tensor::from_data(data, (&device, dtype)))
}
