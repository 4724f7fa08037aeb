//! A model of any blocks with its data, trained on a backend: on any mesh, recomputed, and stopped and gone on with elsewhere.

use std::collections::BTreeMap;
use std::ops::Range;

use brigade::checkpoints::{UnitMetadata, WriteItem};
use brigade::core::{
    Activation, Batch, BoxError, DATA, Dtype, Engine, EngineSettings, Groups, Model, NamedTensor, Recompute,
    StateReader, Zero,
};
use brigade::kernels::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::backend::Backend;
use crate::compare::{distance, near_together, same_bits};

/// Micro-batches of a global batch.
pub const MICRO_BATCHES: usize = 4;
const STEPS: usize = 3;
/// By SGD: what AdamW makes of a gradient that is hardly more than rounding tells nothing.
const RATE: f64 = 0.1;

/// A mesh of stages and data-parallel ranks, and how it is trained.
pub type Spread = ((usize, usize), EngineSettings);

/// A model and its micro-batches by number. Its initial weights do not follow from the seed of a run.
pub struct Case<M, B> {
    pub model: M,
    pub batch: B,
    /// Of the run: what is random in it follows from this.
    pub seed: u64,
}

/// What a rank has in the end.
pub struct Outcome {
    /// Of each step, the loss and the norm; then the loss of an evaluation.
    pub figures: Vec<f64>,
    /// Of the first step; on rank 0.
    pub gradients: Vec<NamedTensor>,
    /// On rank 0, as the rest.
    pub weights: Vec<NamedTensor>,
    /// The weights without the initial ones.
    pub learned: Vec<NamedTensor>,
    saved: (Vec<UnitMetadata>, Vec<WriteItem>),
}

pub fn of(stage: u8, recompute: Recompute) -> EngineSettings {
    EngineSettings { zero: Zero { stage, ..Zero::default() }, recompute, ..EngineSettings::default() }
}

/// Each way of distributing a block at least once: recomputed, in replicas, in stages, sharded.
fn spreads() -> [Spread; 5] {
    let all = Recompute::Every(1);
    [
        ((1, 1), of(0, all)),
        ((1, 2), of(0, Recompute::None)),
        ((2, 1), of(0, Recompute::None)),
        ((1, 2), of(3, Recompute::None)),
        ((2, 2), of(3, all)),
    ]
}

