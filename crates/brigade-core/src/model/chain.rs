//! An ordered list of blocks, with ties between parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;

use crate::error::{BoxError, Error, Result};
use crate::model::activation::Activation;
use crate::model::block::{AnyBlock, Block, Erased, Function, NamedBlock, Own};
use crate::model::context::ForwardContext;

/// Blocks in a row, from input `I` to output `O`; the compiler checks that neighbours fit.
///
/// ```
/// # use brigade_core::{Block, Chain};
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # #[derive(Module, Debug)]
/// # struct Layer { linear: Linear }
/// # impl Block for Layer {
/// #     type Input = Tensor<2>;
/// #     type Output = Tensor<2>;
/// #     fn forward(&self, x: Tensor<2>) -> Tensor<2> { self.linear.forward(x) }
/// # }
/// # let device = Device::default();
/// # let layer = |a, b| Layer { linear: LinearConfig::new(a, b).init(&device) };
/// let model = Chain::new()
///     .then("hidden", layer(4, 8))
///     .then("head", layer(8, 2))
///     .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
/// assert_eq!(model.chain().parameters(), 4 * 8 + 8 + 8 * 2 + 2);
/// ```
pub struct Chain<I, O> {
    pub(crate) blocks: Vec<NamedBlock>,
    pub(crate) ties: Vec<(String, String)>,
    /// The source of values that are not initial ones.
    pub(super) source: Option<Arc<Source>>,
    /// What that is called, and its digest, where ranks are to compare it.
    pub(crate) loaded: Option<(String, u64)>,
    /// Whether some values are on other ranks.
    pub(super) is_part: bool,
    pub(super) types: PhantomData<fn(I) -> O>,
}

/// Returns a range of a parameter's values, flattened in row-major order, by full name and shape; none to leave it
/// unchanged.
pub(super) type Source =
    dyn Fn(&str, &[usize], Range<usize>) -> Result<Option<Vec<f32>>, BoxError> + Send + Sync;

impl<I: Activation> Default for Chain<I, I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Activation> Chain<I, I> {
    /// An empty chain; its first block decides the model's input.
    pub fn new() -> Self {
        Self {
            blocks: Vec::new(),
            ties: Vec::new(),
            source: None,
            loaded: None,
            is_part: false,
            types: PhantomData,
        }
    }
}

impl<I: Activation, O: Activation> Chain<I, O> {
    /// Appends a block under a name that no other block has.
    pub fn then<B: Block<Input = O>>(self, name: impl Into<String>, block: B) -> Chain<I, B::Output> {
        self.push(name.into(), Box::new(Erased::new(block, Own)))
    }

