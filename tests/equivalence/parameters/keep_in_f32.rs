//! Parameters that are fp32 in forward and backward though the others are bf16, trained, frozen and shared, on any mesh.

use brigade::core::plan::{BoundaryTensor, Configuration, UnitSize};
use brigade::core::{
    Block, Chain, DATA, Dtype, Engine, EngineSettings, Groups, Model, NamedTensor, PP, Precision, Recompute,
    StepReport, Zero,
};
use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{DType, FloatDType, Tensor, activation::tanh};

use crate::footprint::counts_are_as_planned;
use crate::layers::{Layers, WIDTH, adamw, batch, linear, squared_error, step};
use crate::mesh::{on_threads, same_bits};
use crate::resume::Saved;
use crate::row::MIXED;

/// A norm and a linear layer; the norm computes in fp32 if it is kept in it.
#[derive(Module, Debug)]
struct Normed {
    norm: LayerNorm,
    linear: Linear,
    keeps: bool,
}

impl Block for Normed {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let compute = x.dtype();
        assert_eq!(self.linear.weight.val().dtype(), compute);
        if !self.keeps {
            return tanh(self.linear.forward(self.norm.forward(x)));
        }
        assert_eq!(self.norm.gamma.val().dtype(), DType::F32);
        let normed = self.norm.forward(x.cast(FloatDType::F32));
        tanh(self.linear.forward(normed.cast(FloatDType::from(compute))))
    }

    fn keep_in_f32(&self, path: &str) -> bool {
        self.keeps && path.starts_with("norm.")
    }
}

fn normed(keeps: bool) -> Normed {
    let norm = LayerNormConfig::new(WIDTH).init(&brigade_cpu::device().autodiff());
    Normed { norm, linear: linear(), keeps }
}

/// Four blocks: the second is frozen, the third has the first's scales and the fourth the second's.
fn chain(keeps: bool) -> Chain<Tensor<2>, Tensor<2>> {
    Chain::new()
        .then("a", normed(keeps))
        .then("b", normed(keeps).no_grad())
        .then("c", normed(keeps))
        .then("d", normed(keeps))
        .tie("c.norm.gamma", "a.norm.gamma")
        .tie("d.norm.gamma", "b.norm.gamma")
}

fn model(keeps: bool) -> Model<Tensor<2>, Tensor<2>, Tensor<2>> {
    chain(keeps).loss(squared_error)
}

#[derive(Debug, Clone, Copy)]
struct Run {
    zero: Zero,
    precision: Precision,
    recompute: Recompute,
}

impl Run {
    fn of(precision: Precision) -> Self {
        Self { zero: Zero::default(), precision, recompute: Recompute::None }
    }

    fn engine(&self, groups: Groups) -> Layers {
        let Self { zero, precision, recompute } = *self;
        let settings = EngineSettings { zero, precision, recompute, ..EngineSettings::default() };
        Engine::new(model(true), 3, &adamw(), groups, settings).unwrap()
    }

    /// The gradients of the first step, and the weights and the losses of three.
    fn trained(&self, groups: &Groups) -> (Vec<NamedTensor>, Vec<NamedTensor>, Vec<StepReport>) {
        let mut engine = self.engine(groups.clone());
        let count = 4 / groups.over(&DATA).size();
        let number = |k| self.zero.micro_batch_number(groups.mesh(), groups.world().rank(), k, count);
        let batches: Vec<_> = (0..count).map(|k| batch(number(k))).collect();
        let (_, gradients) = engine.gradients(&batches, 0).unwrap();
        let reports = (0..3).map(|number| step(&mut engine, self.zero, groups, number)).collect();
        (gradients, engine.tensors(0).unwrap(), reports)
    }
}

const MESHES: [(usize, usize); 6] = [(1, 2), (2, 1), (2, 2), (4, 1), (3, 2), (1, 4)];

