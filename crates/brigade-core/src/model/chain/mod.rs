//! An ordered list of blocks, with ties between parameters.

pub(crate) mod blocks;
pub(crate) mod predict;
pub(crate) mod ties;
pub(crate) mod values;

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use burn::module::Module;

use crate::model::activation::Activation;
use crate::model::block::{AnyBlock, Block, NamedBlock};
use crate::model::chain::blocks::Blocks;
use crate::model::context::ForwardContext;
use crate::model::erased::Erased;
use crate::model::run::{Function, Own};

/// Blocks in a row, from input `I` to output `O`; the compiler checks that neighbours fit. What does not depend on these types, such as parameters and
/// where their values come from, is in [`Blocks`].
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
#[repr(transparent)]
pub struct Chain<I, O> {
    untyped: Blocks,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Deref for Chain<I, O> {
    type Target = Blocks;

    fn deref(&self) -> &Blocks {
        &self.untyped
    }
}

impl<I, O> DerefMut for Chain<I, O> {
    fn deref_mut(&mut self) -> &mut Blocks {
        &mut self.untyped
    }
}

impl<I, O> Chain<I, O> {
    /// Blocks whose ends have these types.
    pub(crate) fn of(blocks: Blocks) -> Self {
        Self { untyped: blocks, types: PhantomData }
    }

    /// As [`of`](Self::of), of borrowed blocks.
    pub(crate) fn of_ref(blocks: &Blocks) -> &Self {
        // SAFETY: a chain is its blocks and nothing else (`repr(transparent)`).
        unsafe { &*std::ptr::from_ref(blocks).cast() }
    }

    /// The blocks alone.
    pub(crate) fn into_blocks(self) -> Blocks {
        self.untyped
    }
}

impl<I: Activation> Default for Chain<I, I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Activation> Chain<I, I> {
    /// An empty chain; its first block decides the model's input.
    pub fn new() -> Self {
        Self::of(Blocks::new())
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
        self.untyped.blocks.push(NamedBlock { name, block });
        Chain::of(self.untyped)
    }

    /// Begins the head: the blocks appended from here on are together what otherwise the last block is, for
    /// [`EngineSettings::layer_decay`](crate::EngineSettings::layer_decay).
    pub fn begin_head(mut self) -> Self {
        self.untyped.head = Some(self.untyped.blocks.len());
        self
    }

    /// Shares one parameter between two blocks: `follower` (`block.path`) reads the values of
    /// `owner`, and its gradient is added to the owner's, micro-batch by micro-batch.
    pub fn tie(mut self, follower: impl Into<String>, owner: impl Into<String>) -> Self {
        self.untyped.ties.push((follower.into(), owner.into()));
        self
    }
}
