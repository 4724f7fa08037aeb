//! Batch norm, unchanged: its running statistics are those of one process that runs all micro-batches in their order, on any mesh.

use brigade::core::{
    Batch, Chain, DP, EngineSettings, Groups, Mesh, Model, NamedTensor, NonFinite, PP, REPLICATE, WORKERS,
};
use burn::module::{Module, RunningState};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor, activation::relu};

use crate::case::{Case, MICRO_BATCHES, floats};
use crate::mesh::{on_mesh, on_threads};
use crate::row::MIXED;
use crate::strategies::local_updates::averaging;

pub type Convolution = (Conv2d, BatchNorm);

fn device() -> Device {
    brigade_cpu::device().autodiff()
}

pub fn convolution(inputs: usize, outputs: usize) -> Convolution {
    let conv = Conv2dConfig::new([inputs, outputs], [3, 3]).init(&device());
    (conv, BatchNormConfig::new(outputs).with_momentum(0.3).init(&device()))
}

fn convolve((conv, norm): &Convolution, x: Tensor<4>) -> Tensor<4> {
    relu(norm.forward(conv.forward(x)))
}

pub fn head(linear: &Linear, x: Tensor<4>) -> Tensor<2> {
    linear.forward(x.mean_dim(3).mean_dim(2).flatten::<2>(1, 3))
}

pub fn loss(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (output - target).square().sum()
}

pub fn images() -> Model<Tensor<4>, Tensor<2>, Tensor<2>> {
    Chain::new()
        .then_fn("stem", convolution(1, 3), convolve)
        .then_fn("body", convolution(3, 4), convolve)
        .then_fn("last", convolution(4, 4), convolve)
        .then_fn("head", LinearConfig::new(4, 2).init(&device()), head)
        .loss(loss)
}

pub fn batch(number: usize) -> Batch<Tensor<4>, Tensor<2>> {
    Batch::new(floats(number, 1, [3, 1, 8, 8]), floats(number, 2, [3, 2]), 3)
}

pub fn named<'a>(tensors: &'a [NamedTensor], name: &str) -> &'a [f32] {
    tensors.iter().find(|tensor| tensor.name == name).unwrap().data.as_slice::<f32>().unwrap()
}

#[test]
fn statistics_have_the_same_bits_on_every_mesh() {
    let one = Case { model: images, batch }.equals_one_process();
    assert!(named(&one.weights, "stem.1.running_mean").iter().all(|value| *value != 0.0));
    assert!(named(&one.weights, "last.1.running_var").iter().all(|value| *value != 1.0));
    // They are no parameters: nothing is their gradient.
    assert!(one.gradients.iter().all(|tensor| !tensor.name.contains("running")));
}

/// A layer that half of the micro-batches pass by in training, drawn as dropout is.
fn sometimes(norm: &BatchNorm, x: Tensor<4>) -> Tensor<4> {
    let drawn = Tensor::<1>::random([1], Distribution::Uniform(0.0, 1.0), &x.device());
    let is_passed_by = x.device().is_autodiff() && drawn.into_scalar::<f64>() > 0.5;
    if is_passed_by { x } else { norm.forward(x) }
}

fn of_stochastic_depth() -> Model<Tensor<4>, Tensor<2>, Tensor<2>> {
    let norm = || BatchNormConfig::new(3).with_momentum(0.3).init(&device());
    Chain::new()
        .then_fn("stem", convolution(1, 3), convolve)
        .then_fn("first", norm(), sometimes)
        .then_fn("second", norm(), sometimes)
        .then_fn("last", convolution(3, 4), convolve)
        .then_fn("head", LinearConfig::new(4, 2).init(&device()), head)
        .loss(loss)
}

#[test]
fn statistics_that_some_micro_batches_do_not_change_have_the_same_bits_on_every_mesh() {
    let one = Case { model: of_stochastic_depth, batch }.equals_one_process();
    for path in ["first.running_mean", "second.running_mean"] {
        assert!(named(&one.weights, path).iter().all(|value| *value != 0.0), "{path}");
    }
}