#[test]
fn every_mesh_has_the_same_bits() {
    for precision in [MIXED, Precision::default()] {
        let run = Run::of(precision);
        let (gradients, weights, reports) = run.trained(&Groups::single_rank());
        let trained: Vec<_> = gradients.iter().map(|tensor| tensor.name.as_str()).collect();
        assert!(trained.contains(&"a.norm.gamma") && !trained.contains(&"b.norm.gamma"), "{trained:?}");
        for (pp, dp) in MESHES {
            for stage in 0..4 {
                for recompute in [Recompute::None, Recompute::Every(1)] {
                    let run = Run { zero: Zero { stage, ..Zero::default() }, recompute, ..run };
                    let ranks = on_threads(pp, dp, |groups| run.trained(&groups));
                    let what = format!("pp {pp} x dp {dp}, {run:?}");
                    same_bits(&ranks[0].0, &gradients, &what);
                    same_bits(&ranks[0].1, &weights, &what);
                    for (given, expected) in ranks[0].2.iter().zip(&reports) {
                        let bits = |report: &StepReport| (report.loss.to_bits(), report.grad_norm.to_bits());
                        assert_eq!(bits(given), bits(expected), "{what}");
                    }
                }
            }
        }
    }
}

/// What is kept computes with more bits than the rest, and frozen values are not rounded.
#[test]
fn kept_parameters_are_not_rounded() {
    let weights = |kept: bool| {
        let settings = EngineSettings { precision: MIXED, ..EngineSettings::default() };
        let mut engine = Engine::new(model(kept), 3, &adamw(), Groups::single_rank(), settings).unwrap();
        let saved = Saved::of(vec![engine.snapshot().unwrap().read().unwrap()]).with_frozen(1.0 / 3.0);
        engine.restore(0, &mut &saved).unwrap();
        step(&mut engine, Zero::default(), &Groups::single_rank(), 0);
        engine.tensors(0).unwrap()
    };
    let (kept, rounded) = (weights(true), weights(false));
    let first = |tensors: &[NamedTensor], name: &str| {
        let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
        tensor.data.iter::<f32>().next().unwrap()
    };
    assert_eq!(first(&kept, "b.norm.gamma"), 1.0 / 3.0);
    assert_ne!(first(&rounded, "b.norm.gamma"), 1.0 / 3.0);
    assert_ne!(first(&kept, "b.linear.weight"), 1.0 / 3.0);
    let differs = |name: &str| first(&kept, name).to_bits() != first(&rounded, name).to_bits();
    assert!(differs("a.norm.beta") || differs("c.linear.weight"));
}

fn saved(run: Run, mesh: (usize, usize), from: Option<&Saved>, steps: std::ops::Range<usize>) -> Saved {
    Saved::of(on_threads(mesh.0, mesh.1, |groups| {
        let mut engine = run.engine(groups.clone());
        if let Some(mut saved) = from {
            engine.restore(steps.start as u64, &mut saved).unwrap();
        }
        steps.clone().for_each(|number| drop(step(&mut engine, run.zero, &groups, number)));
        engine.snapshot().unwrap().read().unwrap()
    }))
}

#[test]
fn a_checkpoint_goes_on_on_any_mesh_and_in_any_type() {
    let run = |precision, stage| Run { zero: Zero { stage, ..Zero::default() }, ..Run::of(precision) };
    for precision in [MIXED, Precision::default()] {
        let half = saved(run(precision, 0), (1, 1), None, 0..2);
        let whole = saved(run(precision, 0), (1, 1), Some(&half), 2..4);
        for (mesh, stage) in [((2, 2), 3), ((1, 4), 2), ((4, 1), 0), ((1, 2), 1)] {
            let what = format!("{mesh:?}, ZeRO-{stage}, {precision:?}");
            saved(run(precision, stage), mesh, None, 0..2).same(&half, &what);
            saved(run(precision, stage), mesh, Some(&half), 2..4).same(&whole, &what);
        }
    }
    // What is frozen and computes in bf16 is saved as it is held there; all else comes back to the bit.
    for (from, to) in [(MIXED, Precision::default()), (Precision::default(), MIXED)] {
        let given = saved(run(from, 0), (1, 2), None, 0..2).with_frozen(0.25);
        for (mesh, stage) in [((1, 1), 0), ((2, 2), 3), ((1, 4), 1)] {
            saved(run(to, stage), mesh, Some(&given), 2..2).same(&given, &format!("{from:?} to {to:?}"));
        }
    }
}

