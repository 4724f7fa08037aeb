//! Collecting whole tensors on one rank, one block after the other.

use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::{FloatDType, Tensor, TensorData};

use crate::dist::{DATA, Message, PP};
use crate::error::{Error, Result};
use crate::metrics::Clock;
use crate::model::activation::Part;
use crate::model::chain::blocks::Blocks;
use crate::model::chain::values::{NamedTensor, to_host};
use crate::step::engine::UntypedEngine;
use crate::step::forward_backward::micro_batches::MicroBatches;

impl UntypedEngine {
    /// Calls `sink` on rank `root` of the world with all parameters except followers of ties, in fp32, block by block. All ranks call
    /// this together; on the others, `sink` is not called. No rank holds more than one block at a time for it.
    ///
    /// # Errors
    /// If there is no such rank, a collective fails, and those of `sink`.
    pub fn collect(&self, root: usize, sink: impl FnMut(NamedTensor) -> Result<()>) -> Result<()> {
        self.collect_on(|_| SortedSet::from([root]), sink)
    }

    /// Calls `sink` with parameters on the ranks of the world that `roots` gives for their names, which is the same on all ranks; else as
    /// [`collect`](Self::collect). A rank gets whole blocks: also parameters that others are the roots of.
    ///
    /// # Errors
    /// As [`collect`](Self::collect).
    pub fn collect_on(
        &self,
        roots: impl Fn(&str) -> SortedSet<usize>,
        sink: impl FnMut(NamedTensor) -> Result<()>,
    ) -> Result<()> {
        self.check_synced()?;
        let whole = |unit| match self.update.common_values(unit) {
            Some(own) => self.store.whole_of(unit, own).map(Some),
            None => self.store.whole_values(unit).map(Some),
        };
        self.collect_by(&roots, whole, sink)
    }

    /// The ranks of the world that hold a parameter, or a shard of it; none if there is no such parameter.
    pub fn holders(&self, parameter: &str) -> Vec<usize> {
        let names = |block: usize| self.own_paths(block).map(move |path| (block, path));
        let mut all = (0..self.chain.blocks.len()).flat_map(names);
        let found = all.find(|(block, path)| {
            parameter.strip_prefix(&self.chain.blocks[*block].name).and_then(|rest| rest.strip_prefix('.'))
                == Some(path.as_str())
        });
        let Some((block, _)) = found else { return Vec::new() };
        let mesh = self.store.groups.all().mesh();
        (0..mesh.world()).filter(|rank| mesh.coordinate(*rank, PP) == self.stage.holder(block)).collect()
    }

