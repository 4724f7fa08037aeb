//! How an engine begins: parameters get their values, block by block, and move into the parameter store.

use burn::tensor::Tensor;

use crate::dist::Collectives;
use crate::error::{Error, Result};
use crate::model::activation::Activation;
use crate::model::chain::Chain;
use crate::model::ties::Tie;
use crate::sharding::groups::Grouping;
use crate::sharding::store::ParameterStore;
use crate::sharding::unit::Unit;
use crate::step::strategy::Update;

/// The move of a model's values into the store, block by block.
pub(crate) struct Initialization<'a, I, O> {
    pub chain: &'a mut Chain<I, O>,
    pub store: &'a mut ParameterStore,
    pub update: &'a mut dyn Update,
    pub ties: &'a [Tie],
    pub grouping: &'a Grouping,
    pub layer_decay: f64,
}

impl<I: Activation, O: Activation> Initialization<'_, I, O> {
    /// Gives one block its values and takes into the store what this rank is to hold of them: its own units, if this
    /// rank holds the block, and those that other blocks of this rank share.
    pub(crate) fn block(&mut self, index: usize, seed: u64) -> Result<()> {
        self.chain.initialize_block(index, seed)?;
        let (store, ties) = (&mut *self.store, self.ties);
        let holders = store.holders.clone();
        let stage = store.groups.pp.rank();
        let here = holders[index] == stage;
        let named = &mut self.chain.blocks[index];
        named.block.train();
        let values = named.block.values();
        let used = |unit: &Unit| unit.users.iter().any(|user| holders[user.block] == stage);
        for mut unit in
            Unit::of_block(index, &named.name, &named.block.specs(), ties).into_iter().filter(used)
        {
            unit.layout.set_groups(|path| self.grouping.of(&format!("{}.{path}", named.name)));
            unit.layout.set_learning_rate_factor(self.layer_decay.powi((holders.len() - 1 - index) as i32));
            let values = |path: &str| values[path].flat.clone();
            let flat = unit.layout.params().iter().map(|param| (param.path.clone(), values(&param.path)));
            let flat = unit.layout.pack(flat.collect(), unit.layout.len(), &store.device);
            store.add(unit, flat, here)?;
            if let Some(stored) = store.units.last() {
                let own = stored.is_updated().then(|| stored.own.clone());
                self.update.add(&stored.unit.layout, own, store.update_device());
            }
        }
        // Blocks are given their parameters from the store.
        let device = store.device.clone();
        named.block.replace(&mut |path| {
            let value = values.get(path)?;
            Some((Tensor::empty([0], &device), vec![0; value.shape.len()]))
        });
        Ok(())
    }
}

/// Checks that all ranks load the same values, which each of them reads for itself.
pub(crate) fn check_loaded(loaded: Option<&(String, u64)>, world: &dyn Collectives) -> Result<()> {
    let own = match loaded {
        Some((_, digest)) => vec![1.0, f64::from((digest >> 32) as u32), f64::from(*digest as u32)],
        None => vec![0.0; 3],
    };
    let all = world.all_gather_scalars(own).wait()?;
    let other: Vec<String> =
        (0..all.len()).filter(|rank| all[*rank] != all[0]).map(|rank| rank.to_string()).collect();
    if other.is_empty() {
        return Ok(());
    }
    let here = match loaded {
        Some((name, digest)) => format!("this rank loads {name}, with digest {digest:016x}"),
        None => "this rank loads nothing".into(),
    };
    Err(Error::Model(format!(
        "rank {} would load other weights than rank 0: the files differ between hosts, or ranks were given different ones ({here})",
        other.join(", ")
    )))
}