/// A model whose parameters are grouped in other units reads what was saved all the same.
#[test]
fn a_checkpoint_goes_on_when_other_parameters_are_kept() {
    let plain = || {
        let settings = EngineSettings { precision: MIXED, ..EngineSettings::default() };
        Engine::new(model(false), 3, &adamw(), Groups::single_rank(), settings).unwrap()
    };
    let state = |engine: &Layers| Saved::of(vec![engine.snapshot().unwrap().read().unwrap()]);
    let mut engine = plain();
    (0..2).for_each(|number| drop(step(&mut engine, Zero::default(), &Groups::single_rank(), number)));
    let (given, mut kept) = (state(&engine), Saved::default());
    for (mesh, stage) in [((1, 4), 3), ((2, 2), 2), ((1, 1), 0)] {
        let run = Run { zero: Zero { stage, ..Zero::default() }, ..Run::of(MIXED) };
        kept = saved(run, mesh, Some(&given), 2..2);
        let mut back = plain();
        back.restore(2, &mut &kept).unwrap();
        state(&back).same(&given, "there and back");
        same_bits(&back.tensors(0).unwrap(), &engine.tensors(0).unwrap(), "there and back");
    }
    let refused = plain().restore(2, &mut &kept.without_scalars("a:f32")).unwrap_err().to_string();
    assert!(refused.contains("`a` differ from the checkpoint"), "{refused}");
}

#[test]
fn shared_parameters_are_kept_by_all_or_none() {
    let chain =
        Chain::new().then("a", normed(true)).then("b", normed(false)).tie("b.norm.gamma", "a.norm.gamma");
    let why = chain.units(&[]).unwrap_err().to_string();
    assert!(why.contains("`b.norm.gamma`") && why.contains("keep_in_f32"), "{why}");
}

#[test]
fn units_are_known_before_anything_has_a_value() {
    let units = chain(true).units(&[]).unwrap();
    let engine = Run::of(MIXED).engine(Groups::single_rank());
    assert_eq!(units, engine.chain().units(&[]).unwrap());
    let summary = |unit: &UnitSize| (unit.owner_block, unit.elements, unit.trainable, unit.keep_in_f32);
    let (linear, width) = (WIDTH * WIDTH + WIDTH, WIDTH);
    assert_eq!(
        units.iter().map(summary).collect::<Vec<_>>(),
        [
            (0, linear, true, false),
            (0, width, true, true),
            (0, width, true, true),
            (1, linear, false, false),
            (1, width, false, true),
            (1, width, false, true),
            (2, linear, true, false),
            (2, width, true, true),
            (3, linear, true, false),
            (3, width, true, true),
        ]
    );
}

/// Frozen parameters have neither gradients nor optimizer state, and each parameter has the bytes of its type.
#[test]
fn bytes_are_as_planned() {
    for precision in [Precision::default(), MIXED] {
        for (pp, dp) in [(1, 1), (1, 2), (2, 2), (4, 1), (4, 2)] {
            for stage in 0..4 {
                for recompute in [Recompute::None, Recompute::Every(1)] {
                    let zero = Zero { stage, ..Zero::default() };
                    let run = Run { zero, precision, recompute };
                    let ranks = on_threads(pp, dp, |groups| {
                        let (_, _, reports) = run.trained(&groups);
                        (groups.over(&[PP]).rank(), groups.over(&DATA).rank(), reports)
                    });
                    let bytes = (3 * WIDTH * precision.compute.bytes()) as u64;
                    let boundary = BoundaryTensor { bytes, dimensions: 2, has_gradient: true };
                    let configuration = Configuration {
                        units: chain(true).units(&[]).unwrap(),
                        boundary_activations: vec![vec![boundary]; 4],
                        pp,
                        dp,
                        split: vec![4 / pp; pp],
                        micro_batches: 4 / dp,
                        zero_stage: stage,
                        reshard: zero.reshard_policy(pp),
                        prefetch: zero.prefetch,
                        reduce_each_micro_batch: zero.reduces_each_micro_batch(),
                        recompute_every: usize::from(recompute != Recompute::None),
                        compute_bytes: precision.compute.bytes(),
                        reduce_bytes: Dtype::F32.bytes(),
                        ..Configuration::default()
                    };
                    counts_are_as_planned(configuration, &ranks, &format!("pp {pp} x dp {dp}, {run:?}"));
                }
            }
        }
    }
}
