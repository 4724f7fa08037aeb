//! How an engine begins: parameters get their values, block by block, and move into the parameter store.

use std::ops::Range;

use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::{DType, Tensor, TensorData};

use crate::dist::{Collectives, DP, Mesh, PP, REPLICATE, WORKERS};
use crate::error::{Error, Result};
use crate::model::chain::blocks::Blocks;
use crate::model::chain::ties::Tie;
use crate::sharding::groups::Grouping;
use crate::sharding::store::{ParameterStore, compact};
use crate::sharding::unit::Unit;
use crate::sharding::zero::Zero;
use crate::step::settings::EngineSettings;
use crate::step::strategy::{Strategy, Update};

/// The move of a model's values into the store, block by block.
pub(crate) struct Initialization<'a> {
    pub chain: &'a mut Blocks,
    pub store: &'a mut ParameterStore,
    pub update: &'a mut dyn Update,
    pub ties: &'a [Tie],
    pub grouping: &'a Grouping,
    pub layer_decay: f64,
}

impl Initialization<'_> {
    /// Gives one block its values and takes into the store what this rank is to hold of them: its own units, if this
    /// rank holds the block, and those that other blocks of this rank share. No other values are read or drawn.
    pub(crate) fn block(&mut self, index: usize, seed: u64) -> Result<()> {
        let ties = self.ties;
        let holders = self.store.holders.clone();
        let stage = self.store.groups.pp.rank();
        let here = holders[index] == stage;
        let factor = self.chain.layer_decay_factor(index, self.layer_decay);
        let named = &self.chain.blocks[index];
        let used = |unit: &Unit| unit.users.iter().any(|user| holders[user.block] == stage);
        let mut units = Unit::of_block(index, &named.name, &named.block.specs(), ties);
        units.retain(used);
        let mut pieces = self.loaded_pieces(&units)?;
        let drawn: SortedSet<&str> = units
            .iter()
            .flat_map(|unit| {
                let kept = self.store.kept(unit);
                unit.layout.params().iter().filter(move |param| !common(&param.range, &kept).is_empty())
            })
            .map(|param| param.path.as_str())
            .filter(|path| !pieces.contains_key(*path))
            .collect();
        self.chain.initialize_block(index, seed, &|path| drawn.contains(path))?;
        let named = &mut self.chain.blocks[index];
        named.block.train();
        let values = named.block.values();
        let store = &mut *self.store;
        for mut unit in units {
            unit.layout.set_groups(|path| self.grouping.of(&format!("{}.{path}", named.name)));
            unit.layout.set_learning_rate_factor(factor);
            let kept = store.kept(&unit);
            let mut flat = Vec::new();
            for param in unit.layout.params() {
                let within = within(&param.range, &kept);
                flat.push(match pieces.remove(&param.path) {
                    Some(piece) => piece,
                    None if within.is_empty() => continue,
                    None if within.len() == param.range.len() => values[&param.path].flat.clone(),
                    None => compact(values[&param.path].flat.clone().slice(within))?,
                });
            }
            let padding = kept.end.saturating_sub(unit.layout.len().max(kept.start));
            if padding > 0 || flat.is_empty() {
                flat.push(Tensor::zeros([padding], (&store.device, DType::F32)));
            }
            let flat = if flat.len() == 1 { flat.swap_remove(0) } else { Tensor::cat(flat, 0) };
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

    /// Of parameters that are loaded, by path, the values that are kept of each.
    fn loaded_pieces(&self, units: &[Unit]) -> Result<SortedMap<String, Tensor<1>>> {
        let mut pieces = SortedMap::new();
        for unit in units {
            let (name, kept) = (&self.chain.blocks[unit.owner_block].name, self.store.kept(unit));
            for param in unit.layout.params() {
                let within = within(&param.range, &kept);
                if within.is_empty() {
                    continue;
                }
                let full = format!("{name}.{}", param.path);
                if let Some(found) = self.chain.loaded_values(&full, &param.shape, within)? {
                    let length = found.len();
                    let data = TensorData::new(found, [length]);
                    let piece = Tensor::from_data(data, (&self.store.device, DType::F32));
                    pieces.insert(param.path.clone(), piece);
                }
            }
        }
        Ok(pieces)
    }
}

/// What two ranges have in common.
fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// The elements of a parameter that are kept of its unit, counted from its first. `of`: where the parameter is.
fn within(of: &Range<usize>, kept: &Range<usize>) -> Range<usize> {
    let common = common(of, kept);
    if common.is_empty() { 0..0 } else { common.start - of.start..common.end - of.start }
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
        "rank {} would load different weights from rank 0: the files differ between hosts, or ranks were given different files ({here})",
        other.join(", ")
    )))
}

