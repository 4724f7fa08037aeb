//! How an engine begins: parameters get their values, block by block, and move into the parameter store.

use std::collections::BTreeSet;

use burn::tensor::Tensor;

use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::chain::Chain;
use crate::model::ties::Tie;
use crate::sharding::store::ParameterStore;
use crate::sharding::unit::Unit;
use crate::step::update::Update;

/// The move of a model's values into the store, block by block.
pub(crate) struct Initialization<'a, I, O> {
    pub chain: &'a mut Chain<I, O>,
    pub store: &'a mut ParameterStore,
    pub update: &'a mut Update,
    pub ties: &'a [Tie],
    /// Shared parameters that are not trained: their followers keep copies.
    pub frozen_owners: &'a mut BTreeSet<(usize, String)>,
}

impl<I: Activation, O: Activation> Initialization<'_, I, O> {
    /// Gives one block its values and takes into the store what this rank is to hold of them: its own units, if this
    /// rank holds the block, and those that other blocks of this rank share.
    pub(crate) fn block(&mut self, index: usize, seed: u64) -> Result<()> {
        self.chain.initialize_block(index, seed)?;
        let (store, ties) = (&mut *self.store, self.ties);
        let is_here = |block: usize| store.holders[block] == store.groups.pp.rank();
        let here = is_here(index);
        let named = &mut self.chain.blocks[index];
        named.block.train();
        let values = named.block.values();
        let trainable = values.iter().filter(|(_, value)| value.trainable);
        let shapes = trainable.map(|(path, value)| (path.clone(), value.shape.clone())).collect();
        let units = Unit::of_block(index, &named.name, &shapes, ties);
        let used = |unit: &Unit| unit.users.iter().any(|user| is_here(user.block));
        for unit in units.into_iter().filter(used).collect::<Vec<_>>() {
            let values = |path: &str| values[path].flat.clone();
            let flat = unit.layout.params().iter().map(|param| (param.path.clone(), values(&param.path)));
            let flat = unit.layout.pack(flat.collect(), unit.layout.len(), &store.device);
            store.add(unit, flat, here)?;
            if let Some(stored) = store.units.last() {
                self.update.add(stored, store.update_device());
            }
        }
        for (path, value) in values.iter().filter(|(_, value)| !value.trainable) {
            if ties.iter().any(|tie| tie.owner.0 == index && tie.owner.1 == *path) {
                self.frozen_owners.insert((index, path.clone()));
            }
            if here {
                store.frozen_bytes += 4 * value.shape.iter().product::<usize>() as u64;
            }
        }
        // What is in the store is handed out from there; a block of another stage keeps nothing.
        let device = store.device.clone();
        named.block.replace(&mut |path| {
            let value = values.get(path)?;
            let tie = ties.iter().find(|tie| tie.follower.0 == index && tie.follower.1 == path);
            let keeps = match tie {
                Some(tie) => self.frozen_owners.contains(&tie.owner),
                None => !value.trainable,
            };
            (!(here && keeps)).then(|| (Tensor::empty([0], &device), vec![0; value.shape.len()]))
        });
        for tie in ties.iter().filter(|tie| tie.owner.0 == index && self.frozen_owners.contains(&tie.owner)) {
            let value = &values[&tie.owner.1];
            self.chain.blocks[tie.follower.0].block.replace(&mut |path| {
                (path == tie.follower.1).then(|| (value.flat.clone(), value.shape.clone()))
            });
        }
        Ok(())
    }
}
