//! The block: the part into which a model is cut.

use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::Arc;

use brigade_kernels::{DeferredGradient, DeferredGradients};
use brigade_sorted::SortedMap;
use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Gradients, Tensor};

use crate::error::{Error, Result};
use crate::model::activation::{Activation, Parts, flatten, restore};
use crate::model::cache::BlockCache;
use crate::model::context::ForwardContext;
use crate::model::parameters::initialization::initialize;
use crate::model::parameters::precision::Float;
use crate::model::parameters::{self, NewValue, ParamValue, ParameterSpec};
use crate::model::random_state::with_seed;
use crate::model::split_forward::{ErasedBackwardWeights, SplitForward};

/// A Burn module that maps one activation to the next: an embedding, a transformer layer, a head.
///
/// It knows nothing about ranks. Its forward must be a pure function of its input, its parameters and the [`ForwardContext`], because a block may
/// run again to recompute its activations, and runs in several processes at once. It may draw from Burn's random generator, as `nn::Dropout` does:
/// the context seeds it before each forward, so it has the same state on any mesh, and when the block runs again. It may update running state, as
/// `nn::BatchNorm` does, if that does not affect the output in training. It leaves computation with other ranks to the layers in
/// [`nn`](crate::nn). Parameters may only be read in the forward and in its backward (in the first half of a [split](Self::forward_split) one): in
/// between, ZeRO-3 frees their memory and writes to it again, under any handle that was kept.
///
/// ```
/// use brigade_core::Block;
/// use burn::module::Module;
/// use burn::nn::Linear;
/// use burn::tensor::{Tensor, activation::relu};
///
/// #[derive(Module, Debug)]
/// struct Hidden {
///     linear: Linear,
/// }
///
/// impl Block for Hidden {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///     fn forward(&self, input: Tensor<2>) -> Tensor<2> {
///         relu(self.linear.forward(input))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    note = "a Burn module needs no implementation: `then_fn(name, module, |module, input| module.forward(input))` instead of `then`"
)]
pub trait Block: Module + 'static {
    /// The input.
    type Input: Activation;
    /// The output.
    type Output: Activation;
    /// Runs the block.
    fn forward(&self, input: Self::Input) -> Self::Output;
    /// Runs the block when it must know the step, the micro-batch, or whether it is being trained. Training and evaluation
    /// call it, training through [`forward_split`](Self::forward_split); by default it is [`forward`](Self::forward).
    fn forward_with(&self, input: Self::Input, _context: &ForwardContext<'_>) -> Self::Output {
        self.forward(input)
    }
    /// Runs the block in training, and may offer a backward in two halves: first the gradient of the input, which the previous
    /// stage waits for, and later the gradients of the parameters, when there is time. Pipeline schedules with such halves have
    /// less idle time. By default it is [`forward_with`](Self::forward_with), and the second half is what fused linear operations
    /// leave for it ([`brigade_kernels::deferring`]): they need nothing else.
    ///
    /// The output has the bits of [`forward_with`](Self::forward_with). A block offers the halves always or never. They run one
    /// right after the other if the schedule has an unsplit backward, or if the block shares a parameter with another one, so the
    /// gradients have the same bits under any schedule.
    ///
    /// ```
    /// use brigade_core::{Block, ForwardContext, ParameterGradients, SplitForward};
    /// use burn::module::{Module, Param};
    /// use burn::tensor::Tensor;
    ///
    /// #[derive(Module, Debug)]
    /// struct Product {
    ///     weight: Param<Tensor<2>>,
    /// }
    ///
    /// impl Block for Product {
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
    ///         x.matmul(self.weight.val())
    ///     }
    ///
    ///     fn forward_split(&self, x: Tensor<2>, _: &ForwardContext<'_>) -> SplitForward<Tensor<2>> {
    ///         let kept = x.clone().inner();
    ///         SplitForward::new(x.matmul(self.weight.val().detach()), |gradient| {
    ///             ParameterGradients::new().with("weight", kept.transpose().matmul(gradient))
    ///         })
    ///     }
    /// }
    /// ```
    fn forward_split(&self, input: Self::Input, context: &ForwardContext<'_>) -> SplitForward<Self::Output> {
        self.forward_with(input, context).into()
    }
    /// Runs the block in inference on positions that follow those given before with this cache: the output is what [`forward`](Self::forward) would give for
    /// them with all positions, up to rounding. None (the default) if the block cannot do this, or not with this input: then text is not [generated with a
    /// cache](crate::Chain::predict_cached). A block that looks at each position alone leaves the cache empty.
    ///
    /// ```
    /// use brigade_core::{Block, BlockCache, Chain};
    /// use burn::module::Module;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// /// To each position, `[batch, positions]`, the sum of those before is added.
    /// #[derive(Module, Debug)]
    /// struct Sum;
    ///
    /// impl Block for Sum {
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
    ///         x.cumsum(1)
    ///     }
    ///
    ///     fn forward_cached(&self, x: Tensor<2>, cache: &mut BlockCache) -> Option<Tensor<2>> {
    ///         let before = cache.get::<Option<Tensor<2>>>();
    ///         let sums = before.iter().fold(x.cumsum(1), |sums, before| sums + before.clone());
    ///         let last = sums.dims()[1] - 1;
    ///         *before = Some(sums.clone().narrow(1, last, 1));
    ///         Some(sums)
    ///     }
    /// }
    ///
    /// let chain = Chain::new().then("sum", Sum);
    /// let (device, mut cache) = (Device::default(), Default::default());
    /// chain.predict_cached(Tensor::from_floats([[1.0, 2.0]], &device), &mut cache)?;
    /// let next = chain.predict_cached(Tensor::from_floats([[3.0]], &device), &mut cache)?;
    /// assert_eq!(next.into_scalar::<f32>(), 6.0);
    /// # Ok::<(), brigade_core::Error>(())
    /// ```
    fn forward_cached(&self, _input: Self::Input, _cache: &mut BlockCache) -> Option<Self::Output> {
        None
    }
    /// Whether the parameter at this path, such as `norm.gamma`, stays fp32 in forward and backward when others compute in bf16:
    /// for parameters that rounding hurts, such as those of norms and routers. The block gets it as fp32, but its input as bf16,
    /// and casts as needed. A parameter that several blocks share must be kept by all of them, or by none. In an fp32 run it only
    /// changes the order of some sums.
    fn keep_in_f32(&self, _path: &str) -> bool {
        false
    }
    /// The cost of one forward pass, in any unit that all blocks of a model share, such as multiplications per sample. Pipeline
    /// stages are balanced by it. By default it is the number of parameter values.
    fn cost(&self) -> f64 {
        self.num_params() as f64
    }
}

