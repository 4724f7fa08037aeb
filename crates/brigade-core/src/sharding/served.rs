//! Units that servers update: who has which elements, and how all ranks get them.

use std::ops::Range;

use burn::tensor::{DType, FloatDType, Tensor};

use crate::dist::{Pending, PendingTensor};
use crate::sharding::store::ParameterStore;
use crate::sharding::unit::Unit;
use crate::sharding::whole_buffer::WholeBuffer;

/// Where the servers of a [strategy](crate::Strategy::parameter_servers) are one world, and each worker is one of its own, of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeparateWorlds {
    /// Whether this world is that of the servers.
    pub is_server: bool,
    /// The most workers that there may be: a step has this many shares, whoever computes them.
    pub workers: usize,
}

impl ParameterStore {
    /// Ranks that are not servers; where workers are worlds of their own, the most that there may be.
    pub(crate) fn workers(&self) -> usize {
        match self.separate {
            Some(separate) => separate.workers,
            None => self.groups.data.size() - self.servers,
        }
    }

    /// The first server among the ranks that hold the same blocks.
    fn first_server(&self) -> usize {
        if self.separate.is_some() { 0 } else { self.workers() }
    }

    /// This rank's number among the servers, if it is one.
    pub(crate) fn server(&self) -> Option<usize> {
        match self.separate {
            Some(separate) if !separate.is_server => None,
            _ => self.groups.data.rank().checked_sub(self.first_server()),
        }
    }

    /// Whether servers update a unit.
    pub(crate) fn is_served(&self, unit: &Unit) -> bool {
        self.servers > 0 && unit.trainable && !unit.running
    }

    /// The elements of a unit that each server updates; none if servers do not update it.
    pub(crate) fn served(&self, unit: &Unit) -> Vec<Range<usize>> {
        let servers = if self.is_served(unit) { self.servers } else { 0 };
        (0..servers).map(|server| unit.layout.shard(server, servers)).collect()
    }

    /// Starts to give all ranks the elements that each server has of a unit: a server its `own`, a worker none. All ranks call it.
    pub(crate) fn all_gather_served(
        &self,
        unit: usize,
        own: Option<Tensor<1>>,
        dtype: FloatDType,
    ) -> PendingTensor {
        let shards = self.served(&self.units[unit].unit).into_iter().enumerate();
        let parts = shards.map(|(server, range)| {
            let values = own.clone().filter(|_| self.server() == Some(server));
            let values =
                values.unwrap_or_else(|| Tensor::zeros([range.len()], (&self.device, DType::from(dtype))));
            self.groups.data.broadcast(values, self.first_server() + server)
        });
        let parts: Vec<_> = parts.collect();
        Pending::new(move || {
            let mut parts = parts.into_iter().map(Pending::wait).collect::<Result<Vec<_>, _>>()?;
            Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Tensor::cat(parts, 0) })
        })
    }

    /// Starts to make the whole buffer of a unit from what the servers have of it. All ranks call it.
    pub(crate) fn gather_served(&mut self, unit: usize) {
        let own = self.units[unit].own_values.clone().map(|own| self.to_compute(unit, own));
        let dtype = self.compute(&self.units[unit].unit).dtype();
        self.units[unit].whole = WholeBuffer::Gathering(self.all_gather_served(unit, own, dtype));
    }

    /// Replaces this server's elements of a unit, without informing other ranks.
    pub(crate) fn set_served_values(&mut self, unit: usize, values: Tensor<1>) {
        self.units[unit].own_values = Some(values);
    }

    /// Replaces a unit's whole buffer by the shards of all servers, in their order, as they sent them.
    pub(crate) fn set_pulled(&mut self, unit: usize, mut shards: Vec<Tensor<1>>) {
        let whole = if shards.len() == 1 { shards.swap_remove(0) } else { Tensor::cat(shards, 0) };
        self.units[unit].whole = WholeBuffer::Whole(whole);
    }
}
