//! A model as an ordered list of blocks, with ties between parameters and a loss.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::error::{BoxError, Error, Result};
use crate::model::activation::{Activation, Parts, flatten, restore};
use crate::model::batch::Batch;
use crate::model::block::{AnyBlock, Block, Erased, Function, NamedBlock, Own};
use crate::model::cache::Cache;
use crate::model::context::ForwardContext;
use crate::model::parameters::ties::Tie;

/// A whole parameter with its name, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// `block.path`, as in `layers.0.attention.qkv.weight`.
    pub name: String,
    /// Values and shape.
    pub data: TensorData,
}

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
    source: Option<Arc<Source>>,
    /// What that is called, and its digest, where ranks are to compare it.
    pub(crate) loaded: Option<(String, u64)>,
    /// Whether some values are on other ranks.
    is_part: bool,
    types: PhantomData<fn(I) -> O>,
}

/// Returns a range of a parameter's values, flattened in row-major order, by full name and shape; none to leave it
/// unchanged.
type Source = dyn Fn(&str, &[usize], Range<usize>) -> Result<Option<Vec<f32>>, BoxError> + Send + Sync;

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

    /// Completes the model with its loss: from the last block's output and a batch's target to the
    /// **sum** (shape `[1]`) of the losses over the valid targets, not their mean. Brigade divides
    /// by the number of valid targets of the whole global batch, or by their [weights](crate::Batch::weighted).
    pub fn loss<T>(self, loss: impl Fn(O, T) -> Tensor<1> + Send + Sync + 'static) -> Model<I, O, T> {
        let loss = move |output, target| (loss(output, target), Vec::new());
        Model { chain: self, loss: Arc::new(loss), names: Vec::new(), metrics: Vec::new(), smaller: None }
    }

    /// Like [`loss`](Self::loss), with a function that also returns the sums of metrics: those that cost little along with the loss, but
    /// a separate pass over the output otherwise. They are as in [`Model::metric`]. `loss` returns one per name.
    pub fn loss_with_metrics<T, S: Into<Vec<Tensor<1>>>>(
        self,
        names: impl IntoIterator<Item: Into<String>>,
        loss: impl Fn(O, T) -> (Tensor<1>, S) + Send + Sync + 'static,
    ) -> Model<I, O, T> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let count = names.len();
        let loss = move |output, target| {
            let (loss, sums) = loss(output, target);
            let sums = sums.into();
            assert_eq!(sums.len(), count, "a loss gives as many sums as its metrics have names");
            (loss, sums)
        };
        Model { chain: self, loss: Arc::new(loss), names, metrics: Vec::new(), smaller: None }
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

    /// Gives every parameter without a value one: from the source of [`load`](Self::load), or else its
    /// initial value, see [`crate::initialize`].
    ///
    /// # Errors
    /// If the list of blocks or a tie is wrong, or values cannot be loaded.
    pub fn initialize(&mut self, seed: u64) -> Result<()> {
        self.check_names()?;
        let ties = self.resolved_ties()?;
        for index in 0..self.blocks.len() {
            self.initialize_block(index, seed, &|_| true)?;
        }
        self.source = None;
        self.apply_ties(&ties);
        Ok(())
    }

    /// Sets the source of parameters' values, which are loaded when first needed, block by block: the closure
    /// returns the values, flattened in row-major order, for a full name (`block.path`) and shape, or none to
    /// leave the parameter unchanged. It is not called for followers of ties.
    ///
    /// Existing values are replaced when [`initialize`](Self::initialize) is called or training begins.
    pub fn load(
        &mut self,
        values: impl Fn(&str, &[usize]) -> Result<Option<Vec<f32>>, BoxError> + Send + Sync + 'static,
    ) {
        self.load_ranges(move |name, shape, range| {
            let Some(mut found) = values(name, shape)? else { return Ok(None) };
            found.truncate(range.end);
            Ok(Some(found.split_off(range.start.min(found.len()))))
        });
    }

    /// Like [`load`](Self::load), with a closure that returns the values in a range of the flattened parameter: those that this rank holds if
    /// ZeRO-3 shards parameters, and else all.
    pub fn load_ranges(
        &mut self,
        values: impl Fn(&str, &[usize], Range<usize>) -> Result<Option<Vec<f32>>, BoxError>
        + Send
        + Sync
        + 'static,
    ) {
        self.source = Some(Arc::new(values));
        self.loaded = None;
    }

    /// Describes the source of [`load`](Self::load): its name, for messages, and a digest of its content. Training only begins if all
    /// ranks have the same source: see [`Engine::new`](crate::Engine::new).
    pub fn compare_loaded(&mut self, name: impl Into<String>, digest: u64) {
        self.loaded = Some((name.into(), digest));
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

    /// All values that this rank needs have been loaded.
    pub(crate) fn finish_loading(&mut self, is_part: bool) {
        (self.source, self.is_part) = (None, is_part);
    }

    /// Gives those parameters of one block their values whose paths are wanted. Others are left empty.
    pub(crate) fn initialize_block(
        &mut self,
        index: usize,
        seed: u64,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        let followers = self.followers();
        let NamedBlock { name, block } = &mut self.blocks[index];
        if let Some(device) = block.device() {
            let (shapes, device, mut failed) = (block.shapes(), device.inner(), None);
            block.replace(&mut |path| {
                let (full, shape) = (format!("{name}.{path}"), shapes.get(path)?);
                if !is_wanted(path) {
                    return Some((Tensor::empty([0], &device), vec![0; shape.len()]));
                }
                let source = self.source.as_ref().filter(|_| !followers.contains(&full))?;
                match source_values(source, &full, shape, 0..shape.iter().product()) {
                    Ok(found) => found.map(|found| {
                        let length = found.len();
                        (Tensor::from_data(TensorData::new(found, [length]), &device), shape.clone())
                    }),
                    Err(error) => {
                        failed.get_or_insert(error);
                        None
                    }
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
        }
        block.initialize(seed, name);
        Ok(())
    }

    /// Whether a parameter gets its values from where [`load`](Self::load) said.
    pub(crate) fn loads(&self, name: &str, shape: &[usize]) -> Result<bool> {
        let first = 0..shape.iter().product::<usize>().min(1);
        Ok(self.loaded_values(name, shape, first)?.is_some())
    }

    /// A range of a parameter's values from where [`load`](Self::load) said; none where it is not loaded.
    pub(crate) fn loaded_values(
        &self,
        name: &str,
        shape: &[usize],
        range: Range<usize>,
    ) -> Result<Option<Vec<f32>>> {
        match &self.source {
            Some(source) => source_values(source, name, shape, range),
            None => Ok(None),
        }
    }

    /// All parameters but followers of ties, on the host, in the order of blocks and paths.
    ///
    /// # Errors
    /// If a tensor cannot be read from its device, or a tie is wrong.
    pub fn tensors(&self) -> Result<Vec<NamedTensor>> {
        self.check_whole()?;
        let ties = self.resolved_ties()?;
        let mut tensors = Vec::new();
        for (index, NamedBlock { name, block }) in self.blocks.iter().enumerate() {
            for (path, value) in block.values() {
                if !ties.iter().any(|tie| tie.follower == (index, path.clone())) {
                    tensors.push(NamedTensor {
                        name: format!("{name}.{path}"),
                        data: to_host(value.flat, &value.shape)?,
                    });
                }
            }
        }
        Ok(tensors)
    }

    /// A copy of the chain without autodiff, for inference: [`Chain::predict`] on it records no graph.
    pub fn valid(&self) -> Self {
        let blocks = self.blocks.iter().map(|b| NamedBlock { name: b.name.clone(), block: b.block.valid() });
        Self {
            blocks: blocks.collect(),
            ties: self.ties.clone(),
            source: self.source.clone(),
            loaded: self.loaded.clone(),
            is_part: self.is_part,
            types: PhantomData,
        }
    }

    /// A copy for inference, as of [`valid`](Self::valid), whose parameters have these values; followers of `ties` have their
    /// owners'.
    pub(crate) fn with_values(
        &self,
        mut values: BTreeMap<String, TensorData>,
        ties: &[Tie],
        device: &Device,
    ) -> Self {
        let mut chain = self.valid();
        for NamedBlock { name, block } in &mut chain.blocks {
            block.replace(&mut |path| {
                let data = values.remove(&format!("{name}.{path}"))?;
                let (bytes, shape, dtype) = data.into_parts();
                let flat = TensorData::from_bytes(bytes, [shape.num_elements()], dtype);
                Some((Tensor::from_data(flat, (device, DType::F32)), shape.to_vec()))
            });
        }
        chain.apply_ties(ties);
        chain.finish_loading(false);
        chain
    }

    /// Runs all blocks.
    ///
    /// # Errors
    /// If a block was given what it does not take.
    pub fn predict(&self, input: I) -> Result<O> {
        self.check_whole()?;
        let parts = forward_all(&self.blocks, flatten(input))?;
        restore_output(&self.blocks, parts)
    }

    /// Runs all blocks on the next positions of the sequences given before with this cache. On a chain with autodiff the cache keeps graphs; call it on
    /// [`valid`](Self::valid).
    ///
    /// # Errors
    /// If a block gets an input that it does not take, or cannot [continue from a cache](Block::forward_cached).
    pub fn predict_cached(&self, input: I, cache: &mut Cache) -> Result<O> {
        self.check_whole()?;
        let parts = self.blocks.iter().enumerate().try_fold(flatten(input), |parts, (index, named)| {
            named.block.forward_cached(parts, &named.name, cache.of(index))
        })?;
        restore_output(&self.blocks, parts)
    }

    /// Checks that all values are here.
    fn check_whole(&self) -> Result<()> {
        let missing = match self.source {
            Some(_) => "the model's values are not loaded yet; call `initialize` first",
            None if self.is_part => {
                "this rank holds a part of the model, other ranks the rest (pipeline stages, ZeRO-3); the run's file of weights has all"
            }
            None => return Ok(()),
        };
        Err(Error::Model(missing.into()))
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

/// The values from a source, checked to have the length of the range.
fn source_values(
    source: &Arc<Source>,
    name: &str,
    shape: &[usize],
    range: Range<usize>,
) -> Result<Option<Vec<f32>>> {
    let count = range.len();
    match source(name, shape, range).map_err(Error::Load)? {
        Some(found) if found.len() != count => Err(Error::Load(
            format!("`{name}` {shape:?}: {} values were given in place of {count}", found.len()).into(),
        )),
        found => Ok(found),
    }
}

/// Copies a flattened tensor to the host under its shape.
pub(crate) fn to_host(flat: Tensor<1>, shape: &[usize]) -> Result<TensorData> {
    let values = flat.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))?;
    Ok(TensorData::new(values, shape.to_vec()))
}

pub(crate) fn forward_all(blocks: &[NamedBlock], input: Parts) -> Result<Parts> {
    blocks.iter().try_fold(input, |parts, NamedBlock { name, block }| {
        block.forward(parts, &ForwardContext::inference(name))
    })
}

/// The last block's output with its type.
pub(crate) fn restore_output<O: Activation>(blocks: &[NamedBlock], parts: Parts) -> Result<O> {
    let given = parts.describe();
    restore(parts).ok_or_else(|| Error::Activation {
        block: format!("the loss, after `{}`", blocks.last().map_or("", |b| &b.name)),
        expected: O::describe(),
        given,
    })
}

/// The loss of a model: from output and target to the sum over valid targets, shape `[1]`, and to the sums of the metrics that
/// it computes, each of shape `[1]`.
pub(crate) type Loss<O, T> = Arc<dyn Fn(O, T) -> (Tensor<1>, Vec<Tensor<1>>) + Send + Sync>;

/// A metric of its own: from output and target to a sum over valid targets, shape `[1]`.
pub(crate) type Metric<O, T> = Arc<dyn Fn(O, T) -> Tensor<1> + Send + Sync>;

/// The models that stand in for one in measurements with one of its micro-batches.
pub(crate) type Smaller<I, O, T> =
    Arc<dyn Fn(&Batch<I, T>) -> Option<[SmallerModel<I, O, T>; 2]> + Send + Sync>;

/// A chain of blocks with its loss: what Brigade trains.
pub struct Model<I, O, T> {
    pub(crate) chain: Chain<I, O>,
    pub(crate) loss: Loss<O, T>,
    /// The names of all metrics: those of the loss, then the others.
    pub(crate) names: Vec<String>,
    pub(crate) metrics: Vec<Metric<O, T>>,
    /// What is measured in its place.
    pub(crate) smaller: Option<Smaller<I, O, T>>,
}

/// A model that stands in for a larger one in measurements. It has the same number of blocks, and its micro-batch the same number of samples; but its widths,
/// tokens and other sizes are the larger model's, divided.
pub struct SmallerModel<I, O, T> {
    /// What they are divided by.
    pub divisor: usize,
    /// The model.
    pub model: Model<I, O, T>,
    /// A micro-batch for it.
    pub batch: Batch<I, T>,
}

impl<I: Activation, O: Activation, T> Model<I, O, T> {
    /// Sets the models that are measured instead of this one to find what its blocks need for a micro-batch: none if it is small enough
    /// itself. See [`measure_activations`](Self::measure_activations).
    ///
    /// A run on a GPU measures a model that says so, on the CPU: blocks then have all their tensors in fields, which are copied, and the loss has none of its own.
    pub fn measured_by(
        mut self,
        smaller: impl Fn(&Batch<I, T>) -> Option<[SmallerModel<I, O, T>; 2]> + Send + Sync + 'static,
    ) -> Self {
        self.smaller = Some(Arc::new(smaller));
        self
    }

    /// Whether it [is measured](Self::measured_by) by smaller models where it is large, and so in little time on any device.
    pub fn is_soon_measured(&self) -> bool {
        self.smaller.is_some()
    }

    /// Adds a metric: from the last block's output and a batch's target to a **sum** (shape `[1]`) over the valid targets, as
    /// the [loss](Chain::loss) is one. Steps and evaluations report it divided by what the loss is divided by: the number of valid targets of the whole
    /// global batch, or the sum of their [weights](crate::Batch::weighted), by which a metric must then multiply, as the loss does. It has the same bits
    /// on any mesh: the ranks' sums are added without rounding. No gradient flows through it.
    pub fn metric(
        mut self,
        name: impl Into<String>,
        sum: impl Fn(O, T) -> Tensor<1> + Send + Sync + 'static,
    ) -> Self {
        self.names.push(name.into());
        self.metrics.push(Arc::new(sum));
        self
    }

    /// The blocks.
    pub fn chain(&self) -> &Chain<I, O> {
        &self.chain
    }

    /// The names of all metrics.
    pub fn metric_names(&self) -> &[String] {
        &self.names
    }

    /// The blocks, to initialise or load them.
    pub fn chain_mut(&mut self) -> &mut Chain<I, O> {
        &mut self.chain
    }

    /// The blocks alone, for inference.
    pub fn into_chain(self) -> Chain<I, O> {
        self.chain
    }
}
