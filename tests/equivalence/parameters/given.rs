//! Parameters that have values before training.

use brigade::core::{Batch, Block, Chain, Engine, EngineSettings, Zero, with_seed};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Distribution, Int, Tensor};

use crate::case::floats;
use crate::layers::{adamw, squared_error};
use crate::mesh::on_threads;

/// Adds a number to each feature, and picks some of them in an order of its own.
#[derive(Module, Debug)]
struct Shift {
    by: Param<Tensor<1>>,
    order: Option<Param<Tensor<1, Int>>>,
}

impl Block for Shift {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        input + self.by.val().unsqueeze()
    }
}

fn shift(seed: u64) -> Shift {
    let device = brigade_cpu::device().autodiff();
    let draw = || Tensor::random([4], Distribution::Default, &device);
    Shift { by: Param::from_tensor(with_seed(&device, seed, draw)), order: None }
}

/// Why the engines of two ranks do not begin, if so, where they draw from these seeds.
fn begun(seeds: [u64; 2], stage: u8) -> Vec<Option<String>> {
    on_threads(1, 2, |groups| {
        let seed = seeds[groups.world().rank()];
        let model = Chain::new().then("same", shift(1)).then("own", shift(seed)).loss(squared_error);
        let zero = Zero { stage, ..Zero::default() };
        let settings = EngineSettings { zero, ..EngineSettings::default() };
        Engine::new(model, 0, &adamw(), groups, settings).err().map(|error| error.to_string())
    })
}

#[test]
fn ranks_begin_with_the_same_values_or_not_at_all() {
    for stage in [0, 3] {
        assert_eq!(begun([5, 5], stage), [None, None]);
        for error in begun([5, 6], stage) {
            let error = error.unwrap();
            assert!(error.contains("`own.by` has different values on rank 1 and rank 0"), "{error}");
        }
    }
}

/// A source that loads a part of the model leaves the rest to the program.
#[test]
fn what_is_not_loaded_is_compared() {
    let begun = |loaded: &'static str| {
        on_threads(1, 2, |groups| {
            let mut chain =
                Chain::new().then("same", shift(1)).then("own", shift(groups.world().rank() as u64));
            chain.load(move |name, _| Ok((name == loaded).then(|| vec![1.0; 4])));
            let model = chain.loss(squared_error);
            Engine::new(model, 0, &adamw(), groups, EngineSettings::default())
                .err()
                .map(|error| error.to_string())
        })
    };
    assert_eq!(begun("own.by"), [None, None]);
    for error in begun("same.by") {
        assert!(error.unwrap().contains("`own.by` has different values on rank 1"));
    }
}

#[test]
fn parameters_that_are_no_floats_are_refused_by_name() {
    let order = Tensor::from_ints([3, 1, 2, 0], &brigade_cpu::device());
    let order = Some(Param::initialized(ParamId::new(), order));
    let model = Chain::new().then("picked", Shift { order, ..shift(1) }).loss(squared_error);
    let groups = brigade::core::Groups::single_rank();
    let error = Engine::new(model, 0, &adamw(), groups, EngineSettings::default()).err().unwrap().to_string();
    assert!(error.contains("`picked.order` is a parameter of integers or booleans"), "{error}");
}

/// Passes its input on, with a number of its own.
#[derive(Module, Debug)]
struct Numbered {
    number: Param<Tensor<1>>,
}

impl Block for Numbered {
    type Input = Tensor<2>;
    type Output = (Tensor<2>, Tensor<1>);

    fn forward(&self, input: Tensor<2>) -> (Tensor<2>, Tensor<1>) {
        (input, self.number.val())
    }
}

/// Under ZeRO-3 the parameter's memory is emptied before losses and metrics are read.
#[test]
fn losses_and_metrics_may_be_parameters() {
    let run = |stage: u8| {
        on_threads(1, 2, |groups| {
            let number = Tensor::<1>::from_floats([1.5], &brigade_cpu::device().autodiff());
            let block = Numbered { number: Param::from_tensor(number) };
            let model = Chain::new().then("number", block).loss(|(_, number), _: Tensor<2>| number);
            let model = model.metric("number", |(_, number), _| number);
            let zero = Zero { stage, ..Zero::default() };
            let settings = EngineSettings { zero, ..EngineSettings::default() };
            let mut engine = Engine::new(model, 0, &adamw(), groups, settings).unwrap();
            let batch = || Batch::new(floats(0, 1, [2, 4]), floats(0, 2, [2, 4]), 2);
            let step = engine.step(vec![batch(), batch()], 1e-2).unwrap();
            let found = engine.evaluate(2, |_| Ok(batch())).unwrap();
            [step.loss, step.metrics["number"], found.loss, found.metrics["number"]]
        })
    };
    let expected = run(0);
    assert!(expected.iter().flatten().all(|value| *value > 0.7), "{expected:?}");
    assert_eq!(run(3), expected);
}