impl<M, B, I, O, T> Case<M, B>
where
    M: Fn(&Device) -> Model<I, O, T> + Sync,
    B: Fn(usize, &Device) -> Batch<I, T> + Sync,
    I: Activation + Clone,
    O: Activation,
    T: Clone + 'static,
{
    pub fn engine(&self, device: &Device, groups: Groups, settings: EngineSettings) -> Engine<I, O, T> {
        // Those that the CPU draws, on any device.
        let mut initial = (self.model)(&brigade_cpu::device());
        initial.chain_mut().initialize(5).unwrap();
        let initial = initial.chain().tensors().unwrap();
        let mut model = (self.model)(device);
        model.chain_mut().load(move |name, _| {
            let found = initial.iter().find(|tensor| tensor.name == name);
            Ok(found.map(|tensor| tensor.data.try_to_vec::<f32>().unwrap()))
        });
        let sgd = SgdConfig { momentum: Some(0.9), dampening: 0.0, nesterov: false, weight_decay: None };
        Engine::new(model, self.seed, &sgd.build().into(), groups, settings).unwrap()
    }

    /// Trains as a rank.
    pub fn train(
        &self,
        device: &Device,
        groups: Groups,
        settings: &EngineSettings,
        steps: Range<usize>,
        from: Option<&Saved>,
    ) -> Outcome {
        let mut engine = self.engine(device, groups.clone(), settings.clone());
        let start = engine.tensors(0).unwrap();
        if let Some(mut saved) = from {
            engine.restore(steps.start as u64, &mut saved).unwrap();
        }
        let data = groups.over(&DATA);
        let count = MICRO_BATCHES / data.size();
        let batches = |step: usize| -> Vec<Batch<I, T>> {
            let number = |k| settings.zero.micro_batch_number(groups.mesh(), groups.world().rank(), k, count);
            (0..count).map(|k| (self.batch)(MICRO_BATCHES * step + number(k), device)).collect()
        };
        let gradients = engine.gradients(&batches(steps.start), 0).unwrap().1;
        let mut figures = Vec::new();
        for step in steps {
            let report = engine.step(batches(step), RATE).unwrap();
            figures.extend([report.loss, report.grad_norm]);
        }
        let own: Vec<_> = (0..MICRO_BATCHES).filter(|index| index % data.size() == data.rank()).collect();
        let evaluation = engine.evaluate(own.len(), |k| Ok((self.batch)(1000 + own[k], device))).unwrap();
        figures.push(evaluation.loss);
        let saved = engine.snapshot().unwrap().read().unwrap();
        let weights = engine.tensors(0).unwrap();
        Outcome { figures, gradients, learned: difference(&weights, &start), weights, saved }
    }

    /// Trains every rank of a mesh on a thread.
    pub fn on(
        &self,
        backend: &Backend,
        (mesh, settings): &Spread,
        steps: Range<usize>,
        from: Option<&Saved>,
    ) -> Vec<Outcome> {
        backend.on_threads(mesh.0, mesh.1, |device, groups| {
            self.train(&device, groups, settings, steps.clone(), from)
        })
    }

    /// One process, all steps.
    pub fn alone(&self, backend: &Backend) -> Outcome {
        self.on(backend, &((1, 1), of(0, Recompute::None)), 0..STEPS, None).remove(0)
    }

    /// One process's outcome on a backend. A second run of it has the same bits, and so has every run of each mesh; all meshes, and runs that are stopped and go on
    /// on another mesh, have what it has.
    pub fn equals_one_process(&self, backend: &Backend) -> Outcome {
        if backend.times_kernels {
            self.alone(backend);
        }
        let one = self.alone(backend);
        has_bits_of(&self.alone(backend), &one, &format!("again, on {}", backend.name));
        for spread in spreads() {
            let what = format!("{:?} on {}, {:?}", spread.0, backend.name, spread.1);
            if backend.times_kernels {
                self.on(backend, &spread, 0..STEPS, None);
            }
            let found = self.on(backend, &spread, 0..STEPS, None);
            has_that_of(backend, &found, &one, 0, &what);
            if !backend.has_exact_sums {
                let again = self.on(backend, &spread, 0..STEPS, None);
                has_bits_of(&again[0], &found[0], &format!("again, {what}"));
            }
        }
        let none = Recompute::None;
        for (before, after) in
            [(((1, 2), of(3, none)), ((2, 1), of(0, none))), (((2, 1), of(0, none)), ((1, 1), of(0, none)))]
        {
            let what = format!("from {:?} to {:?} on {}", before.0, after.0, backend.name);
            let ranks = self.on(backend, &before, 0..1, None);
            let saved = Saved::of(ranks.into_iter().map(|outcome| outcome.saved));
            has_that_of(backend, &self.on(backend, &after, 1..STEPS, Some(&saved)), &one, 1, &what);
        }
        one
    }

    /// How far what a run learns with another seed is from what one with this seed learned, as a part of that.
    pub fn distance_of_another_seed(self, backend: &Backend, one: &Outcome) -> f64 {
        let other = Self { seed: self.seed + 1, ..self }.alone(backend);
        distance(&other.learned, &one.learned)
    }
}

fn difference(tensors: &[NamedTensor], before: &[NamedTensor]) -> Vec<NamedTensor> {
    let subtract = |(now, before): (&NamedTensor, &NamedTensor)| {
        let values = |tensor: &NamedTensor| tensor.data.try_to_vec::<f32>().unwrap();
        let values: Vec<f32> = values(now).iter().zip(values(before)).map(|(a, b)| a - b).collect();
        NamedTensor { name: now.name.clone(), data: TensorData::new(values, now.data.shape().clone()) }
    };
    tensors.iter().zip(before).map(subtract).collect()
}

