//! Units: flat buffers of parameters that are gathered, reduced and stepped as one.

use brigade_compress::Matrix;
use brigade_plan::UnitSize;
use brigade_sorted::SortedMap;
use burn::tensor::{Device, Tensor};

use crate::error::Result;
use crate::model::block::NamedBlock;
use crate::model::chain::blocks::Blocks;
use crate::model::chain::ties::Tie;
use crate::model::parameters::ParameterSpec;
use crate::sharding::groups::ParameterGroup;
use crate::sharding::layout::FlatLayout;

/// Parameters in one flat buffer: those of a block that are of the same kind, or one that several blocks
/// share.
///
/// A shared (tied) parameter is a unit of its own, because the blocks that read it may be on different stages. The stage of the
/// block that owns it steps it. Its gradient is summed over the blocks within each
/// micro-batch: see [`crate::model::Chain::tie`].
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    /// The block's name, or the shared parameter's full name.
    pub name: String,
    /// The block that owns the parameters; the layout's paths are of this block.
    pub owner_block: usize,
    /// The name of that block.
    pub owner_name: String,
    pub layout: FlatLayout,
    /// Whether training changes the parameters; else they have no gradient and no optimizer state.
    pub trainable: bool,
    /// Whether they are fp32 in forward and backward, in whatever type the others are. Such parameters are a unit of their own
    /// also where all are fp32, so that checkpoints do not depend on the type.
    pub keep_in_f32: bool,
    /// Whether this is running state, which forward passes change instead of the optimizer. It is whole on all ranks of the
    /// stage, and fp32.
    pub running: bool,
    /// The blocks that read the parameters, in order.
    pub users: Vec<User>,
}

/// How a block reads a unit.
#[derive(Debug, Clone)]
pub(crate) struct User {
    pub block: usize,
    /// Path in the block, and path in the unit's layout.
    pub params: Vec<(String, String)>,
}

impl Unit {
    /// The units of one block's own parameters: one for each kind, and one for each shared parameter.
    pub(crate) fn of_block(
        block: usize,
        name: &str,
        specs: &SortedMap<String, ParameterSpec>,
        ties: &[Tie],
    ) -> Vec<Self> {
        let is_follower = |path: &str| ties.iter().any(|tie| tie.follower == (block, path.to_owned()));
        let is_shared = |path: &str| ties.iter().any(|tie| tie.owner == (block, path.to_owned()));
        let owner_name = name.to_owned();
        let mut units = Vec::new();
        for (trainable, keep_in_f32, running, kind) in [
            (true, false, false, ""),
            (true, true, false, ":f32"),
            (false, false, false, ":frozen"),
            (false, true, false, ":frozen:f32"),
            (false, false, true, ":running"),
            (false, true, true, ":running:f32"),
        ] {
            let kind_of = |spec: &ParameterSpec| (spec.trainable, spec.keep_in_f32, spec.running);
            let alike = |spec: &ParameterSpec| kind_of(spec) == (trainable, keep_in_f32, running);
            let alike = specs.iter().filter(|(path, spec)| alike(spec) && !is_follower(path));
            let (shared, own): (Vec<_>, Vec<_>) =
                alike.map(|(path, _)| path).partition(|path| is_shared(path));
            let unit = |name: String, paths: &[&String], users: Vec<User>| Self {
                name,
                owner_block: block,
                owner_name: owner_name.clone(),
                layout: FlatLayout::new(
                    paths.iter().map(|path| ((*path).clone(), specs[*path].shape.clone())),
                ),
                trainable,
                keep_in_f32,
                running,
                users,
            };
            if !own.is_empty() {
                let params = own.iter().map(|path| ((*path).clone(), (*path).clone())).collect();
                units.push(unit(format!("{name}{kind}"), &own, vec![User { block, params }]));
            }
            for path in shared {
                let mut users = SortedMap::from([(block, vec![(path.clone(), path.clone())])]);
                for tie in ties.iter().filter(|tie| tie.owner == (block, path.clone())) {
                    users.entry(tie.follower.0).or_default().push((tie.follower.1.clone(), path.clone()));
                }
                let users = users.into_iter().map(|(block, params)| User { block, params }).collect();
                units.push(unit(format!("{name}.{path}"), &[path], users));
            }
        }
        units
    }

    /// The full name of one of its parameters.
    pub(crate) fn full_name(&self, path: &str) -> String {
        format!("{}.{path}", self.owner_name)
    }

    /// Packs a user's gradients to the unit's flat buffer of `length` elements.
    pub(crate) fn pack(
        &self,
        user: &User,
        gradients: &mut SortedMap<String, Tensor<1>>,
        length: usize,
        device: &Device,
    ) -> Tensor<1> {
        let mut found: SortedMap<String, Tensor<1>> = SortedMap::new();
        for (path, target) in &user.params {
            if let Some(gradient) = gradients.remove(path) {
                let sum = match found.remove(target) {
                    Some(before) => before + gradient,
                    None => gradient,
                };
                found.insert(target.clone(), sum);
            }
        }
        self.layout.pack(found, length, device)
    }
}

impl Blocks {
    /// The flat buffers that the parameters make, block by block, as [`brigade_plan::Footprint`] takes them, where they are
    /// trained in these groups. Nothing gets a value.
    ///
    /// # Errors
    /// If a tie or a group is wrong.
    pub fn units(&self, groups: &[ParameterGroup]) -> Result<Vec<UnitSize>> {
        let (ties, grouping) = (self.resolved_ties()?, self.grouping(groups)?);
        let size =
            |Unit { layout, owner_block, users, trainable, keep_in_f32, running, .. }: Unit| UnitSize {
                elements: layout.len(),
                matrices: layout
                    .params()
                    .iter()
                    .filter_map(|param| Matrix::of(param.range.start, &param.shape))
                    .collect(),
                owner_block,
                users: users.iter().map(|user| user.block).collect(),
                trainable,
                keep_in_f32: keep_in_f32 || running,
            };
        let blocks = self.blocks.iter().enumerate();
        let units = blocks.flat_map(|(index, NamedBlock { name, block })| {
            let mut specs = block.specs();
            for (path, spec) in &mut specs {
                spec.trainable &= !grouping.is_frozen(&format!("{name}.{path}"));
            }
            Unit::of_block(index, name, &specs, &ties)
        });
        Ok(units.map(size).collect())
    }
}