/// By then it is taken to be frozen.
#[test]
fn state_that_changes_for_the_first_time_after_many_micro_batches_is_refused() {
    let model = || {
        let norm = BatchNormConfig::new(1).init(&device());
        Chain::new()
            .then_fn_with(
                "late",
                norm,
                |norm, x: Tensor<4>, context| if context.step > 9 { norm.forward(x) } else { x },
            )
            .then_fn("last", convolution(1, 4), convolve)
            .then_fn("head", LinearConfig::new(4, 2).init(&device()), head)
            .loss(loss)
    };
    let case = Case { model, batch };
    let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
    let mut step = |step| engine.step(case.batches(Default::default(), &Groups::single_rank(), step), 0.0);
    (0..9).for_each(|number| drop(step(number).unwrap()));
    let refused = step(9).unwrap_err().to_string();
    assert!(
        refused.contains("`late.running_mean` is running state that micro-batches change in different ways"),
        "{refused}"
    );
}

/// Only later micro-batches tell how the state changes, and what the first has left is not its term.
#[test]
fn a_micro_batch_too_large_to_learn_from_is_refused_beside_others() {
    let case = Case { model: images, batch };
    for sizes in [[1e14, 1.0], [1.0, 1e14]] {
        let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
        let batches = [0, 1].map(|number| {
            let Batch { input, target, valid_targets, .. } = batch(number);
            Batch::new(input.mul_scalar(sizes[number]), target, valid_targets)
        });
        let step = engine.step(batches.to_vec(), 0.0);
        match sizes[0] > 1.0 {
            true => {
                let refused = step.unwrap_err().to_string();
                assert!(
                    refused.contains("running_mean` cannot be updated: in a micro-batch it was not finite")
                        && !refused.contains(":running"),
                    "{refused}"
                );
            }
            false => drop(step.unwrap()),
        }
    }
}

#[test]
fn a_running_minimum_of_negative_numbers_is_refused() {
    #[derive(Module, Debug)]
    struct Observer {
        low: RunningState<Tensor<1>>,
    }
    fn observe(observer: &Observer, x: Tensor<4>) -> Tensor<4> {
        let lowest = x.clone().inner().flatten::<1>(0, 3).min().sub_scalar(10.0);
        observer.low.update(observer.low.value_sync().min_pair(lowest));
        x
    }
    let model = || {
        Chain::new()
            .then_fn(
                "observer",
                Observer { low: RunningState::new(Tensor::zeros([1], &device().inner())) },
                observe,
            )
            .then_fn("last", convolution(1, 4), convolve)
            .then_fn("head", LinearConfig::new(4, 2).init(&device()), head)
            .loss(loss)
    };
    let case = Case { model, batch };
    let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
    let batches = case.batches(Default::default(), &Groups::single_rank(), 0);
    let refused = engine.step(batches, 0.0).unwrap_err().to_string();
    assert!(refused.contains("running state that ranks cannot merge, `low`"), "{refused}");
}

#[test]
fn statistics_are_those_of_a_plain_program() {
    are_those_of_a_plain_program(1.0);
}

/// As of measurements in their own units: a variance of 1e24.
#[test]
fn statistics_of_large_values_are_those_of_a_plain_program() {
    are_those_of_a_plain_program(1e12);
}