    /// Appends any Burn module as a block, with the function that runs it; the rules for a [`Block`]'s forward apply to the
    /// function. Parameters have the same paths as in the module.
    ///
    /// ```
    /// use brigade_core::Chain;
    /// use burn::nn::{DropoutConfig, LinearConfig, PReluConfig};
    /// use burn::tensor::{Device, Tensor};
    ///
    /// let device = Device::default();
    /// let model = Chain::new()
    ///     .then_fn("flatten", DropoutConfig::new(0.1).init(), |dropout, x: Tensor<3>| dropout.forward(x.flatten::<2>(1, 2)))
    ///     .then_fn("hidden", LinearConfig::new(12, 8).init(&device), |linear, x| linear.forward(x))
    ///     .then_fn("activation", PReluConfig::new().init(&device), |relu, x| relu.forward(x));
    /// assert_eq!(model.predict(Tensor::zeros([5, 3, 4], &device)).unwrap().dims(), [5, 8]);
    /// ```
    pub fn then_fn<M, P>(
        self,
        name: impl Into<String>,
        module: M,
        forward: impl Fn(&M, O) -> P + Send + Sync + 'static,
    ) -> Chain<I, P>
    where
        M: Module + 'static,
        P: Activation,
    {
        self.then_fn_with(name, module, move |module: &M, input, _: &ForwardContext<'_>| {
            forward(module, input)
        })
    }

    /// As [`then_fn`](Self::then_fn), with a function that also gets the [context](ForwardContext): the step, the micro-batch, and whether the block is being trained.
    ///
    /// ```
    /// use brigade_core::Chain;
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// let model = Chain::new().then_fn_with("head", LinearConfig::new(3, 2).init(&Device::default()), |linear, x: Tensor<2>, context| {
    ///     // Training begins with small outputs.
    ///     let scale = if context.training { (context.step as f64 / 100.0).min(1.0) } else { 1.0 };
    ///     linear.forward(x).mul_scalar(scale)
    /// });
    /// assert_eq!(model.predict(Tensor::zeros([5, 3], &Device::default())).unwrap().dims(), [5, 2]);
    /// ```
    pub fn then_fn_with<M, P>(
        self,
        name: impl Into<String>,
        module: M,
        forward: impl Fn(&M, O, &ForwardContext<'_>) -> P + Send + Sync + 'static,
    ) -> Chain<I, P>
    where
        M: Module + 'static,
        P: Activation,
    {
        self.push(name.into(), Box::new(Erased::new(module, Function(Arc::new(forward), PhantomData))))
    }

    /// Appends modules of one kind as blocks, each as [`then_fn`](Self::then_fn) does: the layers of a transformer, say. They are
    /// named `name.0`, `name.1` and so on, as are the paths of a `Vec` in a module.
    ///
    /// ```
    /// use brigade_core::Chain;
    /// use burn::nn::transformer::TransformerEncoderConfig;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// let encoder = TransformerEncoderConfig::new(8, 16, 2, 3).init(&Device::default());
    /// let model = Chain::<Tensor<3>, _>::new()
    ///     .then_each("encoder.layers", encoder.layers, |layer, x| layer.forward(x, None, None));
    /// assert_eq!(model.parameters_by_block()[2].0, "encoder.layers.2");
    /// ```
    pub fn then_each<M: Module + 'static>(
        self,
        name: &str,
        modules: impl IntoIterator<Item = M>,
        forward: impl Fn(&M, O) -> O + Send + Sync + 'static,
    ) -> Self {
        let forward = Arc::new(move |module: &M, input, _: &ForwardContext<'_>| forward(module, input));
        modules.into_iter().enumerate().fold(self, |chain, (index, module)| {
            let run = Function(forward.clone(), PhantomData);
            chain.push(format!("{name}.{index}"), Box::new(Erased::new(module, run)))
        })
    }

    fn push<P>(mut self, name: String, block: Box<dyn AnyBlock>) -> Chain<I, P> {
        self.blocks.push(NamedBlock { name, block });
        Chain {
            blocks: self.blocks,
            ties: self.ties,
            source: self.source,
            loaded: self.loaded,
            is_part: self.is_part,
            types: PhantomData,
        }
    }

    /// Shares one parameter between two blocks: `follower` (`block.path`) reads the values of
    /// `owner`, and its gradient is added to the owner's, micro-batch by micro-batch.
    pub fn tie(mut self, follower: impl Into<String>, owner: impl Into<String>) -> Self {
        self.ties.push((follower.into(), owner.into()));
        self
    }

    /// Number of values in all parameters; a shared one counts once.
    pub fn parameters(&self) -> usize {
        self.parameters_by_block().iter().map(|(_, count)| count).sum()
    }

    /// Name and number of parameter values of each block, in order; a shared parameter counts
    /// with its owner.
    pub fn parameters_by_block(&self) -> Vec<(String, usize)> {
        let followers: BTreeSet<&str> = self.ties.iter().map(|(follower, _)| follower.as_str()).collect();
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

    /// Full names of the parameters that share the values of another one.
    pub fn followers(&self) -> BTreeSet<String> {
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

    /// Relative costs of the blocks, in order: see [`Block::cost`].
    pub fn costs(&self) -> Vec<f64> {
        self.blocks.iter().map(|named| named.block.cost()).collect()
    }

    /// The device of the parameters, without autodiff.
    pub(crate) fn device(&self) -> Result<Device> {
        let device = self.blocks.iter().find_map(|named| named.block.device());
        let none = || Error::Model("the model has no parameters, so its device is unknown".into());
        Ok(device.ok_or_else(none)?.inner())
    }

    pub(crate) fn check_names(&self) -> Result<()> {
        if self.blocks.is_empty() {
            return Err(Error::Blocks("the model has no blocks".into()));
        }
        if self.blocks.iter().any(|block| block.name.is_empty()) {
            return Err(Error::Blocks("a block has an empty name; each needs a name of its own".into()));
        }
        let mut seen = BTreeSet::new();
        match self.blocks.iter().find(|block| !seen.insert(&block.name)) {
            Some(block) => {
                Err(Error::Blocks(format!("two blocks are named `{}`; each needs its own name", block.name)))
            }
            None => self.check_clones(),
        }
    }

    /// Clones of a parameter without a value share whatever value it gets first, and whether it is trained: which that is would depend on the blocks of the rank.
    fn check_clones(&self) -> Result<()> {
        let mut seen = BTreeMap::new();
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
