//! Steps of the fused optimizers have the bits of Burn's.

#![allow(clippy::unwrap_used)]

use brigade_kernels::{AdamWConfig, LionConfig, ScaledStep, SgdConfig, set_fused};
use burn::optim::{
    self, Optimizer, RecordState, StateSink, decay::WeightDecayConfig, momentum::MomentumConfig,
};
use burn::tensor::{Device, Tensor, TensorData};

/// The bits of some values after each of five steps, and of the state's arrays with their names.
fn steps(optimizer: &impl Optimizer, elements: usize, zero: f32) -> Vec<Vec<(String, Vec<u32>)>> {
    steps_by(elements, zero, |rate, values, gradient, state| optimizer.step(rate, values, gradient, state))
}

fn steps_by<S: RecordState>(
    elements: usize,
    zero: f32,
    step: impl Fn(f64, Tensor<1>, Tensor<1>, Option<S>) -> (Tensor<1>, Option<S>),
) -> Vec<Vec<(String, Vec<u32>)>> {
    let device = Device::flex();
    let values = |salt: usize| -> Tensor<1> {
        let value = |i: usize| match (i + salt) % 5 {
            0 => zero,
            _ => ((i + salt) * 7919 % 1009) as f32 * 1e-3 - 0.5,
        };
        Tensor::from_floats((0..elements).map(value).collect::<Vec<_>>().as_slice(), &device)
    };
    let bits = |data: TensorData| data.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let (mut parameter, mut state) = (values(1), None);
    let step = |number: usize| {
        // A part of a buffer, as shards are.
        let gradient = Tensor::cat(vec![values(7), values(100 + number)], 0).slice(elements..2 * elements);
        (parameter, state) = step(1e-2, parameter.clone(), gradient, state.take());
        let mut arrays = StateSink::default();
        state.as_ref().unwrap().state_flatten("", &mut arrays);
        let arrays = arrays.tensors.into_iter().map(|(name, data)| (name, bits(data)));
        std::iter::once(("values".to_owned(), bits(parameter.clone().into_data()))).chain(arrays).collect()
    };
    (0..5).map(step).collect()
}

/// Compares an optimizer with Burn's, fused and not, and its scaling with a multiplication before; every fifth value and slope is this zero.
fn is_burns(fused: &impl ScaledStep, burn: &impl Optimizer, zero: f32, what: &str) {
    for elements in [1, 15, 64, 1003] {
        let expected = steps(burn, elements, zero);
        let scaled = steps_by(elements, zero, |rate, values, gradient, state| {
            burn.step(rate, values, gradient.mul_scalar(0.3), state)
        });
        for is_fused in [true, false] {
            set_fused(is_fused);
            assert!(steps(fused, elements, zero) == expected, "{what}, {elements}, fused: {is_fused}");
            let found = steps_by(elements, zero, |rate, values, gradient, state| {
                fused.step_scaled(rate, values, gradient, Some(0.3), state)
            });
            assert!(found == scaled, "{what}, scaled, {elements}, fused: {is_fused}");
        }
        set_fused(true);
    }
}

#[test]
fn adamw_is_burns() {
    for (weight_decay, amsgrad) in [(0.1, false), (0.0, false), (0.3, true)] {
        let config = AdamWConfig {
            beta_1: 0.9,
            beta_2: 0.95,
            epsilon: 1e-8,
            weight_decay,
            cautious_weight_decay: false,
            amsgrad,
        };
        let burn = optim::AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(1e-8);
        let burn = burn.with_weight_decay(weight_decay).with_amsgrad(amsgrad).build();
        // Of a negative zero, the first step's first moment is a positive one.
        is_burns(&config.build(), &burn, 0.0, &format!("{config:?}"));
    }
}

#[test]
fn lion_is_burns() {
    for weight_decay in [0.0, 0.1] {
        let config = LionConfig { beta_1: 0.9, beta_2: 0.99, weight_decay };
        let burn =
            optim::LionConfig::new().with_beta_1(0.9).with_beta_2(0.99).with_weight_decay(weight_decay);
        is_burns(&config.build(), &burn.build(), -0.0, &format!("{config:?}"));
    }
}

#[test]
fn sgd_is_burns() {
    for (momentum, dampening, nesterov, weight_decay) in [
        (Some(0.9), 0.0, false, None),
        (Some(0.9), 0.1, false, Some(0.1)),
        (Some(0.8), 0.1, true, Some(0.2)),
        (None, 0.0, false, Some(0.1)),
    ] {
        let config = SgdConfig { momentum, dampening, nesterov, weight_decay };
        let with = |momentum: f32| {
            let config = MomentumConfig::new().with_momentum(f64::from(momentum));
            config.with_dampening(dampening).with_nesterov(nesterov)
        };
        let burn = optim::SgdConfig::new().with_momentum(momentum.map(with));
        let burn = burn.with_weight_decay(weight_decay.map(WeightDecayConfig::new)).build();
        is_burns(&config.build(), &burn, -0.0, &format!("{config:?}"));
    }
}