/// Checks that there are workers beside servers, and nothing that parts the model among them.
pub(crate) fn check_servers(mesh: &Mesh, zero: &Zero, strategy: &dyn Strategy) -> Result<()> {
    let (servers, dp) = (strategy.servers(), mesh.size(DP));
    if let Some(separate) = strategy.separate_worlds() {
        let ranks = if separate.is_server { servers } else { 1 };
        if servers == 0 || mesh.world() != ranks || zero.stage > 0 || strategy.rounds().is_none() {
            return Err(Error::Model(format!(
                "separately launched servers and workers need strategy.staleness (--staleness) above 0 and zero.stage (--zero) 0; expected {}, the mesh has {}",
                if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") },
                mesh.world()
            )));
        }
        return Ok(());
    }
    if servers > 0 && (servers >= dp || mesh.world() != dp || zero.stage > 0) {
        return Err(Error::Model(format!(
            "{servers} of the {} ranks of the mesh's axis `{DP}` are servers: there must be more ranks than servers, no other axis, and no ZeRO",
            dp
        )));
    }
    Ok(())
}

/// Checks that outer steps of fragments are possible with this number of blocks.
pub(crate) fn check_fragments(blocks: usize, settings: &EngineSettings) -> Result<()> {
    let strategy = &settings.strategy;
    let Some((fragments, inner_steps)) = strategy.fragments().zip(strategy.inner_steps()) else {
        return Ok(());
    };
    fragments.check(inner_steps, Some(blocks))?;
    if settings.worker.is_some() {
        return Err(Error::Model(
            "separately launched workers synchronise the whole model at once; fragments are not supported"
                .into(),
        ));
    }
    Ok(())
}

/// Checks that the ranks make the mesh, that the engine knows its axes, and that replicas stand before shards, since sums over
/// shards are taken first.
pub(crate) fn check_mesh(mesh: &Mesh, ranks: usize, strategy: &dyn Strategy) -> Result<()> {
    if mesh.world() != ranks {
        return Err(Error::Model(format!(
            "the mesh has {} rank{}, but the group of all ranks has {ranks}",
            mesh.world(),
            if mesh.world() == 1 { "" } else { "s" }
        )));
    }
    let known = [WORKERS, PP, REPLICATE, DP];
    if let Some(axis) = mesh.axes().iter().find(|axis| axis.size > 1 && !known.contains(&axis.name)) {
        return Err(Error::Model(format!(
            "the engine does not use the mesh's axis `{}` of {} ranks; it knows {}",
            axis.name,
            axis.size,
            known.join(", ")
        )));
    }
    let place = |name: &str| mesh.axes().iter().position(|axis| axis.name == name && axis.size > 1);
    if mesh.size(WORKERS) > 1 && strategy.inner_steps().is_none() {
        return Err(Error::Model(format!(
            "the mesh has {} workers, but the strategy {strategy:?} has no outer steps in which they synchronise",
            mesh.size(WORKERS)
        )));
    }
    let outermost = mesh.axes().iter().position(|axis| axis.size > 1);
    if place(WORKERS).is_some_and(|workers| Some(workers) != outermost) {
        return Err(Error::Model(format!("the mesh's axis `{WORKERS}` must come before all others")));
    }
    match (place(REPLICATE), place(DP)) {
        (Some(replicate), Some(dp)) if replicate > dp => Err(Error::Model(format!(
            "the mesh's axis `{REPLICATE}` comes after `{DP}`; it must come before it, so that the ranks of a shard are neighbours"
        ))),
        _ => Ok(()),
    }
}