/// A block with its name.
pub(crate) struct NamedBlock {
    pub name: String,
    pub block: Box<dyn AnyBlock>,
}

/// A block with its types erased.
pub(crate) trait AnyBlock: Send {
    fn forward(&self, input: Parts, context: &ForwardContext<'_>) -> Result<Parts>;
    /// As training runs it; with what computes the gradients of parameters that the output's graph leaves out.
    fn forward_split(
        &self,
        input: Parts,
        context: &ForwardContext<'_>,
    ) -> Result<(Parts, Option<ErasedBackwardWeights>)>;
    /// Runs the block in inference on what follows; `block` is its name.
    fn forward_cached(&self, input: Parts, block: &str, cache: &mut BlockCache) -> Result<Parts>;
    fn shapes(&self) -> SortedMap<String, Vec<usize>>;
    fn specs(&self) -> SortedMap<String, ParameterSpec>;
    fn values(&self) -> SortedMap<String, ParamValue>;
    /// The values of parameters that have some.
    fn given_values(&self) -> SortedMap<String, ParamValue>;
    /// The paths of parameters that are not of floats.
    fn not_floats(&self) -> Vec<String>;
    fn take_gradients(&self, gradients: &mut Gradients) -> SortedMap<String, Tensor<1>>;
    /// What a backward through this block has left for later.
    fn take_deferred(&self, deferred: &mut DeferredGradients) -> SortedMap<String, DeferredGradient>;
    fn replace(&mut self, values: &mut dyn FnMut(&str) -> Option<NewValue>);
    /// Freezes the parameters at these paths.
    fn freeze(&mut self, is_frozen: &dyn Fn(&str) -> bool);
    /// The running state that the last forward has left, and other values.
    fn running_values(&self) -> SortedMap<String, ParamValue>;
    /// Replaces running state; what forwards have left is dropped.
    fn set_running(&mut self, values: &mut dyn FnMut(&str) -> Option<NewValue>);
    /// The parameters that have no value yet, by path; clones have the same id.
    fn lazy(&self) -> SortedMap<String, ParamId>;
    fn initialize(&mut self, seed: u64, name: &str);
    /// Frees what autodiff still keeps of this block's dropped graphs.
    fn free_dropped_graphs(&self);
    fn train(&mut self);
    fn device(&self) -> Option<Device>;
    fn cost(&self) -> f64;
    fn valid(&self) -> Box<dyn AnyBlock>;
    /// A copy for trials in this number type, whose running state is its own, too: parameters that have no value get some one.
    fn copy_with_values(&self, compute: Float, device: Option<Device>) -> Box<dyn AnyBlock>;
    /// Its type and fields in words, without what identifies a parameter.
    fn fields(&self) -> String;
}

/// How a module is run: by its own [`Block`], or by a function beside it.
pub(crate) trait Run<M>: Clone + Send + 'static {
    type Input: Activation;
    type Output: Activation;
    fn forward(&self, module: &M, input: Self::Input, context: &ForwardContext<'_>) -> Self::Output;
    fn forward_split(
        &self,
        module: &M,
        input: Self::Input,
        context: &ForwardContext<'_>,
    ) -> SplitForward<Self::Output> {
        self.forward(module, input, context).into()
    }
    fn forward_cached(&self, _: &M, _: Self::Input, _: &mut BlockCache) -> Option<Self::Output> {
        None
    }
    fn keep_in_f32(&self, _module: &M, _path: &str) -> bool {
        false
    }
    fn cost(&self, module: &M) -> f64;
    /// A number that differs where two of one type may run a module differently.
    fn state(&self) -> usize {
        0
    }
}

/// By the module's own [`Block`].
#[derive(Clone)]
pub(crate) struct Own;

impl<B: Block> Run<B> for Own {
    type Input = B::Input;
    type Output = B::Output;