/// What Burn itself does with the micro-batches of two steps, one after the other, without an optimizer.
fn are_those_of_a_plain_program(scale: f32) {
    let batch = |number: usize| {
        let Batch { input, target, valid_targets, .. } = batch(number);
        Batch::new(input * scale, target, valid_targets)
    };
    let case = Case { model: images, batch };
    let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
    for step in 0..2 {
        engine.step(case.batches(Default::default(), &Groups::single_rank(), step), 0.0).unwrap();
    }
    let found = engine.tensors(0).unwrap();

    let mut model = images();
    model.chain_mut().initialize(11).unwrap();
    let weights = model.chain().tensors().unwrap();
    let norms: Vec<(Conv2d, BatchNorm)> = [("stem", 1, 3), ("body", 3, 4), ("last", 4, 4)]
        .into_iter()
        .map(|(name, inputs, outputs)| {
            let conv = crate::blocks::dropout::filled(
                convolution(inputs, outputs).0,
                &format!("{name}.0"),
                &|path| weights.iter().find(|tensor| tensor.name == path).unwrap().data.clone(),
            );
            (conv, convolution(inputs, outputs).1)
        })
        .collect();
    for number in 0..2 * MICRO_BATCHES {
        let mut x = Tensor::<4>::from_data(batch(number).input.into_data(), &device());
        for layer in &norms {
            x = convolve(layer, x);
        }
    }
    for ((_, norm), name) in norms.iter().zip(["stem", "body", "last"]) {
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for (state, path) in [(&norm.running_mean, "running_mean"), (&norm.running_var, "running_var")] {
            let ours = named(&found, &format!("{name}.1.{path}")).to_vec();
            assert_eq!(
                bits(ours),
                bits(state.value_sync().into_data().try_to_vec().unwrap()),
                "{name} {path}"
            );
        }
    }
}

#[test]
fn evaluation_uses_them() {
    let case = Case { model: images, batch };
    let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
    let before = engine.evaluate(1, |_| Ok(batch(50))).unwrap().loss;
    // Nothing is learned: only the statistics change.
    engine.step(case.batches(Default::default(), &Groups::single_rank(), 0), 0.0).unwrap();
    let after = engine.evaluate(1, |_| Ok(batch(50))).unwrap().loss;
    assert_ne!(before.to_bits(), after.to_bits());
    let chain = engine.chain().valid();
    let predicted = loss(chain.predict(batch(50).input).unwrap(), batch(50).target).into_scalar::<f32>();
    assert_eq!(predicted / 3.0, after as f32);
}

/// Workers of local SGD, which make two steps of their own and then continue from the mean.
#[test]
fn workers_meet_with_the_mean_of_their_statistics() {
    let case = Case { model: images, batch };
    let own = |worker: usize, step: usize| -> Vec<_> {
        let first = MICRO_BATCHES * (2 * step + worker);
        (first..first + MICRO_BATCHES).map(batch).collect()
    };
    let alone = [0, 1].map(|worker| {
        let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
        (0..2).for_each(|step| drop(engine.step(own(worker, step), 1e-2).unwrap()));
        engine.tensors(0).unwrap()
    });
    let mesh = Mesh::new(2, [(WORKERS, 2), (PP, 1), (REPLICATE, 1), (DP, 1)]).unwrap();
    let met = on_mesh(&mesh, |groups| {
        let worker = groups.mesh().coordinate(groups.world().rank(), WORKERS);
        let settings = EngineSettings { strategy: averaging(2), ..EngineSettings::default() };
        let mut engine = case.engine(groups, settings).unwrap();
        engine.inner_step(own(worker, 0), 1e-2).unwrap();
        engine.step(own(worker, 1), 1e-2).unwrap();
        engine.tensors(0).unwrap()
    });
    for tensor in &met[0] {
        let [a, b] = [0, 1].map(|worker| named(&alone[worker], &tensor.name));
        let mean: Vec<u32> = a.iter().zip(b).map(|(a, b)| ((a + b) / 2.0).to_bits()).collect();
        let found: Vec<u32> = named(&met[0], &tensor.name).iter().map(|value| value.to_bits()).collect();
        assert_eq!(found, mean, "{}", tensor.name);
        let moved = a.iter().zip(b).any(|(a, b)| a != b);
        assert!(moved || !tensor.name.contains("running"), "{}", tensor.name);
    }
}

