//! The block: the part into which a model is cut.

use brigade_kernels::{DeferredGradient, DeferredGradients};
use brigade_sorted::SortedMap;
use burn::module::{Module, ParamId};
use burn::tensor::{Device, Gradients, Tensor};

use crate::error::Result;
use crate::model::activation::{Activation, Parts};
use crate::model::cache::BlockCache;
use crate::model::context::ForwardContext;
use crate::model::parameters::precision::Dtype;
use crate::model::parameters::{NewValue, ParamValue, ParameterSpec, Unfit};
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
    /// The first parameter that cannot be trained.
    fn unfit(&self) -> Option<(String, Unfit)>;
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
    fn devices(&self) -> Vec<Device>;
    /// The first of them.
    fn device(&self) -> Option<Device> {
        self.devices().into_iter().next()
    }
    fn cost(&self) -> f64;
    fn valid(&self) -> Box<dyn AnyBlock>;
    /// A copy for trials in this number type, whose running state is its own, too: parameters that have no value get some one.
    fn copy_with_values(&self, compute: Dtype, device: Option<Device>) -> Box<dyn AnyBlock>;
    /// Its type and fields in words, without what identifies a parameter.
    fn fields(&self) -> String;
}
