//! The parameters of one rank: whole, or sharded and gathered when they are used.

use std::ops::Range;

use brigade_kernels::cast;
use brigade_plan::CHUNK;
use brigade_sorted::SortedSet;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::dist::Pending;
use crate::error::{Error, Result};
use crate::metrics::Bytes;
use crate::metrics::Clock;
use crate::model::activation::Part;
use crate::model::chain::ties::Shared;
use crate::model::{Dtype, Precision};
use crate::sharding::ParallelGroups;
use crate::sharding::served::SeparateWorlds;
use crate::sharding::unit::Unit;
use crate::sharding::whole_buffer::WholeBuffer;
use crate::sharding::zero::Zero;

/// One unit on this rank.
pub(crate) struct StoredUnit {
    pub unit: Unit,
    /// Elements of the whole buffer, padded so that shards are equal.
    pub length: usize,
    /// The elements that this rank reduces, steps and keeps.
    pub own: Range<usize>,
    /// Those of them that it alone counts and saves: the ranks that have the same elements divide them among themselves.
    pub counted: Range<usize>,
    /// Whether this rank's stage owns the unit; where it does not, another stage does, and this one only reads it.
    pub is_owned: bool,
    /// The own elements, where the whole buffer does not hold them: in fp32 where they are stepped here.
    pub(super) own_values: Option<Tensor<1>>,
    pub(super) whole: WholeBuffer,
}

impl StoredUnit {
    /// Whether the own elements are updated here.
    pub(crate) fn is_updated(&self) -> bool {
        self.is_owned && self.unit.trainable && !self.own.is_empty()
    }

    /// Whether training changes it, here or elsewhere.
    pub(crate) fn changes(&self) -> bool {
        self.unit.trainable || self.unit.running
    }
}

/// All units that this rank's blocks read.
pub(crate) struct ParameterStore {
    pub units: Vec<StoredUnit>,
    /// For each block of the model, the pipeline rank that holds it.
    pub holders: Vec<usize>,
    /// The model's shared parameters.
    pub shared: Vec<Shared>,
    /// For each block of the model, the units that it reads here, but for running state; empty for blocks of other ranks.
    pub by_block: Vec<Vec<usize>>,
    /// For each block of the model, its running state here.
    pub running: Vec<Vec<usize>>,
    pub groups: ParallelGroups,
    pub zero: Zero,
    pub precision: Precision,
    pub device: Device,
    /// Where own values are kept and stepped, if not on the device.
    pub offload: Option<Device>,
    /// How many ranks are servers: the last ones of those that hold the same blocks.
    pub servers: usize,
    /// Where they are a world of their own.
    pub separate: Option<SeparateWorlds>,
    /// For each block of the model, whether its parameters are views of buffers that are there. A graph knows its
    /// parameters, so a block whose graph is kept must not be given others.
    pub bound: Vec<bool>,
    pub bytes: Bytes,
}

impl ParameterStore {
    /// The parameters that a block before `cut` owns, and that one behind it reads.
    pub(crate) fn shared_across(&self, cut: usize) -> impl DoubleEndedIterator<Item = &Shared> {
        self.shared.iter().filter(move |shared| shared.owner < cut && shared.last_reader >= cut)
    }

    /// The pipeline rank that holds a block.
    pub(crate) fn stage_of(&self, block: usize) -> usize {
        self.holders[block]
    }

    /// Whether units are split into shards.
    pub(crate) fn is_sharded(&self) -> bool {
        self.groups.shard.size() > 1
    }

    /// Whether a unit is split into shards.
    pub(crate) fn shards(&self, unit: &Unit) -> bool {
        self.is_sharded() && !unit.running
    }

    /// Whether a unit is whole only while it is used.
    fn unshards(&self, unit: &Unit) -> bool {
        self.unshards_on_use() && !unit.running
    }

    /// Whether parameters are whole only while they are used.
    pub(crate) fn unshards_on_use(&self) -> bool {
        self.zero.shards_parameters() && self.is_sharded()
    }

    /// Whether a gathered buffer can be freed while graphs still view it. If not, any graph that is kept keeps it alive.
    pub(crate) fn reshards_under_graphs(&self) -> bool {
        self.units.iter().all(|stored| stored.whole.is_in_place())
    }

    /// Where own elements are updated: on the device, or on the one that they are offloaded to.
    pub(crate) fn update_device(&self) -> &Device {
        self.offload.as_ref().unwrap_or(&self.device)
    }

    /// Has the device begin what it was given, where that is collected first; it does not wait for it.
    pub(crate) fn flush(&self) -> Result<()> {
        self.device.flush().map_err(|error| Error::Device(error.to_string()))
    }

    /// The elements of a unit that it is [added](Self::add) with: where parameters are whole only while they are used, those that this rank keeps, padding
    /// among them, and else all.
    pub(crate) fn kept(&self, unit: &Unit) -> Range<usize> {
        match self.unshards(unit) {
            true => unit.layout.shard(self.groups.shard.rank(), self.groups.shard.size()),
            false => 0..unit.layout.len(),
        }
    }

