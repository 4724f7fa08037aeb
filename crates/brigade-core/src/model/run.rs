//! How a module is run: by its own [`Block`], or by a function beside it.

use std::marker::PhantomData;
use std::sync::Arc;

use burn::module::Module;

use crate::model::activation::Activation;
use crate::model::block::Block;
use crate::model::cache::BlockCache;
use crate::model::context::ForwardContext;
use crate::model::split_forward::SplitForward;

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