    fn forward(&self, block: &B, input: B::Input, context: &ForwardContext<'_>) -> B::Output {
        block.forward_with(input, context)
    }

    fn forward_split(
        &self,
        block: &B,
        input: B::Input,
        context: &ForwardContext<'_>,
    ) -> SplitForward<B::Output> {
        block.forward_split(input, context)
    }

    fn forward_cached(&self, block: &B, input: B::Input, cache: &mut BlockCache) -> Option<B::Output> {
        block.forward_cached(input, cache)
    }

    fn keep_in_f32(&self, block: &B, path: &str) -> bool {
        block.keep_in_f32(path)
    }

    fn cost(&self, block: &B) -> f64 {
        block.cost()
    }
}

/// By a function of the module, the input and the context.
pub(crate) struct Function<F, I, O>(pub Arc<F>, pub PhantomData<fn(I) -> O>);

impl<F, I, O> Clone for Function<F, I, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<M, F, I, O> Run<M> for Function<F, I, O>
where
    M: Module,
    F: Fn(&M, I, &ForwardContext<'_>) -> O + Send + Sync + 'static,
    I: Activation,
    O: Activation,
{
    type Input = I;
    type Output = O;

    fn forward(&self, module: &M, input: I, context: &ForwardContext<'_>) -> O {
        (self.0)(module, input, context)
    }

    fn cost(&self, module: &M) -> f64 {
        module.num_params() as f64
    }

    fn state(&self) -> usize {
        // A function with captured values may depend on them.
        if size_of::<F>() == 0 { 0 } else { Arc::as_ptr(&self.0).addr() }
    }
}

/// The module is in an option only so that mapping, which consumes it, can run in place.
pub(crate) struct Erased<M, R> {
    module: Option<M>,
    run: R,
}

impl<M: Module + 'static, R: Run<M>> Erased<M, R> {
    pub(crate) fn new(module: M, run: R) -> Self {
        Self { module: Some(module), run }
    }

    fn module(&self) -> &M {
        match &self.module {
            Some(module) => module,
            None => unreachable!("a module is absent only while it is being mapped"),
        }
    }

    fn map(&mut self, f: impl FnOnce(M) -> M) {
        self.module = self.module.take().map(f);
    }

    /// Runs the block with Burn's generator in the state that belongs to this pass. A block without parameters draws on the device
    /// of its input.
    fn drawing<T>(
        &self,
        device: Option<Device>,
        context: &ForwardContext<'_>,
        forward: impl FnOnce() -> T,
    ) -> T {
        match device.or_else(|| self.device()) {
            Some(device) => with_seed(&device, context.random_seed(), || context.naming(forward)),
            None => context.naming(forward),
        }
    }
}

fn restore_input<A: Activation>(input: Parts, block: &str) -> Result<A> {
    let given = input.describe();
    restore(input).ok_or_else(|| Error::Activation {
        block: block.to_owned(),
        expected: A::describe(),
        given,
    })
}

impl<M: Module + 'static, R: Run<M>> AnyBlock for Erased<M, R> {
    fn forward(&self, input: Parts, context: &ForwardContext<'_>) -> Result<Parts> {
        let device = input.device();
        let input = restore_input(input, context.block)?;
        let forward = || flatten(self.run.forward(self.module(), input, context));
        Ok(self.drawing(device, context, forward))
    }

