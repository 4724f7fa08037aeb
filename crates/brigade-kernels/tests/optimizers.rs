//! Steps of the fused optimizers have the bits of Burn's.

#![allow(clippy::unwrap_used)]

use brigade_kernels::{AdamWConfig, set_fused};
use burn::optim::Optimizer;
use burn::tensor::{Device, Tensor};

/// Some values after each of five steps.
fn steps(optimizer: &impl Optimizer, elements: usize) -> Vec<Vec<f32>> {
    let device = Device::flex();
    let values = |salt: usize| -> Tensor<1> {
        let value = |i: usize| ((i + salt) * 7919 % 1009) as f32 * 1e-3 - 0.5;
        Tensor::from_floats((0..elements).map(value).collect::<Vec<_>>().as_slice(), &device)
    };
    let (mut parameter, mut state) = (values(1), None);
    let step = |step: usize| {
        // A part of a buffer, as shards are.
        let gradient = Tensor::cat(vec![values(7), values(100 + step)], 0).slice(elements..2 * elements);
        (parameter, state) = optimizer.step(1e-2, parameter.clone(), gradient, state.take());
        parameter.clone().into_data().try_to_vec::<f32>().unwrap()
    };
    (0..5).map(step).collect()
}

#[test]
fn adamw_is_burns() {
    for (elements, weight_decay) in [(1, 0.1), (15, 0.0), (64, 0.1), (1003, 0.3)] {
        let config = AdamWConfig {
            beta_1: 0.9,
            beta_2: 0.95,
            epsilon: 1e-8,
            weight_decay,
            cautious_weight_decay: false,
            amsgrad: false,
        };
        let burn = burn::optim::AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(1e-8);
        let expected = steps(&burn.with_weight_decay(weight_decay).build(), elements);
        assert!(steps(&config.build(), elements) == expected, "{elements}");
        let highest = burn::optim::AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(1e-8);
        let highest = highest.with_weight_decay(weight_decay).with_amsgrad(true).build();
        let fused = AdamWConfig { amsgrad: true, ..config };
        assert!(steps(&fused.build(), elements) == steps(&highest, elements), "amsgrad, {elements}");
        set_fused(false);
        assert!(steps(&config.build(), elements) == expected, "by Burn's operations, {elements}");
        set_fused(true);
    }
}
