//! Blocks in a row, whatever they take.

use std::ops::Range;
use std::sync::Arc;

use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::Device;

use crate::error::{BoxError, Error, Result};
use crate::model::block::NamedBlock;

/// The blocks of a [`Chain`](crate::Chain), apart from the types of its input and output: their parameters, with the ties between these.
pub struct Blocks {
    pub(crate) blocks: Vec<NamedBlock>,
    pub(crate) ties: Vec<(String, String)>,
    /// The first block of the head, if that is not the last block alone.
    pub(super) head: Option<usize>,
    /// The source of values that are not initial ones.
    pub(super) source: Option<Arc<Source>>,
    /// What that is called, and its digest, where ranks are to compare it.
    pub(crate) loaded: Option<(String, u64)>,
    /// Whether some values are on other ranks.
    pub(super) is_part: bool,
}

/// How many parameter values a block has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParameterCounts {
    /// Those that are trained.
    pub trained: usize,
    /// Those that are frozen.
    pub frozen: usize,
}

/// Returns a range of a parameter's values, flattened in row-major order, by full name and shape; none to leave it
/// unchanged.
pub(super) type Source =
    dyn Fn(&str, &[usize], Range<usize>) -> Result<Option<Vec<f32>>, BoxError> + Send + Sync;

impl Blocks {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new(), ties: Vec::new(), head: None, source: None, loaded: None, is_part: false }
    }

    /// The name of the last block.
    pub(crate) fn last_name(&self) -> &str {
        self.blocks.last().map_or("", |named| &named.name)
    }

    /// What [`EngineSettings::layer_decay`](crate::EngineSettings::layer_decay) multiplies the learning rate of each block by, in order, with their names.
    pub fn layer_decay_factors(&self, layer_decay: f64) -> Vec<(String, f64)> {
        let factor = |index| self.layer_decay_factor(index, layer_decay);
        self.blocks.iter().enumerate().map(|(index, named)| (named.name.clone(), factor(index))).collect()
    }

    pub(crate) fn layer_decay_factor(&self, index: usize, layer_decay: f64) -> f64 {
        let head = self.head.unwrap_or(usize::MAX).min(self.blocks.len().saturating_sub(1));
        layer_decay.powi(head.saturating_sub(index) as i32)
    }

    /// Number of values in all parameters; a shared one counts once.
    pub fn parameters(&self) -> usize {
        self.parameters_by_block().iter().map(|(_, count)| count).sum()
    }

    /// Name and number of parameter values of each block, in order; a shared parameter counts
    /// with its owner.
    pub fn parameters_by_block(&self) -> Vec<(String, usize)> {
        let followers: SortedSet<&str> = self.ties.iter().map(|(follower, _)| follower.as_str()).collect();
        self.blocks
            .iter()
            .map(|NamedBlock { name, block }| {
                let own = block
                    .shapes()
                    .into_iter()
                    .filter(|(path, _)| !followers.contains(format!("{name}.{path}").as_str()));
                (name.clone(), own.map(|(_, shape)| shape.iter().product::<usize>()).sum())
            })
            .collect()
    }

    /// Parameter values of each block, in order, by whether they are trained; a shared parameter counts with its owner.
    pub fn parameter_counts(&self) -> Vec<ParameterCounts> {
        let followers = self.followers();
        let of = |NamedBlock { name, block }: &NamedBlock| {
            let mut counts = ParameterCounts::default();
            for (path, spec) in block.specs() {
                if spec.running || followers.contains(&format!("{name}.{path}")) {
                    continue;
                }
                let count = if spec.trainable { &mut counts.trained } else { &mut counts.frozen };
                *count += spec.shape.iter().product::<usize>();
            }
            counts
        };
        self.blocks.iter().map(of).collect()
    }

    /// Full names of the parameters that share the values of another one.
    pub fn followers(&self) -> SortedSet<String> {
        self.ties.iter().map(|(follower, _)| follower.clone()).collect()
    }

    /// Names and shapes of all parameters, block by block, in the order of paths, without giving values to
    /// any.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let blocks = self.blocks.iter();
        let shapes = blocks.flat_map(|NamedBlock { name, block }| {
            block.shapes().into_iter().map(move |(path, shape)| (format!("{name}.{path}"), shape))
        });
        shapes.collect()
    }

    /// What ranks that train together must have alike, a line each: blocks, parameters with their shapes, ties.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for NamedBlock { name, block } in &self.blocks {
            lines.push(format!("block {name} with a cost of {}", block.cost()));
            for (path, spec) in block.specs() {
                let mut line = format!("parameter {name}.{path} of shape {:?}", spec.shape);
                let notes = [
                    (spec.running, "running state"),
                    (!spec.trainable, "frozen"),
                    (spec.keep_in_f32, "in fp32"),
                ];
                notes.into_iter().filter(|(is, _)| *is).for_each(|(_, note)| line += &format!(", {note}"));
                lines.push(line);
            }
        }
        lines.extend(self.head.map(|head| format!("head from block {head} on")));
        lines.extend(self.ties.iter().map(|(follower, owner)| format!("{follower} tied to {owner}")));
        lines
    }

    /// Relative costs of the blocks, in order: see [`Block::cost`](crate::Block::cost).
    pub fn costs(&self) -> Vec<f64> {
        self.blocks.iter().map(|named| named.block.cost()).collect()
    }

    /// The shapes of the parameters that are trained.
    pub fn trained_shapes(&self) -> Vec<Vec<usize>> {
        let specs = self.blocks.iter().flat_map(|named| named.block.specs().into_values());
        specs.filter(|spec| spec.trainable && !spec.running).map(|spec| spec.shape).collect()
    }

    /// The first block with a parameter that is trained; how many there are if none has one. No gradient flows to what comes before it.
    pub(crate) fn first_trained(&self) -> usize {
        let is_trained =
            |named: &NamedBlock| named.block.specs().values().any(|spec| spec.trainable && !spec.running);
        self.blocks.iter().position(is_trained).unwrap_or(self.blocks.len())
    }

    /// Whether a block has running state.
    pub fn has_running_state(&self) -> bool {
        self.blocks.iter().any(|named| named.block.specs().values().any(|spec| spec.running))
    }

    /// The device of the parameters, without autodiff.
    pub(crate) fn device(&self) -> Result<Device> {
        let device = self.blocks.iter().find_map(|named| named.block.device());
        let none = || Error::Model("the model has no parameters, so its device is unknown".into());
        Ok(device.ok_or_else(none)?.inner())
    }

    /// Checks that all blocks are on the device that a rank computes on, with autodiff or without.
    ///
    /// # Errors
    /// If one is on another device.
    pub fn check_device(&self, computes_on: &Device) -> Result<()> {
        for NamedBlock { name, block } in &self.blocks {
            // Devices are equal if their hardware is.
            if let Some(device) = block.devices().into_iter().find(|device| device != computes_on) {
                return Err(Error::Model(format!(
                    "the block `{name}` is on {:?}, and this rank computes on {:?}; build the model on `session.device()`",
                    device.inner(),
                    computes_on.clone().inner()
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn check_names(&self) -> Result<()> {
        if self.blocks.is_empty() {
            return Err(Error::Blocks("the model has no blocks".into()));
        }
        if self.blocks.iter().any(|block| block.name.is_empty()) {
            return Err(Error::Blocks("a block has an empty name; each needs a name of its own".into()));
        }
        let mut seen = SortedSet::new();
        match self.blocks.iter().find(|block| !seen.insert(&block.name)) {
            Some(block) => {
                Err(Error::Blocks(format!("two blocks are named `{}`; each needs its own name", block.name)))
            }
            None => self.check_full_names().and_then(|()| self.check_clones()),
        }
    }

    /// A block `a` with a parameter `b.c` and a block `a.b` with `c` would have two parameters of one name. Parameters without elements have
    /// no place in a unit.
    fn check_full_names(&self) -> Result<()> {
        let mut seen = SortedSet::new();
        if let Some((name, shape)) = self.shapes().into_iter().find(|(_, shape)| shape.contains(&0)) {
            return Err(Error::Blocks(format!("the parameter `{name}` of shape {shape:?} has no elements")));
        }
        match self.shapes().into_iter().find(|(name, _)| !seen.insert(name.clone())) {
            Some((name, _)) => Err(Error::Blocks(format!(
                "two parameters are named `{name}`, in different blocks: rename one of the blocks whose name begins it"
            ))),
            None => Ok(()),
        }
    }

    /// Clones of a parameter without a value share whatever value it gets first, and whether it is trained: which that is would depend on the blocks of the rank.
    fn check_clones(&self) -> Result<()> {
        let mut seen = SortedMap::new();
        for block in &self.blocks {
            for (path, id) in block.block.lazy() {
                let name = format!("{}.{path}", block.name);
                if let Some(first) = seen.insert(id, name.clone()) {
                    return Err(Error::Blocks(format!(
                        "`{name}` is a clone of `{first}`, which has no value yet, so that both would share the value that one of them \
                        gets first; initialize a module of its own from its config, or share a parameter by `Chain::tie`"
                    )));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::chain::Chain;
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Tensor;

    #[derive(Module, Debug)]
    struct Outer {
        b: Linear,
    }

    fn named(outer: &str, inner: &str) -> Result<()> {
        let linear = || LinearConfig::new(2, 2).init(&Device::default());
        let chain = Chain::new()
            .then_fn(outer, Outer { b: linear() }, |outer, x: Tensor<2>| outer.b.forward(x))
            .then_fn(inner, linear(), |linear, x: Tensor<2>| linear.forward(x));
        chain.check_names()
    }

    #[test]
    fn the_blocks_of_the_head_have_the_full_learning_rate() {
        let linear = || LinearConfig::new(2, 2).init(&Device::default());
        let run = |linear: &Linear, x: Tensor<2>| linear.forward(x);
        let layers = || Chain::new().then_fn("a", linear(), run).then_fn("b", linear(), run);
        let factors = |chain: &Blocks| -> Vec<f64> {
            chain.layer_decay_factors(0.5).into_iter().map(|(_, factor)| factor).collect()
        };
        assert_eq!(factors(&layers()), [0.5, 1.0]);
        let headed = layers().begin_head().then_fn("norm", linear(), run).then_fn("head", linear(), run);
        assert_eq!(factors(&headed), [0.25, 0.5, 1.0, 1.0]);
        assert!(headed.describe().contains(&"head from block 2 on".to_owned()));
        assert_eq!(factors(&layers().begin_head()), [0.5, 1.0], "without a block of its own");
    }

    #[test]
    fn devices_are_the_same_with_autodiff_and_without() {
        let device = Device::default();
        let linear = |device: &Device| LinearConfig::new(2, 2).init(device);
        let run = |linear: &Linear, x: Tensor<2>| linear.forward(x);
        let chain =
            |second: Linear| Chain::new().then_fn("a", linear(&device), run).then_fn("b", second, run);
        for on in [device.clone(), device.clone().autodiff()] {
            chain(linear(&on)).check_device(&device).unwrap();
            chain(linear(&on)).check_device(&device.clone().autodiff()).unwrap();
        }
    }

    #[test]
    fn names_of_blocks_and_of_parameters_are_their_own() {
        named("a", "b").unwrap();
        for (outer, inner, expected) in [
            ("a", "a", "two blocks are named `a`"),
            ("a", "", "a block has an empty name"),
            ("a", "a.b", "two parameters are named `a.b.bias`"),
        ] {
            let error = named(outer, inner).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
