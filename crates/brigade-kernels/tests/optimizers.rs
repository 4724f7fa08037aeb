//! Steps of the fused optimizers have the bits of Burn's.

#![allow(clippy::unwrap_used)]

#[path = "common/devices.rs"]
mod devices;

use brigade_kernels::{
    AdamW, AdamWConfig, LionConfig, ScaledStep, SgdConfig, StepRun, set_fused, square_sums,
};
use burn::optim::{
    self, Optimizer, RecordState, StateSink, decay::WeightDecayConfig, momentum::MomentumConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use devices::devices;

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

/// On devices with kernels, where a step need not have the same bits.
#[test]
fn adamw_on_a_device_is_near_burns() {
    let config = AdamWConfig {
        beta_1: 0.9,
        beta_2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        cautious_weight_decay: false,
        amsgrad: false,
    };
    let (rate, scale) = (1e-2, 0.3);
    for (name, device, ..) in devices() {
        for elements in [1, 15, 64, 1003] {
            let values = |salt: usize, device: &Device| -> Tensor<1> {
                let value = |i: usize| ((i + salt) * 7919 % 1009) as f32 * 1e-3 - 0.5;
                Tensor::from_floats((0..elements).map(value).collect::<Vec<_>>().as_slice(), device)
            };
            let flex = Device::flex();
            let (mut found, mut expected) = (values(1, device), values(1, &flex));
            let (mut state, mut expected_state) = (None, None);
            for step in 0..5 {
                let slope = |device: &Device| values(100 + step, device);
                // Somebody else has the state, as a checkpoint that is being written does.
                let kept = state.clone();
                (found, state) = config.build().step_scaled(rate, found, slope(device), Some(scale), state);
                (expected, expected_state) =
                    config.build().step_scaled(rate, expected, slope(&flex), Some(scale), expected_state);
                drop(kept);
            }
            let floats = |tensor: &Tensor<1>| tensor.to_data().iter::<f32>().collect::<Vec<_>>();
            let near = |what: &str, a: &Tensor<1>, b: &Tensor<1>| {
                let near =
                    floats(a).iter().zip(floats(b)).all(|(a, b)| (a - b).abs() <= 2e-6 * b.abs().max(0.1));
                assert!(near, "{what} of {elements} on {name}");
            };
            near("values", &found, &expected);
            let (state, expected_state) = (state.unwrap().momentum, expected_state.unwrap().momentum);
            near("the first moment", &state.moment_1, &expected_state.moment_1);
            near("the second moment", &state.moment_2, &expected_state.moment_2);
        }
    }
}

#[test]
fn sums_of_squares_on_a_device_are_those_of_chunks_without_rounding() {
    for (name, device, ..) in devices() {
        for (elements, scale) in
            [(1usize, 1.0f32), (7, 1e-3), (8, 1.0), (9, 1e9), (64, 1e-18), (100_003, 1.0)]
        {
            let of = |salt: usize| -> Vec<f32> {
                (0..elements).map(|i| ((i * 7919 + salt) % 1009) as f32 * 1e-3 * scale).collect()
            };
            let (first, second) = (of(0), of(5));
            let tensor = |values: &[f32]| Tensor::<1>::from_floats(values, device);
            let Some(sums) = square_sums(&[tensor(&first), tensor(&second)], 8) else {
                assert_eq!(*name, "cpu");
                continue;
            };
            let [sets, exponents, parts] = sums.dims();
            assert_eq!([sets, exponents, parts], [1, 256, 2]);
            let sums: Vec<u32> = sums.into_data().iter::<u32>().collect();
            let value = |exponent: usize, sum: f64| sum * 2f64.powi(exponent.max(1) as i32 - 150);
            let found: f64 = sums
                .chunks(2)
                .enumerate()
                .map(|(exponent, pair)| value(exponent, 4096.0 * f64::from(pair[1]) + f64::from(pair[0])))
                .sum();
            let exact: f64 = first.iter().chain(&second).map(|value| f64::from(*value).powi(2)).sum();
            // Eight squares of a chunk are rounded, subnormal ones perhaps to 0.
            let most = 4e-7 * exact + elements as f64 * 2f64.powi(-126);
            assert!((found - exact).abs() <= most, "{found} for {exact} of {elements} on {name}");
            // One by one, and in parts, they are the same whole numbers.
            let cut = (elements / 16) * 8;
            let parts = [&first[..cut], &first[cut..], &second].map(tensor);
            let parts = square_sums(&parts, 8).unwrap().into_data().iter::<u32>().collect::<Vec<_>>();
            assert!(parts == sums, "{elements} on {name}");
        }
        for spoiled in [f32::NAN, f32::INFINITY, 1e30] {
            let mut values = vec![0.5f32; 30];
            values[17] = spoiled;
            let Some(sums) = square_sums(&[Tensor::from_floats(values.as_slice(), device)], 8) else {
                continue;
            };
            let sums: Vec<u32> = sums.into_data().iter::<u32>().collect();
            assert!(sums[510..].iter().any(|sum| *sum > 0), "{spoiled} on {name}");
        }
    }
}

#[test]
fn runs_in_one_pass_have_the_bits_of_each_alone() {
    let config = |weight_decay| AdamWConfig {
        beta_1: 0.9,
        beta_2: 0.95,
        epsilon: 1e-8,
        weight_decay,
        cautious_weight_decay: false,
        amsgrad: false,
    };
    let (decayed, plain) = (config(0.1).build(), config(0.0).build());
    for (name, device, ..) in devices() {
        if !AdamW::is_one_pass(&[&decayed, &plain], device) {
            assert_eq!(*name, "cpu");
            continue;
        }
        let other = AdamWConfig { beta_1: 0.8, ..config(0.0) }.build();
        assert!(!AdamW::is_one_pass(&[&decayed, &other], device), "they have other moments");
        for ends in [vec![64, 320, 1024], vec![7, 8, 100, 1003], vec![5]] {
            let elements = *ends.last().unwrap();
            let values = |salt: usize| -> Tensor<1> {
                let values: Vec<f32> =
                    (0..elements).map(|i| ((i + salt) * 7919 % 1009) as f32 * 1e-3 - 0.5).collect();
                Tensor::from_floats(values.as_slice(), device)
            };
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let settings = |index: usize| {
                (if index.is_multiple_of(2) { &decayed } else { &plain }, 1e-2 / (1 + index) as f64)
            };
            let ranges: Vec<_> = starts.zip(ends.iter().copied()).map(|(start, end)| start..end).collect();
            let (mut together, mut state) = (values(1), None);
            let (mut apart, mut states) = (values(1), vec![None; ranges.len()]);
            for step in 0..3 {
                let gradient = values(100 + step);
                let runs = ranges.iter().enumerate().map(|(index, range)| {
                    let (optimizer, learning_rate) = settings(index);
                    StepRun { start: range.start, optimizer, learning_rate }
                });
                let runs: Vec<_> = runs.collect();
                let of = [&together, &gradient];
                let found = AdamW::step_runs(&runs, of, Some(0.7), state.take()).unwrap();
                (together, state) = (found.0, Some(found.1));
                let mut stepped = Tensor::empty([elements], device);
                for (index, (range, state)) in ranges.iter().zip(&mut states).enumerate() {
                    let (optimizer, rate) = settings(index);
                    let of = [&apart, &gradient];
                    (stepped, *state) =
                        optimizer.step_part(rate, of, range.clone(), stepped, Some(0.7), state.take());
                }
                apart = stepped;
            }
            let bits =
                |tensor: &Tensor<1>| tensor.to_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(&together), bits(&apart), "{ends:?} on {name}");
            let moments: Vec<u32> =
                states.into_iter().flat_map(|state| bits(&state.unwrap().momentum.moment_2)).collect();
            assert_eq!(bits(&state.unwrap().momentum.moment_2), moments, "{ends:?} on {name}");
        }
    }
}
