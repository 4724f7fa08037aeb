//! Parameters that are not trained, by themselves and shared, on any mesh.

use brigade::core::compress::GatherCodes;
use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{
    Chain, Engine, EngineSettings, ForwardContext, Groups, Model, NamedTensor, ParameterGroup, Precision,
    Recompute, Zero,
};
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::Tensor;
use burn::tensor::activation::tanh;

use crate::layers::{Layer, Layers, adamw, linear, squared_error, step};
use crate::mesh::{on_threads, same_bits};
use crate::resume::Saved;
use crate::row::MIXED;

/// Four layers: the first is frozen, the third reads the first's weight, the fourth the second's.
fn model() -> Model<Tensor<2>, Tensor<2>, Tensor<2>> {
    let layer = || Layer { linear: linear() };
    Chain::new()
        .then("a", layer().no_grad())
        .then("b", layer())
        .then("c", layer())
        .then("d", layer())
        .tie("c.linear.weight", "a.linear.weight")
        .tie("d.linear.weight", "b.linear.weight")
        .loss(squared_error)
}

fn zero(stage: u8) -> Zero {
    Zero { stage, ..Zero::default() }
}

fn engine(groups: Groups, zero: Zero, precision: Precision) -> Layers {
    let settings = EngineSettings { zero, precision, ..EngineSettings::default() };
    Engine::new(model(), 3, &adamw(), groups, settings).unwrap()
}

fn trained(groups: Groups, zero: Zero, precision: Precision) -> (Vec<NamedTensor>, Vec<NamedTensor>) {
    let mut engine = engine(groups.clone(), zero, precision);
    let before = engine.tensors(0).unwrap();
    (0..3).for_each(|number| drop(step(&mut engine, zero, &groups, number)));
    (before, engine.tensors(0).unwrap())
}

/// Trains on one mesh, with other frozen values than the model begins with, goes on on another one, and ends as if it had
/// never stopped.
pub fn goes_on(from: (usize, usize), to: (usize, usize), stage: u8) {
    let saved = on_threads(from.0, from.1, |groups| {
        let (mut engine, zero) = (engine(groups.clone(), zero(stage), Precision::default()), zero(stage));
        step(&mut engine, zero, &groups, 0);
        engine.snapshot().unwrap().read().unwrap()
    });
    let saved = Saved::of(saved).with_frozen(0.25);
    let frozen = |groups: Groups| {
        let (mut engine, zero) = (engine(groups.clone(), zero(stage), Precision::default()), zero(stage));
        engine.restore(1, &mut &saved).unwrap();
        (1..3).for_each(|number| drop(step(&mut engine, zero, &groups, number)));
        engine.tensors(0).unwrap()
    };
    let what = format!("from {from:?} to {to:?}, ZeRO-{stage}");
    let one = frozen(Groups::single_rank());
    assert!(
        one[1].name == "a.linear.weight" && one[1].data.iter::<f32>().all(|value| value == 0.25),
        "{what}"
    );
    same_bits(&on_threads(to.0, to.1, frozen)[0], &one, &what);
}

#[test]
fn frozen_parameters_stay_and_are_shared() {
    let (before, after) = trained(Groups::single_rank(), zero(0), Precision::default());
    let names: Vec<_> = after.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "a.linear.bias",
            "a.linear.weight",
            "b.linear.bias",
            "b.linear.weight",
            "c.linear.bias",
            "d.linear.bias"
        ]
    );
    same_bits(&after[..2], &before[..2], "the frozen layer");
    assert!((2..6).all(|index| after[index].data.as_bytes() != before[index].data.as_bytes()));
    on_every_mesh(&before, &after, Precision::default());
}

fn on_every_mesh(before: &[NamedTensor], after: &[NamedTensor], precision: Precision) {
    (0..4).for_each(|stage| on_every_mesh_with(before, after, zero(stage), precision));
}

fn on_every_mesh_with(before: &[NamedTensor], after: &[NamedTensor], zero: Zero, precision: Precision) {
    for (pp, dp) in [(1, 2), (2, 1), (2, 2), (4, 1), (3, 2), (1, 4)] {
        let outcomes = on_threads(pp, dp, |groups| trained(groups, zero, precision));
        let what = |when: &str| format!("{when}, pp {pp} x dp {dp}, {zero:?}, {precision:?}");
        same_bits(&outcomes[0].0, before, &what("at first"));
        same_bits(&outcomes[0].1, after, &what("trained"));
    }
}

