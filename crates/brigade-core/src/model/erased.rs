//! A module and how it is run, as a block with its types erased.

use std::any::TypeId;

use brigade_kernels::{DeferredGradient, DeferredGradients, cast};
use brigade_sorted::SortedMap;
use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Gradients, Tensor};

use crate::error::{Error, Result};
use crate::model::activation::{Activation, Parts, flatten, restore};
use crate::model::block::AnyBlock;
use crate::model::cache::BlockCache;
use crate::model::context::ForwardContext;
use crate::model::parameters::initialization::initialize;
use crate::model::parameters::precision::Dtype;
use crate::model::parameters::{self, NewValue, ParamValue, ParameterSpec, Unfit};
use crate::model::random_state::with_seed;
use crate::model::run::Run;
use crate::model::split_forward::{ErasedBackwardWeights, SplitForward};

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

    fn unfit(&self) -> Option<(String, Unfit)> {
        parameters::unfit(self.module())
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

    fn devices(&self) -> Vec<Device> {
        self.module().devices()
    }

    fn cost(&self) -> f64 {
        self.run.cost(self.module())
    }

    fn valid(&self) -> Box<dyn AnyBlock> {
        Box::new(Self { module: Some(self.module().valid()), run: self.run.clone() })
    }

    fn copy_with_values(&self, compute: Dtype, device: Option<Device>) -> Box<dyn AnyBlock> {
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
            (!keep && flat.dtype() != compute.dtype().into()).then(|| (cast(flat, compute.dtype()), shape))
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