#[test]
fn a_step_that_is_skipped_leaves_them() {
    for (pp, dp) in [(1, 1), (1, 2), (2, 1)] {
        let found = on_threads(pp, dp, |groups| {
            let settings = EngineSettings { on_nonfinite: NonFinite::Skip, ..EngineSettings::default() };
            let case = Case { model: images, batch };
            let mut engine = case.engine(groups.clone(), settings.clone()).unwrap();
            engine.step(case.batches(settings.zero, &groups, 0), 1e-2).unwrap();
            let before = engine.tensors(0).unwrap();
            let mut bad = case.batches(settings.zero, &groups, 1);
            bad.iter_mut().for_each(|batch| batch.target = batch.target.clone() * f32::NAN);
            assert!(engine.step(bad, 1e-2).unwrap().skipped);
            (before, engine.tensors(0).unwrap())
        });
        crate::mesh::same_bits(&found[0].1, &found[0].0, "a skipped step");
    }
}

/// From the first step on, when nobody knows yet how the state is updated.
#[test]
fn an_input_that_is_no_number_is_skipped_as_in_any_model() {
    for (pp, dp) in [(1, 1), (1, 2), (2, 1)] {
        let found = on_threads(pp, dp, |groups| {
            let settings = EngineSettings { on_nonfinite: NonFinite::Skip, ..EngineSettings::default() };
            let case = Case { model: images, batch };
            let mut engine = case.engine(groups.clone(), settings.clone()).unwrap();
            let before = engine.tensors(0).unwrap();
            let mut bad = case.batches(settings.zero, &groups, 0);
            bad[0].input = bad[0].input.clone() * f32::NAN;
            assert!(engine.step(bad, 1e-2).unwrap().skipped);
            let skipped = engine.tensors(0).unwrap();
            engine.step(case.batches(settings.zero, &groups, 1), 1e-2).unwrap();
            (before, skipped, engine.tensors(0).unwrap())
        });
        crate::mesh::same_bits(&found[0].1, &found[0].0, "a skipped step");
        assert!(
            named(&found[0].2, "stem.1.running_mean").iter().all(|value| *value != 0.0 && value.is_finite())
        );
    }
}

/// A batch norm that is frozen uses its statistics in training and leaves them, beside one that is not.
#[test]
fn a_frozen_batch_norm_stays_as_it_is() {
    let model = || {
        let (conv, norm) = convolution(1, 4);
        let mixed = ((conv, norm.freeze()), convolution(4, 4));
        type Mixed = (Convolution, Convolution);
        Chain::new()
            .then_fn("mixed", mixed, |(a, b): &Mixed, x| convolve(b, convolve(a, x)))
            .then_fn("body", convolution(4, 4), convolve)
            .then_fn("more", LinearConfig::new(4, 2).init(&device()), head)
            .then_fn("head", LinearConfig::new(2, 2).init(&device()), |linear: &Linear, x| linear.forward(x))
            .loss(loss)
    };
    let one = Case { model, batch }.equals_one_process();
    assert_eq!(named(&one.weights, "mixed.0.1.running_mean"), [0.0; 4]);
    assert_eq!(named(&one.weights, "mixed.0.1.running_var"), [1.0; 4]);
    assert!(named(&one.weights, "mixed.1.1.running_mean").iter().all(|value| *value != 0.0));
}

/// In bf16 the statistics are kept in fp32, and equal on every mesh.
#[test]
fn statistics_in_mixed_precision() {
    let case = Case { model: images, batch };
    let settings = EngineSettings { precision: MIXED, ..EngineSettings::default() };
    let one = case.train(Groups::single_rank(), &settings, 0..2, None);
    for (pp, dp) in [(1, 2), (2, 2)] {
        let outcomes = on_threads(pp, dp, |groups| case.train(groups, &settings, 0..2, None));
        crate::mesh::same_bits(&outcomes[0].weights, &one.weights, "bf16");
    }
}