    /// Adds a unit with those of its values (fp32) that are [kept](Self::kept). `is_owned`: whether by this stage, not by another one.
    pub(crate) fn add(&mut self, unit: Unit, values: Tensor<1>, is_owned: bool) -> Result<()> {
        let (rank, ranks) = (self.groups.shard.rank(), self.groups.shard.size());
        let (length, own) = match () {
            () if self.is_served(&unit) => {
                let own = self.server().map_or(0..0, |server| unit.layout.shard(server, self.servers));
                (unit.layout.padded_len(self.servers), own)
            }
            () if self.shards(&unit) => (unit.layout.padded_len(ranks), unit.layout.shard(rank, ranks)),
            () => (unit.layout.len(), 0..unit.layout.len()),
        };
        let is_updated = is_owned && unit.trainable && !own.is_empty();
        let counted = match () {
            () if self.is_served(&unit) => own.clone(),
            () if unit.running => part(&own, self.groups.data.rank(), self.groups.data.size()),
            () => part(&own, self.groups.replicate.rank(), self.groups.replicate.size()),
        };
        let compute = self.compute(&unit).dtype();
        let to_own = |values: Tensor<1>| match (is_updated, &self.offload) {
            (true, Some(host)) => values.to_device(host),
            (true, None) => values,
            (false, _) => cast(values, compute),
        };
        let (own_values, whole) = if self.unshards(&unit) {
            let whole = match self.groups.shard.unsharded_buffer(own.len(), compute, &self.device) {
                Some(buffer) => WholeBuffer::Resharded(buffer),
                None => WholeBuffer::Absent,
            };
            (Some(to_own(values)), whole)
        } else {
            let missing = length - unit.layout.len();
            let padding = || Tensor::zeros([missing], (&self.device, DType::F32));
            let values = if missing > 0 { Tensor::cat(vec![values, padding()], 0) } else { values };
            let is_other = compute != FloatDType::F32 || self.offload.is_some() || self.is_served(&unit);
            let apart = is_updated && is_other || is_owned && self.gather_codec(&unit).is_some();
            let own_values = apart.then(|| compact(values.clone().slice(own.clone()))).transpose()?;
            (own_values.map(to_own), WholeBuffer::Whole(self.as_gathered(&unit, cast(values, compute))?))
        };
        let readers = if unit.running { &mut self.running } else { &mut self.by_block };
        for user in unit.users.iter().filter(|user| self.holders[user.block] == self.groups.pp.rank()) {
            readers[user.block].push(self.units.len());
        }
        self.units.push(StoredUnit { unit, length, own, counted, is_owned, own_values, whole });
        self.count();
        Ok(())
    }

    /// Replaces running state.
    pub(crate) fn set_running(&mut self, unit: usize, values: Tensor<1>) {
        self.units[unit].whole = WholeBuffer::Whole(values);
    }

    /// The own elements of a unit: in fp32 where it is stepped here.
    pub(crate) fn own_values(&self, unit: usize) -> Result<Tensor<1>> {
        let stored = &self.units[unit];
        match (&stored.own_values, &stored.whole) {
            (Some(values), _) => Ok(values.clone()),
            (None, WholeBuffer::Whole(whole)) => Ok(whole.clone().slice(stored.own.clone())),
            _ => Err(Error::Model(format!("the parameters of `{}` are missing", stored.unit.name))),
        }
    }

    /// The type of a unit in forward and backward.
    pub(crate) fn compute(&self, unit: &Unit) -> Dtype {
        if unit.keep_in_f32 || unit.running { Dtype::F32 } else { self.precision.compute }
    }

    /// New own elements of a unit as the blocks' device and type need them.
    pub(crate) fn to_compute(&self, unit: usize, values: Tensor<1>) -> Tensor<1> {
        cast(values.to_device(&self.device), self.compute(&self.units[unit].unit).dtype())
    }

    /// Replaces the own elements after a step, and starts to make the whole buffer of them where it is kept.
    pub(crate) fn set_own_values(&mut self, unit: usize, values: Tensor<1>) {
        if self.units[unit].own_values.is_some() {
            self.units[unit].own_values = Some(values.clone());
        }
        if self.is_served(&self.units[unit].unit) {
            self.gather_served(unit);
        } else if !self.unshards_on_use() {
            let is_whole = !self.is_sharded() && self.gather_codec(&self.units[unit].unit).is_none();
            let values = self.to_compute(unit, values);
            self.units[unit].whole = match is_whole {
                true => WholeBuffer::Whole(values),
                false => WholeBuffer::Gathering(self.gather(unit, values)),
            };
        }
    }