    fn forward_split(
        &self,
        input: Parts,
        context: &ForwardContext<'_>,
    ) -> Result<(Parts, Option<ErasedBackwardWeights>)> {
        let device = input.device();
        let input = restore_input(input, context.block)?;
        let forward = || self.run.forward_split(self.module(), input, context);
        let SplitForward { output, backward_weights } = self.drawing(device, context, forward);
        let erased = backward_weights.map(|backward_weights| -> ErasedBackwardWeights {
            Box::new(move |gradient| restore::<R::Output>(gradient).map(backward_weights))
        });
        Ok((flatten(output), erased))
    }

    fn forward_cached(&self, input: Parts, block: &str, cache: &mut BlockCache) -> Result<Parts> {
        let input = restore_input(input, block)?;
        let output = self.run.forward_cached(self.module(), input, cache);
        output.map(flatten).ok_or_else(|| {
            Error::Model(format!(
                "block `{block}` cannot continue from a cache with this input: see `Block::forward_cached`"
            ))
        })
    }

    fn shapes(&self) -> SortedMap<String, Vec<usize>> {
        parameters::shapes(self.module())
    }

    fn specs(&self) -> SortedMap<String, ParameterSpec> {
        parameters::specs(self.module(), |path| self.run.keep_in_f32(self.module(), path))
    }

    fn values(&self) -> SortedMap<String, ParamValue> {
        parameters::values(self.module())
    }

    fn given_values(&self) -> SortedMap<String, ParamValue> {
        parameters::given_values(self.module())
    }

    fn not_floats(&self) -> Vec<String> {
        parameters::not_floats(self.module())
    }

    fn take_gradients(&self, gradients: &mut Gradients) -> SortedMap<String, Tensor<1>> {
        parameters::take_gradients(self.module(), gradients)
    }

    fn take_deferred(&self, deferred: &mut DeferredGradients) -> SortedMap<String, DeferredGradient> {
        parameters::take_deferred(self.module(), deferred)
    }

    fn replace(&mut self, values: &mut dyn FnMut(&str) -> Option<NewValue>) {
        self.map(|block| parameters::replace(block, values));
    }

    fn freeze(&mut self, is_frozen: &dyn Fn(&str) -> bool) {
        self.map(|block| parameters::freeze(block, is_frozen));
    }

    fn running_values(&self) -> SortedMap<String, ParamValue> {
        // An update of running state waits until the module is read again or copied.
        parameters::values(&self.module().valid())
    }

    fn set_running(&mut self, values: &mut dyn FnMut(&str) -> Option<NewValue>) {
        drop(self.module().valid());
        self.replace(values);
    }

    fn lazy(&self) -> SortedMap<String, ParamId> {
        parameters::lazy(self.module())
    }

    fn initialize(&mut self, seed: u64, name: &str) {
        self.map(|block| initialize(block, seed, name));
    }

    fn free_dropped_graphs(&self) {
        parameters::touch(self.module());
    }

    fn train(&mut self) {
        self.map(Module::train);
    }

    fn device(&self) -> Option<Device> {
        self.module().devices().into_iter().next()
    }

    fn cost(&self) -> f64 {
        self.run.cost(self.module())
    }

    fn valid(&self) -> Box<dyn AnyBlock> {
        Box::new(Self { module: Some(self.module().valid()), run: self.run.clone() })
    }

    fn copy_with_values(&self, compute: Float, device: Option<Device>) -> Box<dyn AnyBlock> {
        let (specs, lazy) = (self.specs(), parameters::lazy(self.module()));
        let device = device.or_else(|| self.device()).map(Device::inner).unwrap_or_default();
        let filled = parameters::replace(self.module().clone(), &mut |path| {
            let ParameterSpec { shape, .. } = specs.get(path).filter(|_| lazy.contains_key(path))?;
            let values = Tensor::full([shape.iter().product::<usize>()], 0.01, (&device, DType::F32));
            Some((values, shape.clone()))
        });
        // Without autodiff and back: running state is shared by clones, but not by these.
        let apart = filled.valid().to_device(&device);
        let mut values = parameters::values(&apart);
        let cast = parameters::replace(apart, &mut |path| {
            let ParamValue { flat, shape } = values.remove(path)?;
            let keep = specs.get(path).is_some_and(|spec| spec.keep_in_f32);
            (!keep && flat.dtype() != compute.dtype().into()).then(|| (flat.cast(compute.dtype()), shape))
        });
        Box::new(Self { module: Some(cast.train()), run: self.run.clone() })
    }

    fn fields(&self) -> String {
        let text = format!("{:?} {} {:?}", TypeId::of::<Self>(), self.run.state(), self.module());
        let mut parts = text.split("Param: ");
        let first = parts.next().unwrap_or_default().to_owned();
        // What follows is the parameter's id, which is random, and whatever else the text says.
        parts.fold(first, |all, part| all + part.split_once(' ').map_or("", |(_, rest)| rest))
    }
}
