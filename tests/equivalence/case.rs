//! A model of any blocks with its data, which must train to the same bits on any mesh, recomputed and resumed.

use std::ops::Range;

use brigade::checkpoints::{UnitMetadata, WriteItem};
use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{
    Activation, Batch, DATA, Engine, EngineSettings, Groups, Model, NamedTensor, Recompute, Zero,
};
use burn::tensor::{Int, Tensor, TensorData};

use crate::layers::adamw;
use crate::mesh::{on_threads, same_bits};
use crate::resume::Saved;

/// Micro-batches of a global batch.
pub const MICRO_BATCHES: usize = 4;
const STEPS: usize = 3;
const SEED: u64 = 11;

/// A model and its micro-batches by number.
pub struct Case<M, B> {
    pub model: M,
    pub batch: B,
}

/// What a rank has in the end.
pub struct Outcome {
    /// Of each step, the loss and the norm; then the loss of an evaluation.
    pub figures: Vec<u64>,
    /// Of the first step; on rank 0.
    pub gradients: Vec<NamedTensor>,
    pub weights: Vec<NamedTensor>,
    pub saved: (Vec<UnitMetadata>, Vec<WriteItem>),
}

impl<M, B, I, O, T> Case<M, B>
where
    M: Fn() -> Model<I, O, T> + Sync,
    B: Fn(usize) -> Batch<I, T> + Sync,
    I: Activation + Clone,
    O: Activation,
    T: Clone + 'static,
{
    pub fn engine(&self, groups: Groups, settings: EngineSettings) -> brigade::core::Result<Engine<I, O, T>> {
        Engine::new((self.model)(), SEED, &adamw(), groups, settings)
    }

    /// This rank's micro-batches of a step, counted from 0.
    pub fn batches(&self, zero: Zero, groups: &Groups, step: usize) -> Vec<Batch<I, T>> {
        let count = MICRO_BATCHES / groups.over(&DATA).size();
        let number = |k| zero.micro_batch_number(groups.mesh(), groups.world().rank(), k, count);
        (0..count).map(|k| (self.batch)(MICRO_BATCHES * step + number(k))).collect()
    }

    pub fn train(
        &self,
        groups: Groups,
        settings: &EngineSettings,
        steps: Range<usize>,
        from: Option<&Saved>,
    ) -> Outcome {
        let (zero, mut engine) = (settings.zero, self.engine(groups.clone(), settings.clone()).unwrap());
        if let Some(mut saved) = from {
            // What an engine held before does not matter.
            engine.step(self.batches(zero, &groups, 77), 1e-2).unwrap();
            engine.restore(steps.start as u64, &mut saved).unwrap();
        }
        let gradients = engine.gradients(&self.batches(zero, &groups, steps.start), 0).unwrap().1;
        let mut figures = Vec::new();
        for step in steps {
            let report = engine.step(self.batches(zero, &groups, step), 1e-2).unwrap();
            figures.extend([report.loss.to_bits(), report.grad_norm.to_bits()]);
        }
        let data = groups.over(&DATA);
        let own: Vec<_> = (0..MICRO_BATCHES).filter(|index| index % data.size() == data.rank()).collect();
        let evaluation = engine.evaluate(own.len(), |k| Ok((self.batch)(1000 + own[k]))).unwrap();
        figures.push(evaluation.loss.to_bits());
        let saved = engine.snapshot().unwrap().read().unwrap();
        Outcome { figures, gradients, weights: engine.tensors(0).unwrap(), saved }
    }

    /// One process's outcome, which that of each mesh with its settings must equal to the bit.
    pub fn equals_one_process_on(&self, meshes: &[((usize, usize), EngineSettings)]) -> Outcome {
        self.equals_one_process_of(&EngineSettings::default(), meshes)
    }

    /// The same where one process has these settings.
    fn equals_one_process_of(
        &self,
        base: &EngineSettings,
        meshes: &[((usize, usize), EngineSettings)],
    ) -> Outcome {
        let one = self.train(Groups::single_rank(), base, 0..STEPS, None);
        for (mesh, settings) in meshes {
            let what = format!("{mesh:?}, {settings:?}");
            let outcomes = on_threads(mesh.0, mesh.1, |groups| self.train(groups, settings, 0..STEPS, None));
            same(&outcomes, &one, &what);
        }
        one
    }

    /// One process's outcome, which every mesh's must equal to the bit, and that of runs that are stopped and go on elsewhere.
    pub fn equals_one_process(&self) -> Outcome {
        self.equals_one_process_with(&EngineSettings::default())
    }

    /// The same with these settings everywhere, but for those that spread a run.
    pub fn equals_one_process_with(&self, base: &EngineSettings) -> Outcome {
        let one = self.equals_one_process_of(base, &settings(base));
        let part = |mesh: (usize, usize), stage, steps: Range<usize>, from: Option<&Saved>| {
            let settings = EngineSettings { zero: Zero { stage, ..Zero::default() }, ..base.clone() };
            on_threads(mesh.0, mesh.1, |groups| self.train(groups, &settings, steps.clone(), from))
        };
        let state =
            |outcomes: Vec<Outcome>| Saved::of(outcomes.into_iter().map(|outcome| outcome.saved).collect());
        let whole = state(part((1, 1), 0, 0..1, None));
        for (mesh, stage, next, next_stage) in
            [((2, 2), 3, (1, 1), 0), ((1, 4), 1, (2, 1), 0), ((2, 1), 0, (1, 4), 3)]
        {
            let saved = state(part(mesh, stage, 0..1, None));
            saved.same(&whole, &format!("the state after a step on {mesh:?}"));
            let outcomes = part(next, next_stage, 1..STEPS, Some(&saved));
            let what = format!("from {mesh:?} to {next:?}");
            let last = &one.figures[2..];
            assert!(outcomes.iter().all(|outcome| outcome.figures == last), "{what}: figures");
            same_bits(&outcomes[0].weights, &one.weights, &what);
        }
        one
    }
}