/// A small momentum is hardly a number in bf16. Nothing is learned, so statistics are those of the same values but for their rounding.
#[test]
fn statistics_in_mixed_precision_converge_to_those_in_fp32() {
    let model = || {
        let norm = BatchNormConfig::new(3).with_momentum(0.01).init(&device());
        Chain::new()
            .then_fn("stem", (convolution(1, 3).0, norm), convolve)
            .then_fn("head", LinearConfig::new(3, 2).init(&device()), head)
            .loss(loss)
    };
    let case = Case { model, batch };
    let [exact, mixed] = [EngineSettings::default().precision, MIXED].map(|precision| {
        let settings = EngineSettings { precision, ..EngineSettings::default() };
        let mut engine = case.engine(Groups::single_rank(), settings.clone()).unwrap();
        for step in 0..60 {
            engine.step(case.batches(settings.zero, &Groups::single_rank(), step), 0.0).unwrap();
        }
        engine.tensors(0).unwrap()
    });
    for name in ["stem.1.running_mean", "stem.1.running_var"] {
        for (found, expected) in named(&mixed, name).iter().zip(named(&exact, name)) {
            assert!(
                (found - expected).abs() < 0.01 * expected.abs().max(0.05),
                "{name}: {found}, not {expected}"
            );
        }
    }
}

/// Counts its calls, and more.
#[derive(Module, Debug)]
struct Counting {
    linear: Linear,
    state: RunningState<Tensor<1>>,
}

fn counting(update: fn(Tensor<1>) -> Tensor<1>, adds: bool) -> brigade::core::Result<Vec<f32>> {
    counting_from([2.0, 3.0], update, adds)
}

fn counting_from(
    start: [f32; 2],
    update: fn(Tensor<1>) -> Tensor<1>,
    adds: bool,
) -> brigade::core::Result<Vec<f32>> {
    let block = || Counting {
        linear: LinearConfig::new(4, 4).init(&device()),
        state: RunningState::new(Tensor::from_floats(start, &device())),
    };
    let model = move || {
        let run = move |block: &Counting, x: Tensor<2>| {
            let state = block.state.value_sync();
            block.state.update(update(state.clone()));
            let output = block.linear.forward(x);
            if adds { output + state.slice(0..1).unsqueeze() } else { output }
        };
        Chain::new().then_fn("counting", block(), run).loss(loss)
    };
    let batch = |number| Batch::new(floats(number, 1, [3, 4]), floats(number, 2, [3, 4]), 3);
    let case = Case { model, batch };
    let mut engine = case.engine(Groups::single_rank(), EngineSettings::default())?;
    engine.step(case.batches(Default::default(), &Groups::single_rank(), 0), 1e-2)?;
    Ok(named(&engine.tensors(0)?, "counting.state").to_vec())
}

#[test]
fn state_that_cannot_be_merged_is_named() {
    assert_eq!(counting(|state| state + 1.0, false).unwrap(), [6.0, 7.0], "a counter");
    assert_eq!(counting(|state| state, true).unwrap(), [2.0, 3.0], "a constant");
    assert_eq!(counting(|state| state * 0.5 + 1.0, false).unwrap(), [2.0, 2.0625], "an average");
    let message = counting(|state| state.square(), false).unwrap_err().to_string();
    assert!(
        message.contains("block `counting` has running state that ranks cannot merge, `state`"),
        "{message}"
    );
    let message = counting(|state| state + 1.0, true).unwrap_err().to_string();
    assert!(message.contains("its output in training depends on it"), "{message}");
}

/// From 0, what a forward makes of the state it begins with tells nothing of the factor.
#[test]
fn state_that_begins_at_zero_is_tested_as_any_other() {
    let from_zeros = |update| counting_from([0.0; 2], update, false);
    assert_eq!(from_zeros(|state| state * 0.5 + 1.0).unwrap(), [1.875; 2], "an average");
    for update in [(|state| state.clamp_min(0.75)) as fn(Tensor<1>) -> Tensor<1>, |state| {
        state.clone() + (state * -1.0 + 0.5).clamp_min(-4.0) * 0.25
    }] {
        let message = from_zeros(update).unwrap_err().to_string();
        assert!(message.contains("has running state that ranks cannot merge, `state`"), "{message}");
    }
}
