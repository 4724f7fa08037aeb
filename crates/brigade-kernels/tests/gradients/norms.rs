//! Norms.

use brigade_kernels::{layer_norm, rms_norm, rms_norm_above_one};
use burn::tensor::{DType, Device, Tensor};

use super::SIZES;
use super::common::{Case, check};

/// Parameters in fp32 beside activations in bf16.
#[test]
fn norms_with_parameters_of_another_type() {
    let device = Device::flex().autodiff();
    let case = Case::new([vec![3, 8], vec![8], vec![8]]);
    let [x, gamma, beta] = case.tensors(&device);
    let x = x.reshape([3, 8]).cast(DType::BF16);
    type Norm = fn(Tensor<2>, Tensor<1>, Tensor<1>) -> Tensor<2>;
    let norms: [Norm; 3] = [
        |x, gamma, beta| layer_norm(x, gamma, Some(beta), 1e-5),
        |x, gamma, _| rms_norm(x, gamma, 1e-5),
        |x, gamma, _| rms_norm_above_one(x, gamma, 1e-5),
    ];
    for norm in norms {
        let run = |x: Tensor<2>, wide: bool| {
            let (x, gamma) = (x.detach().require_grad(), gamma.clone().detach().require_grad());
            let input = if wide { x.clone().cast(DType::F32) } else { x.clone() };
            let output = norm(input, gamma.clone(), beta.clone());
            assert_eq!(output.dtype(), if wide { DType::F32 } else { DType::BF16 });
            let output = output.cast(DType::BF16);
            let gradients = output.clone().sum().backward();
            let gradients = [x.grad(&gradients).unwrap().reshape([24]), gamma.grad(&gradients).unwrap()];
            (output.into_data(), gradients.map(Tensor::into_data))
        };
        assert_eq!(run(x.clone(), false), run(x.clone(), true));
    }
}

#[test]
fn layer_norms() {
    for [rows, width, _] in SIZES.into_iter().filter(|[_, width, _]| *width > 1) {
        let case = Case::new([vec![rows, width], vec![width], vec![width]]);
        check(&case, |[x, gamma, beta]| layer_norm(x.reshape([rows, width]), gamma, Some(beta), 1e-5));
        let case = Case::new([vec![rows, width], vec![width]]);
        check(&case, |[x, gamma]| layer_norm(x.reshape([rows, width]), gamma, None, 1e-5));
        check(&case, |[x, gamma]| rms_norm(x.reshape([rows, width]), gamma, 1e-6));
        check(&case, |[x, gamma]| rms_norm_above_one(x.reshape([rows, width]), gamma, 1e-6));
    }
}

#[test]
fn what_is_added_to_one_counts_in_bf16() {
    let device = Device::flex();
    let x = Tensor::<2>::from_floats([[1.0, 2.0, 4.0, 8.0]], &device).cast(DType::BF16);
    let norm = |gamma: f32| {
        let gamma = Tensor::<1>::full([4], gamma, &device).cast(DType::BF16);
        rms_norm_above_one(x.clone(), gamma, 0.0).cast(DType::F32).into_data().try_to_vec::<f32>().unwrap()
    };
    // A tenth of bf16's distance between 1 and the next number, which decides where a product is rounded to.
    assert_ne!(norm(0.0), norm(0.0035));
}
