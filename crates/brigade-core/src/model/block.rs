//! The block: the part into which a model is cut.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor};

use crate::error::{Error, Result};
use crate::model::activation::{Activation, Parts, flatten, restore};
use crate::model::context::ForwardContext;
use crate::model::initialization::initialize;
use crate::model::parameters::{self, NewValue, ParamValue};

/// A Burn module that maps one activation to the next: an embedding, a transformer layer, a head.
///
/// It knows nothing of ranks. Its forward must be a pure function of its input and parameters, because a block may run again to
/// recompute its activations, and runs in several processes at once. Parameters may be read only in the forward and in its
/// backward: in between, ZeRO-3 frees their memory and writes to it again, under any handle that was kept.
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
pub trait Block: Module + 'static {
    /// The input.
    type Input: Activation;
    /// The output.
    type Output: Activation;
    /// Runs the block.
    fn forward(&self, input: Self::Input) -> Self::Output;
    /// Runs the block where it must know the step, the micro-batch, or whether it is trained. It is what training and
    /// evaluation call; by default it is [`forward`](Self::forward).
    fn forward_with(&self, input: Self::Input, _context: &ForwardContext<'_>) -> Self::Output {
        self.forward(input)
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
    fn shapes(&self) -> BTreeMap<String, Vec<usize>>;
    fn values(&self) -> BTreeMap<String, ParamValue>;
    fn take_gradients(&self, gradients: &mut Gradients) -> BTreeMap<String, Tensor<1>>;
    fn replace(&mut self, values: &mut dyn FnMut(&str) -> Option<NewValue>);
    fn initialize(&mut self, seed: u64, name: &str);
    /// Frees what autodiff still keeps of this block's dropped graphs.
    fn free_dropped_graphs(&self);
    fn train(&mut self);
    fn device(&self) -> Option<Device>;
    fn cost(&self) -> f64;
    fn valid(&self) -> Box<dyn AnyBlock>;
}

/// The module is in an option only so that mapping, which consumes it, can run in place.
pub(crate) struct Erased<B>(Option<B>);

impl<B: Block> Erased<B> {
    pub(crate) fn new(block: B) -> Self {
        Self(Some(block))
    }

    fn block(&self) -> &B {
        match &self.0 {
            Some(block) => block,
            None => unreachable!("a block is absent only while it is being mapped"),
        }
    }

    fn map(&mut self, f: impl FnOnce(B) -> B) {
        self.0 = self.0.take().map(f);
    }
}

impl<B: Block> AnyBlock for Erased<B> {
    fn forward(&self, input: Parts, context: &ForwardContext<'_>) -> Result<Parts> {
        let given = input.describe();
        let input = restore::<B::Input>(input).ok_or_else(|| Error::Activation {
            block: context.block.to_owned(),
            expected: B::Input::describe(),
            given,
        })?;
        Ok(flatten(self.block().forward_with(input, context)))
    }

    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        parameters::shapes(self.block())
    }

    fn values(&self) -> BTreeMap<String, ParamValue> {
        parameters::values(self.block())
    }

    fn take_gradients(&self, gradients: &mut Gradients) -> BTreeMap<String, Tensor<1>> {
        parameters::take_gradients(self.block(), gradients)
    }

    fn replace(&mut self, values: &mut dyn FnMut(&str) -> Option<NewValue>) {
        self.map(|block| parameters::replace(block, values));
    }

    fn initialize(&mut self, seed: u64, name: &str) {
        self.map(|block| initialize(block, seed, name));
    }

    fn free_dropped_graphs(&self) {
        parameters::touch(self.block());
    }

    fn train(&mut self) {
        self.map(Module::train);
    }

    fn device(&self) -> Option<Device> {
        self.block().devices().into_iter().next()
    }

    fn cost(&self) -> f64 {
        self.block().cost()
    }

    fn valid(&self) -> Box<dyn AnyBlock> {
        Box::new(Self(Some(self.block().valid())))
    }
}
