//! What a program brings of its own to an update: any elementwise optimizer, groups of parameters, weights of targets, and gradient
//! hooks, with the bits of one process on any mesh, also where training goes on on another one.

mod groups;
mod hooks;
mod optimizers;
mod weights;

use std::ops::Range;
use std::sync::Arc;

use brigade::core::{
    Batch, Block, Chain, DATA, Engine, EngineSettings, Groups, Model, NamedTensor, OptimizerFactory,
    ParameterGroup, Result, StepReport, Strategy, Synchronous, UnitGradient, Zero,
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData, activation::tanh};

use crate::mesh::{on_threads, same_bits};
use crate::resume::Saved;

/// A layer has 420 values: with ZeRO, two ranks have a part of each, and of four ranks two have padding alone.
pub const WIDTH: usize = 20;
const ROWS: usize = 3;
/// The learning rate.
pub const RATE: f64 = 1e-2;
/// Micro-batches of a step of all ranks.
const MICRO_BATCHES: usize = 4;

#[derive(Module, Debug)]
pub struct Layer {
    linear: Linear,
}

impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        tanh(self.linear.forward(x))
    }
}

pub fn layer() -> Layer {
    Layer { linear: LinearConfig::new(WIDTH, WIDTH).init(&brigade_cpu::device().autodiff()) }
}

/// The last column of the target has the weights of the rows.
pub fn loss(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let rows = output.dims()[0];
    let errors = (output - target.clone().slice([0..rows, 0..WIDTH])).square().sum_dim(1);
    (errors * target.slice([0..rows, WIDTH..WIDTH + 1])).reshape([rows]).sum_dim(0)
}

/// A micro-batch by its number, with the weights of its rows.
pub fn values(number: usize, weights: &[f32]) -> (Tensor<2>, Tensor<2>) {
    let rows = weights.len();
    let value = |i: usize, salt: usize| (((i + salt) * (number + 3) * 7919 % 101) as f32 - 50.0) / 50.0;
    let tensor = |values: Vec<f32>, width: usize| {
        Tensor::from_data(TensorData::new(values, [rows, width]), &brigade_cpu::device())
    };
    let target =
        (0..rows).flat_map(|row| (0..WIDTH).map(move |i| value(row * WIDTH + i, 7)).chain([weights[row]]));
    (tensor((0..rows * WIDTH).map(|i| value(i, 0)).collect(), WIDTH), tensor(target.collect(), WIDTH + 1))
}