/// Fails unless both have the same bits.
pub fn has_bits_of(found: &Outcome, one: &Outcome, what: &str) {
    assert_eq!(found.figures, one.figures, "{what}: losses, norms and evaluation");
    same_bits(&found.gradients, &one.gradients, &format!("{what}: gradients"));
    same_bits(&found.weights, &one.weights, &format!("{what}: weights"));
}

/// Fails unless ranks that began after `done` steps have what one process has: to the bit where ranks are summed in its order, else within what products allow.
pub fn has_that_of(backend: &Backend, ranks: &[Outcome], one: &Outcome, done: usize, what: &str) {
    let (tolerance, figures) = (backend.tolerance(Dtype::F32).relative, &one.figures[2 * done..]);
    for found in ranks {
        let is_near = |(a, b): (&f64, &f64)| match backend.has_exact_sums {
            true => a.to_bits() == b.to_bits(),
            false => (a - b).abs() <= tolerance * b.abs(),
        };
        assert_eq!(found.figures.len(), figures.len(), "{what}");
        let near = found.figures.iter().zip(figures).all(is_near);
        assert!(near, "{what}: {:?}, not {figures:?}", found.figures);
    }
    let found = &ranks[0];
    if backend.has_exact_sums {
        same_bits(&found.weights, &one.weights, &format!("{what}: weights"));
    } else {
        near_together(&found.weights, &one.weights, tolerance, &format!("{what}: weights"));
    }
    if done > 0 {
        return;
    }
    if backend.has_exact_sums {
        same_bits(&found.gradients, &one.gradients, &format!("{what}: gradients"));
    } else {
        near_together(&found.gradients, &one.gradients, tolerance, &format!("{what}: gradients"));
        near_together(&found.learned, &one.learned, tolerance, &format!("{what}: what is learned"));
    }
}

/// A state in memory, put together from the pieces of all ranks.
pub struct Saved {
    units: Vec<UnitMetadata>,
    slots: BTreeMap<(String, String), Vec<f32>>,
}

impl Saved {
    fn of(ranks: impl Iterator<Item = (Vec<UnitMetadata>, Vec<WriteItem>)>) -> Self {
        let (mut units, mut slots) = (BTreeMap::new(), BTreeMap::new());
        let mut pieces = Vec::new();
        for (of_rank, items) in ranks {
            units.extend(of_rank.into_iter().map(|unit| (unit.name.clone(), unit)));
            pieces.extend(items);
        }
        for WriteItem { unit, slot, start, values, .. } in pieces {
            let elements = units[&unit].elements;
            let all = slots.entry((unit, slot)).or_insert_with(|| vec![f32::NAN; elements]);
            all[start..start + values.len()].copy_from_slice(&values);
        }
        Self { units: units.into_values().collect(), slots }
    }
}

impl StateReader for &Saved {
    fn units(&self) -> &[UnitMetadata] {
        &self.units
    }

    fn read(&mut self, unit: &str, slot: &str, start: usize, values: &mut [f32]) -> Result<(), BoxError> {
        let slot = self.slots.get(&(unit.to_owned(), slot.to_owned())).ok_or("no such slot")?;
        values.copy_from_slice(&slot[start..start + values.len()]);
        Ok(())
    }
}

/// Numbers between -1 and 1 that look random, by the number of a micro-batch.
pub fn floats<const D: usize>(number: usize, salt: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let value = |i: usize| ((i * 31 + salt * 17 + number * 101 + 7) * 7919 % 211) as f32 / 105.5 - 1.0;
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Numbers below `below`, by the number of a micro-batch.
pub fn ints<const D: usize>(
    number: usize,
    below: usize,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D, Int> {
    let count = shape.iter().product::<usize>();
    let values: Vec<i64> = (0..count).map(|i| ((i * 29 + number * 53 + 5) * 6007 % below) as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}