#[test]
fn frozen_parameters_take_the_compute_type() {
    let (before, after) = trained(Groups::single_rank(), zero(0), MIXED);
    let in_bf16 = |tensor: &NamedTensor| tensor.data.iter::<f32>().all(|value| value.to_bits() & 0xffff == 0);
    assert_eq!(before.iter().map(in_bf16).collect::<Vec<_>>(), [true, true, false, false, false, false]);
    same_bits(&after[..2], &before[..2], "the frozen layer");
    on_every_mesh(&before, &after, MIXED);
}

/// They are gathered as codes like the others, and saved as they are.
#[test]
fn frozen_parameters_are_gathered_as_codes() {
    for precision in [Precision::default(), MIXED] {
        let coded = Zero { gather_codes: GatherCodes::Int8, ..zero(3) };
        let (plain, _) = trained(Groups::single_rank(), zero(0), precision);
        let (before, after) = trained(Groups::single_rank(), coded, precision);
        same_bits(&before, &plain, "masters");
        same_bits(&after[..2], &before[..2], "the frozen layer");
        on_every_mesh_with(&before, &after, coded, precision);
    }
}

#[test]
fn frozen_parameters_are_sharded() {
    // Six units (a, its shared weight, b, its shared weight, c, d) of one chunk of 256 elements on each of four ranks, the
    // first two frozen, and nothing gathered between steps.
    for (precision, bytes) in [(Precision::default(), 256 * 6 * 4), (MIXED, 256 * (2 * 2 + 4 * 4))] {
        let live = on_threads(1, 4, |groups| {
            let (mut engine, zero) = (engine(groups.clone(), zero(3), precision), zero(3));
            step(&mut engine, zero, &groups, 0);
            engine.memory().parameters.live
        });
        assert_eq!(live, [bytes; 4], "{precision:?}");
    }
}

/// Four layers, of which groups freeze the first two, and the first has dropout. Each looks whether its input's gradient is wanted.
fn frozen_at_first(
    groups: Groups,
    recompute: Recompute,
    schedule: PipelineScheduleKind,
    zero: Zero,
) -> Vec<NamedTensor> {
    let layer = |index: usize| {
        move |layer: &(Linear, Dropout), x: Tensor<2>, context: &ForwardContext<'_>| {
            assert!(!context.training || x.is_tracked() == (index > 2), "layer {index}");
            tanh(layer.0.forward(layer.1.forward(x)))
        }
    };
    let dropout = |index: usize| DropoutConfig::new(if index == 0 { 0.25 } else { 0.0 }).init();
    let add = |chain: Chain<_, _>, index: usize| {
        chain.then_fn_with(format!("{index}"), (linear(), dropout(index)), layer(index))
    };
    let model = (0..4).fold(Chain::new(), add).loss(squared_error);
    let frozen = ParameterGroup { frozen: true, ..ParameterGroup::matching("[01].*") };
    let chunks = if schedule == PipelineScheduleKind::Zbv { 2 } else { 1 };
    let settings = EngineSettings {
        zero,
        recompute,
        schedule,
        chunks,
        groups: vec![frozen],
        ..EngineSettings::default()
    };
    let mut engine = Engine::new(model, 3, &adamw(), groups.clone(), settings).unwrap();
    let before = engine.tensors(0).unwrap();
    (0..3).for_each(|number| drop(step(&mut engine, zero, &groups, number)));
    let after = engine.tensors(0).unwrap();
    if !after.is_empty() {
        same_bits(&after[..4], &before[..4], "frozen layers");
        assert!((4..8).all(|index| after[index].data.as_bytes() != before[index].data.as_bytes()));
    }
    after
}

#[test]
fn no_gradient_flows_to_what_comes_before_the_first_parameter_that_is_trained() {
    use PipelineScheduleKind::{GPipe, OneFOneB, ZbH1, Zbv};
    let run = |groups: Groups, recompute, schedule, stage| {
        frozen_at_first(groups, recompute, schedule, zero(stage))
    };
    let expected = run(Groups::single_rank(), Recompute::None, OneFOneB, 0);
    for recompute in [Recompute::None, Recompute::Every(1)] {
        for (pp, dp, schedule, stage) in [
            (1, 2, OneFOneB, 0),
            (1, 2, OneFOneB, 3),
            (2, 1, OneFOneB, 0),
            (4, 1, GPipe, 0),
            (2, 2, OneFOneB, 2),
            (3, 1, ZbH1, 0),
            (2, 1, Zbv, 0),
        ] {
            let all = on_threads(pp, dp, |groups| run(groups, recompute, schedule, stage));
            let what = format!("{recompute:?}, pp {pp} x dp {dp}, {schedule:?}, ZeRO-{stage}");
            same_bits(&all[0], &expected, &what);
        }
    }
}
