//! Backward passes that begin with a gradient.

#![allow(clippy::unwrap_used)]

#[path = "common/devices.rs"]
mod devices;

use brigade_kernels::with_gradient;
use burn::tensor::Tensor;
use devices::devices;

#[test]
fn a_given_gradient_is_that_of_the_output() {
    for (name, device, ..) in devices() {
        let in_graph = device.clone().autodiff();
        let [x, y] = [[1.0f32, -2.0, 3.0, 0.5, 4.0], [2.0, 3.0, 0.0, -1.0, 0.25]]
            .map(|numbers| Tensor::<1>::from_floats(numbers, &in_graph).require_grad());
        let given = || Tensor::<1>::from_floats([0.5, 1.0, -2.0, 4.0, 8.0], device);
        let first = with_gradient(x.clone() * y.clone(), given());
        // As for a block with two outputs.
        let root = first + with_gradient(x.clone() * 3.0, given());
        let gradients = root.backward();
        let of = |leaf: &Tensor<1>| leaf.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(of(&x), [2.5, 6.0, -6.0, 8.0, 26.0], "{name}");
        assert_eq!(of(&y), [0.5, -2.0, -6.0, 2.0, 32.0], "{name}");
    }
}