pub type Rows = Batch<Tensor<2>, Tensor<2>>;
type Hook = fn(&UnitGradient<'_>, Tensor<1>) -> Tensor<1>;

/// What is trained, and how.
#[derive(Clone)]
pub struct Case {
    pub optimizer: OptimizerFactory,
    pub groups: Vec<ParameterGroup>,
    pub layer_decay: f64,
    pub hook: Option<Hook>,
    pub batch: fn(usize) -> Rows,
    pub clipping: Option<f64>,
    pub every: usize,
}

impl Default for Case {
    fn default() -> Self {
        let adamw = AdamWConfig::new().with_epsilon(1e-8);
        Self {
            optimizer: OptimizerFactory::with_weight_decay(0.1, move |decay| {
                adamw.clone().with_weight_decay(decay).build()
            }),
            groups: Vec::new(),
            layer_decay: 1.0,
            hook: None,
            batch: |number| {
                let (input, target) = values(number, &[1.0; ROWS]);
                Batch::new(input, target, ROWS)
            },
            clipping: None,
            every: 1,
        }
    }
}

/// Pipeline stages, data-parallel ranks, and the stage of ZeRO.
pub type On = (usize, usize, u8);

pub const ALONE: On = (1, 1, 0);
const MESHES: [On; 7] = [(1, 2, 0), (1, 2, 1), (1, 2, 3), (2, 1, 0), (2, 2, 3), (1, 4, 2), (4, 1, 0)];

/// What a rank has in the end.
pub struct Outcome {
    pub weights: Vec<NamedTensor>,
    pub reports: Vec<StepReport>,
    pub saved: Saved,
}

pub type LayerEngine = Engine<Tensor<2>, Tensor<2>, Tensor<2>>;

impl Case {
    fn model(&self) -> Model<Tensor<2>, Tensor<2>, Tensor<2>> {
        ["b", "c", "d"]
            .into_iter()
            .fold(Chain::new().then("a", layer()), |chain, name| chain.then(name, layer()))
            .loss(loss)
    }

    pub fn engine(&self, groups: Groups, stage: u8) -> Result<LayerEngine> {
        let strategy: Arc<dyn Strategy> = Arc::new(Synchronous { every: self.every });
        let settings = EngineSettings {
            zero: Zero { stage, ..Zero::default() },
            groups: self.groups.clone(),
            layer_decay: self.layer_decay,
            gradient_clipping: self.clipping,
            strategy,
            ..EngineSettings::default()
        };
        let mut engine = Engine::new(self.model(), 3, &self.optimizer, groups, settings)?;
        if let Some(hook) = self.hook {
            engine.on_gradient(hook);
        }
        Ok(engine)
    }

    /// This rank's share of the micro-batches of a step, counted from 0.
    pub fn batches(&self, groups: &Groups, stage: u8, step: usize) -> Vec<Rows> {
        let (zero, count) = (Zero { stage, ..Zero::default() }, MICRO_BATCHES / groups.over(&DATA).size());
        let (update, before) = (step / self.every, step % self.every * count);
        let number =
            |k| zero.micro_batch_number(groups.mesh(), groups.world().rank(), before + k, self.every * count);
        (0..count).map(|k| (self.batch)(MICRO_BATCHES * self.every * update + number(k))).collect()
    }

    /// Where no unit is sharded, what is drawn from Burn's generator is what one process draws; where units are, it is the same in each run.
    pub fn draws_alike(&self, what: &str) {
        let trained = |on| self.train(on, None, 0..3).weights;
        let one = trained(ALONE);
        for on in [(1, 2, 0), (1, 4, 0), (2, 1, 0), (2, 2, 0)] {
            same_bits(&trained(on), &one, &format!("{what}, {on:?}"));
        }
        let sharded = trained((1, 2, 3));
        same_bits(&trained((1, 2, 3)), &sharded, &format!("{what}, again"));
        let is_same = |(a, b): (&NamedTensor, &NamedTensor)| a.data == b.data;
        assert!(!sharded.iter().zip(&one).all(is_same), "{what}: shards draw for themselves");
    }

    /// Trains these steps, from a saved state or from the start; gives what each rank has.
    pub fn train(&self, (pp, dp, stage): On, from: Option<&Saved>, steps: Range<usize>) -> Outcome {
        let ranks = on_threads(pp, dp, |groups| {
            let mut engine = self.engine(groups.clone(), stage).unwrap();
            if let Some(mut saved) = from {
                engine.restore(steps.start as u64, &mut saved).unwrap();
            }
            let mut reports = Vec::new();
            for step in steps.clone() {
                let batches = self.batches(&groups, stage, step);
                match engine.synchronizes() {
                    true => reports.push(engine.step(batches, RATE).unwrap()),
                    false => engine.accumulate(batches).unwrap(),
                }
            }
            let saved = engine.snapshot().unwrap().read().unwrap();
            (engine.tensors(0).unwrap(), reports, saved)
        });
        let (mut weights, mut reports, mut saved) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, (tensors, own, state)) in ranks.into_iter().enumerate() {
            if rank == 0 {
                (weights, reports) = (tensors, own);
            }
            saved.push(state);
        }
        Outcome { weights, reports, saved: Saved::of(saved) }
    }

    /// Trains on every mesh, and on every second one from what another had saved; gives what one process has.
    pub fn equals_one_process(&self, what: &str) -> Outcome {
        let half = 2 * self.every;
        let alone = self.train(ALONE, None, 0..2 * half);
        let same = |found: &Outcome, from: usize, what: &str| {
            same_bits(&found.weights, &alone.weights, what);
            found.saved.same(&alone.saved, what);
            for (a, b) in found.reports.iter().zip(&alone.reports[from..]) {
                assert_eq!(
                    (a.loss.to_bits(), a.grad_norm.to_bits()),
                    (b.loss.to_bits(), b.grad_norm.to_bits()),
                    "{what}"
                );
                assert_eq!(
                    (a.targets, a.target_weight.to_bits()),
                    (b.targets, b.target_weight.to_bits()),
                    "{what}"
                );
            }
        };
        let mut earlier = self.train(ALONE, None, 0..half);
        for mesh in MESHES {
            same(&self.train(mesh, None, 0..2 * half), 0, &format!("{what} on {mesh:?}"));
            same(
                &self.train(mesh, Some(&earlier.saved), half..2 * half),
                2,
                &format!("{what} goes on on {mesh:?}"),
            );
            earlier = self.train(mesh, None, 0..half);
        }
        same(&self.train(ALONE, Some(&earlier.saved), half..2 * half), 2, &format!("{what} goes on alone"));
        alone
    }
}

/// The values of a parameter.
pub fn of<'a>(weights: &'a [NamedTensor], name: &str) -> &'a [f32] {
    weights.iter().find(|tensor| tensor.name == name).unwrap().data.as_slice().unwrap()
}

#[test]
fn ranks_with_different_learning_rates_all_say_so() {
    for (rates, said) in [([0.1, 0.2], "0.2 (step 1, rank 1)"), ([f64::NAN; 2], "NaN (step 1, rank 0)")] {
        let errors = on_threads(1, 2, |groups| {
            let case = Case::default();
            let mut engine = case.engine(groups.clone(), 0).unwrap();
            let rate = rates[groups.world().rank()];
            engine.step(case.batches(&groups, 0, 0), rate).unwrap_err()
        });
        for error in errors {
            assert!(error.is_agreed() && error.to_string().contains(said), "{error}");
        }
    }
}
