//! Parameters that are whole only while they are used: a unit is gathered, a block's parameters become views of it, and it is freed.

use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::error::Result;
use crate::metrics::Clock;
use crate::model::block::NamedBlock;
use crate::model::parameters::NewValue;
use crate::sharding::store::{ParameterStore, StoredUnit};
use crate::sharding::whole_buffer::WholeBuffer;

impl ParameterStore {
    /// Starts to gather a unit.
    pub(crate) fn unshard(&mut self, unit: usize) {
        let Some(own) = self.units[unit].own_values.clone().map(|values| self.to_compute(unit, values))
        else {
            return;
        };
        let whole = std::mem::replace(&mut self.units[unit].whole, WholeBuffer::Absent);
        self.units[unit].whole = match whole {
            // SAFETY: only blocks and their graphs hold tensors of the buffer, and `Block` says that they are read in a block's
            // turn alone. None of a block that reads this unit begins before `wait_all_gather` has waited for it.
            WholeBuffer::Resharded(buffer) => WholeBuffer::Unsharding(unsafe {
                match self.gather_codec(&self.units[unit].unit) {
                    None => buffer.all_gather(own),
                    Some(_) => buffer.fill(self.gather(unit, own)),
                }
            }),
            WholeBuffer::Absent => WholeBuffer::Gathering(self.gather(unit, own)),
            other => other,
        };
        self.count();
    }

    /// Waits until the units of a block are there.
    pub(crate) fn wait_all_gather(&mut self, block: usize, clock: &mut Clock) -> Result<()> {
        for unit in &self.by_block[block] {
            let whole = &mut self.units[*unit].whole;
            match std::mem::replace(whole, WholeBuffer::Absent) {
                WholeBuffer::Gathering(pending) => {
                    *whole = WholeBuffer::Whole(clock.waiting("all_gather", || pending.wait())?);
                }
                WholeBuffer::Unsharding(pending) => {
                    *whole = WholeBuffer::Unsharded(clock.waiting("all_gather", || pending.wait())?);
                }
                other => *whole = other,
            }
        }
        Ok(())
    }

    /// Frees a gathered unit.
    pub(crate) fn reshard(&mut self, unit: usize, blocks: &mut [NamedBlock]) -> Result<()> {
        let stored = &mut self.units[unit];
        stored.whole.reshard()?;
        if !stored.whole.is_in_place() {
            for user in &stored.unit.users {
                if !self.by_block[user.block].contains(&unit) {
                    continue;
                }
                self.bound[user.block] = false;
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
    pub(crate) fn bind_parameters(&mut self, index: usize, block: &mut NamedBlock) {
        let mut values: SortedMap<&str, NewValue> = SortedMap::new();
        for unit in &self.by_block[index] {
            let StoredUnit { unit, whole, .. } = &self.units[*unit];
            let Some(whole) = whole.view() else { continue };
            for user in unit.users.iter().filter(|user| user.block == index) {
                for (path, target) in &user.params {
                    if let Some(param) = unit.layout.param(target) {
                        values.insert(path, (unit.layout.view(&whole, param), param.shape.clone()));
                    }
                }
            }
        }
        block.block.replace(&mut |path| values.remove(path));
        let is_there = |unit: &usize| self.units[*unit].whole.view().is_some();
        self.bound[index] = self.by_block[index].iter().all(is_there);
    }

    /// Whether a block's parameters are emptied in their place, so that its output must not view them.
    pub(crate) fn reshards_block_in_place(&self, block: usize) -> bool {
        self.by_block[block].iter().any(|unit| self.units[*unit].whole.is_in_place())
    }
}