    /// Names and shapes of what [`collect`](Self::collect) passes on, in the same order.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let blocks = self.chain.blocks.iter().enumerate();
        let shapes = blocks.flat_map(|(block, named)| {
            let shape =
                move |path: &String| (format!("{}.{path}", named.name), self.shapes[block][path].clone());
            self.own_paths(block).map(shape)
        });
        shapes.collect()
    }

    /// All parameters on rank `root`, as by [`collect`](Self::collect); an empty list on the others.
    ///
    /// # Errors
    /// As [`collect`](Self::collect).
    pub fn tensors(&self, root: usize) -> Result<Vec<NamedTensor>> {
        let mut tensors = Vec::new();
        self.collect(root, |tensor| {
            tensors.push(tensor);
            Ok(())
        })?;
        Ok(tensors)
    }

    pub(crate) fn whole_blocks(&self, root: usize) -> Result<Option<Blocks>> {
        let mut values: SortedMap<String, TensorData> = SortedMap::new();
        self.collect(root, |NamedTensor { name, data }| {
            values.insert(name, data);
            Ok(())
        })?;
        let is_root = self.store.groups.all().world().rank() == root;
        Ok(is_root.then(|| self.chain.with_values(values, &self.ties, &self.store.device)))
    }

    pub(crate) fn gradients(
        &mut self,
        batches: &mut dyn MicroBatches,
        root: usize,
    ) -> Result<(f64, Vec<NamedTensor>)> {
        if self.settings.strategy.rounds().is_some() {
            return Err(Error::Model(
                "this strategy trains in rounds, in which no rank has the gradients of a step".into(),
            ));
        }
        self.forget_accumulated();
        let before = self.step;
        self.step += 1;
        self.reduction.begin(self.step);
        let sums = self.sums(batches, 0.0, &mut Clock::default());
        self.step = before;
        let sums = sums?;
        self.reduction.commit(false);
        let mut named = Vec::new();
        let whole = |unit: usize| {
            let stored = &self.store.units[unit].unit;
            if self.store.is_served(stored) {
                let whole = self.store.all_gather_served(unit, sums.gradients[unit].clone(), FloatDType::F32);
                return whole.wait().map(Some);
            }
            let Some(own) = sums.gradients[unit].clone() else { return Ok(None) };
            let own = sums.divisor.map_or_else(|| own.clone(), |divisor| own.clone().div_scalar(divisor));
            let whole =
                if self.store.is_sharded() { self.store.groups.shard.all_gather(own).wait()? } else { own };
            Ok(Some(whole))
        };
        self.collect_by(&|_| SortedSet::from([root]), whole, |tensor| {
            named.push(tensor);
            Ok(())
        })?;
        Ok((sums.loss, named))
    }

    fn collect_by(
        &self,
        roots: &dyn Fn(&str) -> SortedSet<usize>,
        whole: impl Fn(usize) -> Result<Option<Tensor<1>>>,
        mut sink: impl FnMut(NamedTensor) -> Result<()>,
    ) -> Result<()> {
        let (groups, mesh) = (&self.store.groups, self.store.groups.mesh());
        for (block, named) in self.chain.blocks.iter().enumerate() {
            let holder = self.stage.holder(block);
            let name = |path: &String| format!("{}.{path}", named.name);
            // Each worker has all values, for the roots that are its ranks.
            let own = |root: usize| (0..mesh.world()).find(|rank| groups.rank_of_all(*rank) == root);
            let all: SortedSet<usize> = self.own_paths(block).flat_map(|path| roots(&name(path))).collect();
            let ranks = groups.all().world().size();
            if let Some(root) = all.iter().find(|root| **root >= ranks) {
                return Err(Error::Model(format!("there is no rank {root} in a world of {ranks}")));
            }
            let mut roots: SortedSet<usize> = all.into_iter().filter_map(own).collect();
            let is_root = roots.remove(&groups.world.rank());
            let message = match self.stage.holds(block) {
                true => self.whole_block(block, &whole)?,
                false if is_root => groups.pp.receive(holder, &self.store.device).wait()?,
                false => continue,
            };
            if self.stage.holds(block) {
                for root in roots {
                    let stage = mesh.coordinate(root, PP);
                    if stage != holder && mesh.position(root, &DATA) == groups.data.rank() {
                        groups.pp.send(message.clone(), stage).wait()?;
                    }
                }
            }
            if is_root {
                for (path, part) in self.own_paths(block).zip(message) {
                    if let Some(Part::Float(flat, shape)) = part {
                        sink(NamedTensor { name: name(path), data: to_host(flat, &shape)? })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Paths of a block's parameters that have values of their own.
    pub(crate) fn own_paths(&self, block: usize) -> impl Iterator<Item = &String> {
        let is_follower =
            move |path: &str| self.ties.iter().any(|tie| tie.follower.0 == block && tie.follower.1 == path);
        self.shapes[block].keys().filter(move |path| !is_follower(path))
    }

    /// One tensor for each of [`own_paths`](Self::own_paths).
    fn whole_block(
        &self,
        block: usize,
        whole: &impl Fn(usize) -> Result<Option<Tensor<1>>>,
    ) -> Result<Message> {
        let mut found = SortedMap::new();
        for unit in self.store.by_block[block].iter().chain(&self.store.running[block]) {
            let stored = &self.store.units[*unit];
            if stored.unit.owner_block != block {
                continue;
            }
            if let Some(flat) = whole(*unit)? {
                for param in stored.unit.layout.params() {
                    found.insert(param.path.clone(), stored.unit.layout.view(&flat, param));
                }
            }
        }
        let part = |path: &String| {
            found.remove(path).map(|flat| Part::Float(flat, self.shapes[block][path].clone()))
        };
        Ok(self.own_paths(block).map(part).collect())
    }
}