pub fn same(outcomes: &[Outcome], one: &Outcome, what: &str) {
    for outcome in outcomes {
        assert_eq!(outcome.figures, one.figures, "{what}: losses, norms and evaluation");
    }
    same_bits(&outcomes[0].gradients, &one.gradients, &format!("{what}: gradients"));
    same_bits(&outcomes[0].weights, &one.weights, &format!("{what}: weights"));
}

/// Meshes, each with settings: every ZeRO stage, schedule and recomputation at least once.
fn settings(base: &EngineSettings) -> Vec<((usize, usize), EngineSettings)> {
    use PipelineScheduleKind::{GPipe, Interleaved, OneFOneB, ZbH1, ZbH2, Zbv};
    let of = |stage, recompute, schedule, chunks| EngineSettings {
        zero: Zero { stage, ..Zero::default() },
        recompute,
        schedule,
        chunks,
        ..base.clone()
    };
    vec![
        ((1, 1), of(0, Recompute::Every(1), OneFOneB, 1)),
        ((1, 2), of(0, Recompute::None, OneFOneB, 1)),
        ((1, 2), of(3, Recompute::Every(2), OneFOneB, 1)),
        ((1, 4), of(1, Recompute::Every(1), OneFOneB, 1)),
        ((2, 1), of(0, Recompute::None, GPipe, 1)),
        ((2, 1), of(0, Recompute::None, Interleaved, 2)),
        ((2, 2), of(3, Recompute::Every(1), Interleaved, 2)),
        ((2, 2), of(3, Recompute::None, OneFOneB, 1)),
        ((2, 2), of(2, Recompute::Every(1), OneFOneB, 1)),
        ((2, 1), of(1, Recompute::Every(1), ZbH1, 1)),
        ((2, 2), of(3, Recompute::None, ZbH2, 1)),
        ((2, 1), of(0, Recompute::None, Zbv, 2)),
    ]
}

/// A mesh for each way of distributing a block: replicas, stages, shards, and activation checkpointing.
pub fn one_mesh_each() -> Vec<((usize, usize), EngineSettings)> {
    let of = |stage, recompute| EngineSettings {
        zero: Zero { stage, ..Zero::default() },
        recompute,
        ..EngineSettings::default()
    };
    vec![
        ((1, 2), of(0, Recompute::None)),
        ((2, 1), of(0, Recompute::None)),
        ((1, 2), of(3, Recompute::None)),
        ((1, 1), of(0, Recompute::Every(1))),
    ]
}

/// Numbers between -1 and 1 that look random, by the number of a micro-batch.
pub fn floats<const D: usize>(number: usize, salt: usize, shape: [usize; D]) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let value = |i: usize| ((i * 31 + salt * 17 + number * 101 + 7) * 7919 % 211) as f32 / 105.5 - 1.0;
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), &brigade_cpu::device())
}

/// Numbers below `below`, by the number of a micro-batch.
pub fn ints<const D: usize>(number: usize, below: usize, shape: [usize; D]) -> Tensor<D, Int> {
    let count = shape.iter().product::<usize>();
    let values: Vec<i64> = (0..count).map(|i| ((i * 29 + number * 53 + 5) * 6007 % below) as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), &brigade_cpu::device())
}
