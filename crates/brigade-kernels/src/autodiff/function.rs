//! Functions with a backward pass of their own, in terms of Burn's tensors.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing};
use burn_flex::Flex;

use crate::autodiff::graph::{Operation, of_primitive, primitive, run};

/// A function of `N` float tensors that says itself what its gradients are, as PyTorch's `autograd.Function` does. [`apply_function`] runs it.
pub trait Function<const N: usize>: Debug + Send + 'static {
    /// What the backward pass needs.
    type Saved: Clone + Debug + Send + 'static;

    /// Additional outputs, without a gradient.
    type Extra;

    /// The result, what its backward needs, and additional outputs. No tensor is in a graph, here and in the backward.
    fn forward(&self, inputs: [DispatchTensor; N]) -> (DispatchTensor, Self::Saved, Self::Extra);

    /// From the gradient of the result, those of the inputs for which one is `wanted`.
    fn backward(
        self,
        saved: Self::Saved,
        gradient: DispatchTensor,
        wanted: [bool; N],
    ) -> [Option<DispatchTensor>; N];
}

/// Runs a function, as one step of the graph that its inputs are in.
///
/// # Panics
/// If an input is in a graph of a backend other than the CPU's, CUDA's (feature `cuda`) and wgpu's (feature `wgpu`).
pub fn apply_function<const N: usize, F: Function<N>>(
    function: F,
    inputs: [DispatchTensor; N],
) -> (DispatchTensor, F::Extra) {
    let inputs = inputs.each_ref();
    let run = run_on::<Flex, NoCheckpointing, N, F>(function, inputs)
        .or_else(|function| run_on::<Flex, BalancedCheckpointing, N, F>(function, inputs));
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    let run = run
        .or_else(|function| run_on::<burn::backend::Cube, NoCheckpointing, N, F>(function, inputs))
        .or_else(|function| run_on::<burn::backend::Cube, BalancedCheckpointing, N, F>(function, inputs));
    match run {
        Ok(found) => found,
        Err(function) => panic!("{function:?} does not run on the device of its inputs"),
    }
}

fn run_on<B, C, const N: usize, F>(
    function: F,
    inputs: [&DispatchTensor; N],
) -> Result<(DispatchTensor, F::Extra), F>
where
    B: Backend,
    C: CheckpointStrategy,
    F: Function<N>,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B, C>>,
{
    run::<B, C, N, _>(On { function, backend: PhantomData::<fn() -> B> }, inputs).map_err(|on| on.function)
}

/// A function on tensors as one backend has them.
#[derive(Debug)]
struct On<F, B> {
    function: F,
    backend: PhantomData<fn() -> B>,
}

impl<const N: usize, F, B> Operation<N, B::FloatTensorPrimitive> for On<F, B>
where
    F: Function<N>,
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    type Saved = F::Saved;
    type Extra = F::Extra;

    fn forward(
        &self,
        inputs: [B::FloatTensorPrimitive; N],
        wanted: [bool; N],
    ) -> (B::FloatTensorPrimitive, Option<F::Saved>, F::Extra) {
        let (output, saved, extra) = self.function.forward(inputs.map(of_primitive::<B>));
        (of_function::<B>(&output), wanted.contains(&true).then_some(saved), extra)
    }

    fn backward(
        self,
        saved: F::Saved,
        gradient: B::FloatTensorPrimitive,
        wanted: [bool; N],
    ) -> [Option<B::FloatTensorPrimitive>; N] {
        let found = self.function.backward(saved, of_primitive::<B>(gradient), wanted);
        found.map(|gradient| gradient.as_ref().map(of_function::<B>))
    }
}

fn of_function<B: Backend>(tensor: &DispatchTensor) -> B::FloatTensorPrimitive
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match primitive::<B>(tensor) {
        Some(tensor) => tensor,
        None => panic!(
            "a function's result is not a float tensor on the device of its inputs, outside of any graph"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    /// x² · y, with twice the gradient that x has.
    #[derive(Debug)]
    struct Product;

    impl Function<2> for Product {
        type Saved = [Tensor<2>; 2];
        type Extra = usize;

        fn forward(&self, inputs: [DispatchTensor; 2]) -> (DispatchTensor, [Tensor<2>; 2], usize) {
            let [x, y] = inputs.map(Tensor::<2>::from_dispatch);
            assert!(!x.device().is_autodiff() && !y.device().is_autodiff());
            let output = x.clone().square() * y.clone();
            (output.into_dispatch(), [x, y], 7)
        }

        fn backward(
            self,
            [x, y]: [Tensor<2>; 2],
            gradient: DispatchTensor,
            wanted: [bool; 2],
        ) -> [Option<DispatchTensor>; 2] {
            let gradient = Tensor::<2>::from_dispatch(gradient);
            let d_x = wanted[0].then(|| (gradient.clone() * x.clone() * y * 4.0).into_dispatch());
            [d_x, wanted[1].then(|| (gradient * x.square()).into_dispatch())]
        }
    }

    fn product(x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        let (output, extra) = apply_function(Product, [x.into_dispatch(), y.into_dispatch()]);
        assert_eq!(extra, 7);
        Tensor::from_dispatch(output)
    }

    fn values(tensor: Tensor<2>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn its_gradients_are_its_own_in_any_graph() {
        gradients_on(Device::flex());
        #[cfg(feature = "wgpu")]
        match Device::wgpu_options().init() {
            Ok(device) => gradients_on(device),
            Err(error) => assert!(std::env::var("BRIGADE_REQUIRE_WGPU").as_deref() != Ok("1"), "{error}"),
        }
    }

    fn gradients_on(plain: Device) {
        let numbers = |device: &Device| Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], device);
        assert_eq!(values(product(numbers(&plain), numbers(&plain))), [1.0, 8.0, 27.0, 64.0]);
        for device in [plain.clone().autodiff(), plain.clone().autodiff().gradient_checkpointing()] {
            let [x, y] = [(); 2].map(|()| numbers(&device).require_grad());
            let gradients = (product(x.clone() * 1.0, y.clone()) * 3.0).sum().backward();
            assert_eq!(values(x.grad(&gradients).unwrap()), [12.0, 48.0, 108.0, 192.0]);
            assert_eq!(values(y.grad(&gradients).unwrap()), [3.0, 12.0, 27.0, 48.0]);
            // Constants have none, in the graph or out of it.
            for constant in [numbers(&device), numbers(&plain)] {
                let y = numbers(&device).require_grad();
                let gradients = product(constant, y.clone()).sum().backward();
                assert_eq!(values(y.grad(&gradients).unwrap()), [1.0, 4.0, 9.0, 16.0]);
            }
        }
    }
}