    /// Takes saved values, without padding: of the own elements where parameters are gathered for use, else of all.
    pub(crate) fn restore_values(&mut self, unit: usize, values: Vec<f32>) -> Result<()> {
        let gathers = self.unshards(&self.units[unit].unit);
        let device = if self.units[unit].is_updated() { self.update_device() } else { &self.device }.clone();
        let compute = self.compute(&self.units[unit].unit).dtype();
        let stored = &mut self.units[unit];
        let mut values = values;
        values.resize(if gathers { stored.own.len() } else { stored.length }, 0.0);
        let own = if gathers { 0..stored.own.len() } else { stored.own.clone() };
        let length = values.len();
        let values = Tensor::from_data(TensorData::new(values, [length]), (&device, DType::F32));
        if stored.own_values.is_some() {
            let own = if own.len() == length { values.clone() } else { compact(values.clone().slice(own))? };
            stored.own_values = Some(if stored.is_updated() { own } else { cast(own, compute) });
        }
        match gathers {
            true => stored.whole.reshard()?,
            false => {
                let whole = cast(values.to_device(&self.device), compute);
                let whole = self.as_gathered(&self.units[unit].unit, whole)?;
                self.units[unit].whole = WholeBuffer::Whole(whole);
            }
        }
        self.count();
        Ok(())
    }

    /// Starts to send new own elements to the stages that read a unit without stepping it.
    pub(crate) fn send_tied_weights(&self, unit: usize, values: &Tensor<1>) -> Vec<Pending<()>> {
        let users = self.units[unit].unit.users.iter().map(|user| self.holders[user.block]);
        let readers: SortedSet<usize> = users.filter(|stage| *stage != self.groups.pp.rank()).collect();
        let send = |reader: usize| {
            let flat = self.to_compute(unit, values.clone());
            let shape = vec![flat.dims()[0]];
            self.groups.pp.send(vec![Some(Part::Float(flat, shape))], reader)
        };
        readers.into_iter().map(send).collect()
    }

    /// Receives the new own elements of the units of a kind that other stages step.
    pub(crate) fn receive_tied_weights(
        &mut self,
        is_of: &dyn Fn(&Unit) -> bool,
        clock: &mut Clock,
    ) -> Result<()> {
        for unit in 0..self.units.len() {
            let stored = &self.units[unit];
            if stored.is_owned || !stored.unit.trainable || !is_of(&stored.unit) {
                continue;
            }
            let pending = self.groups.pp.receive(self.stage_of(stored.unit.owner_block), &self.device);
            match clock.waiting("pipeline", || pending.wait())?.pop() {
                Some(Some(Part::Float(flat, _))) if flat.dims()[0] == stored.own.len() => {
                    self.set_own_values(unit, flat);
                }
                _ => {
                    let name = &stored.unit.name;
                    return Err(Error::Model(format!(
                        "a stage sent something other than the values of `{name}`"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A unit's whole values without padding, gathered from all ranks of the stage.
    pub(crate) fn whole_values(&self, unit: usize) -> Result<Tensor<1>> {
        let stored = &self.units[unit];
        if self.is_served(&stored.unit) {
            let own = stored.own_values.clone().map(|own| own.to_device(&self.device));
            let whole = self.all_gather_served(unit, own, FloatDType::F32).wait()?;
            return Ok(whole.slice(0..stored.unit.layout.len()));
        }
        self.whole_of(unit, self.own_values(unit)?)
    }

    /// The same of other values of the own elements.
    pub(crate) fn whole_of(&self, unit: usize, own: Tensor<1>) -> Result<Tensor<1>> {
        let (stored, own) = (&self.units[unit], own.to_device(&self.device));
        let whole = if self.shards(&stored.unit) { self.groups.shard.all_gather(own).wait()? } else { own };
        Ok(whole.slice(0..stored.unit.layout.len()))
    }

    /// Counts the bytes that are held.
    pub(super) fn count(&mut self) {
        let unit = |stored: &StoredUnit| {
            let size = self.compute(&stored.unit).bytes();
            let own_size = if stored.is_updated() { 4 } else { size };
            let own = stored.own_values.as_ref().map_or(0, |_| stored.own.len() * own_size);
            let whole = if stored.whole.takes_memory() { stored.length * size } else { 0 };
            (own + whole) as u64
        };
        self.bytes.set(self.units.iter().map(unit).sum::<u64>());
    }
}

/// One of `parts` equal parts of a range, in whole chunks; the last ones may be shorter, or empty.
fn part(range: &Range<usize>, index: usize, parts: usize) -> Range<usize> {
    let each = range.len().next_multiple_of(CHUNK * parts) / parts;
    let at = |index: usize| (range.start + index * each).min(range.end);
    at(index)..at(index + 1)
}

/// The same values in memory of their own, of their size.
pub(crate) fn compact(tensor: Tensor<1>) -> Result<Tensor<1>> {
    let (device, dtype) = (tensor.device(), tensor.dtype());
    let shared = tensor.clone();
    let data = tensor.try_into_data().map_err(|error| Error::Device(error.to_string()))?;
    drop(shared);
    Ok(Tensor::from_data(data, (&device, dtype)))
}
