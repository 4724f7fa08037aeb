//! Every row runs a small GPT on a mesh, its ranks as threads, and must equal one process to the
//! bit: losses, gradients of the first step, and weights after the last.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::thread;

use brigade::comm::{Timeouts, threads};
use brigade::core::{
    Batch, Collectives, Engine, EngineSettings, Error, NamedTensor, NonFinite, Operation, OptimizerFactory,
    Solo, StepReport,
};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use brigade_cpu::HostCollectives;
use burn::optim::{AdamWConfig, LionConfig, SgdConfig, momentum::MomentumConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};

const STEPS: u64 = 3;
const LENGTH: usize = 12;
const VOCABULARY: usize = 40;

type Gpt = Engine<Tensor<2, Int>, Tensor<2>, Targets>;

#[derive(Clone, Copy)]
struct Row {
    micro_batches: usize,
    tied: bool,
    masked: bool,
    clipping: Option<f64>,
    optimizer: &'static str,
    on_nonfinite: NonFinite,
}

const PLAIN: Row = Row {
    micro_batches: 4,
    tied: false,
    masked: false,
    clipping: None,
    optimizer: "adamw",
    on_nonfinite: NonFinite::Stop,
};

impl Row {
    fn optimizer(&self) -> OptimizerFactory {
        match self.optimizer {
            "adamw" => {
                let adamw = AdamWConfig::new().with_epsilon(1e-8);
                OptimizerFactory::new(
                    adamw.clone().with_weight_decay(0.1).build(),
                    adamw.with_weight_decay(0.0).build(),
                )
            }
            "lion" => OptimizerFactory::new(
                LionConfig::new().with_weight_decay(0.1).build(),
                LionConfig::new().build(),
            ),
            _ => {
                let sgd =
                    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build();
                OptimizerFactory::new(sgd.clone(), sgd)
            }
        }
    }

    fn engine(&self, collectives: Arc<dyn Collectives>) -> Gpt {
        let config = GptConfig {
            vocabulary: VOCABULARY,
            sequence_length: LENGTH,
            width: 24,
            layers: 3,
            heads: 3,
            tied_head: self.tied,
            activation: Gelu::Gelu,
        };
        let settings = EngineSettings { gradient_clipping: self.clipping, on_nonfinite: self.on_nonfinite };
        let model = config.model(5, &Device::default()).unwrap();
        Engine::new(model, 5, &self.optimizer(), collectives, settings).unwrap()
    }

    /// Micro-batch `index` (of the whole world) of a step: two rows.
    fn batch(&self, step: u64, index: usize) -> Batch<Tensor<2, Int>, Targets> {
        let device = Device::default();
        let token = |i: usize| ((i * 31 + index * 101 + step as usize * 57) * 7919 % VOCABULARY) as i64;
        let ints = |shift: usize| {
            let tokens: Vec<i64> = (0..2 * LENGTH).map(|i| token(i + shift)).collect();
            Tensor::<2, Int>::from_data(TensorData::new(tokens, [2, LENGTH]), &device)
        };
        // The first micro-batch of a step keeps one target, the others ever more.
        let counts =
            |i: usize| !self.masked || i % (7 * index + 2) == 1 || (index > 0 && i.is_multiple_of(2));
        let valid: Vec<bool> = (0..2 * LENGTH).map(counts).collect();
        let mask: Vec<f32> = valid.iter().map(|v| f32::from(u8::from(*v))).collect();
        Batch {
            input: ints(0),
            target: Targets {
                tokens: ints(1),
                mask: self.masked.then(|| Tensor::from_data(TensorData::new(mask, [2, LENGTH]), &device)),
            },
            valid_targets: valid.iter().filter(|v| **v).count(),
        }
    }

    fn batches(&self, step: u64, rank: usize, ranks: usize) -> Vec<Batch<Tensor<2, Int>, Targets>> {
        let each = self.micro_batches / ranks;
        (rank * each..(rank + 1) * each).map(|index| self.batch(step, index)).collect()
    }

    fn run(&self, collectives: Arc<dyn Collectives>) -> Outcome {
        let (rank, ranks) = (collectives.rank(), collectives.size());
        let mut engine = self.engine(collectives);
        let (_, gradients) = engine.gradients(self.batches(0, rank, ranks)).unwrap();
        let reports =
            (0..STEPS).map(|step| engine.step(self.batches(step, rank, ranks), 1e-2).unwrap()).collect();
        Outcome { reports, gradients, weights: engine.chain().tensors().unwrap() }
    }

    fn on_threads(&self, ranks: usize) -> Vec<Outcome> {
        on_threads(ranks, |collectives| self.run(collectives))
    }
}

struct Outcome {
    reports: Vec<StepReport>,
    gradients: Vec<NamedTensor>,
    weights: Vec<NamedTensor>,
}

fn on_threads<R: Send>(ranks: usize, run: impl Fn(Arc<dyn Collectives>) -> R + Sync) -> Vec<R> {
    let groups = threads(ranks, Timeouts::default());
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(move || run(Arc::new(HostCollectives::new(group)))))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn same_bits(a: &[NamedTensor], b: &[NamedTensor], what: &str) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.name, b.name);
        assert!(a.data.as_bytes() == b.data.as_bytes(), "{what}: {} differs from one process", a.name);
    }
}

/// Runs a row on several numbers of ranks and compares each rank with one process.
fn equals_one_process(row: Row, meshes: &[usize]) {
    let reference = row.run(Arc::new(Solo));
    assert!(reference.reports[STEPS as usize - 1].loss < reference.reports[0].loss * 1.5, "it trains");
    for ranks in meshes {
        for outcome in row.on_threads(*ranks) {
            for (a, b) in outcome.reports.iter().zip(&reference.reports) {
                assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss on {ranks} ranks");
                assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "norm on {ranks} ranks");
                assert_eq!(a.targets, b.targets);
            }
            same_bits(&outcome.gradients, &reference.gradients, &format!("gradient on {ranks} ranks"));
            same_bits(&outcome.weights, &reference.weights, &format!("weight on {ranks} ranks"));
        }
    }
}

#[test]
fn untied() {
    equals_one_process(PLAIN, &[1, 2, 4]);
}

#[test]
fn tied() {
    equals_one_process(Row { tied: true, ..PLAIN }, &[1, 2, 4]);
}

#[test]
fn uneven_valid_targets() {
    equals_one_process(Row { masked: true, tied: true, ..PLAIN }, &[1, 2, 4]);
}

#[test]
fn clipping_active() {
    let row = Row { clipping: Some(0.05), masked: true, ..PLAIN };
    assert!(row.run(Arc::new(Solo)).reports.iter().all(|report| report.grad_norm > 0.05));
    equals_one_process(row, &[2, 4]);
}

#[test]
fn other_optimizers() {
    equals_one_process(Row { optimizer: "lion", ..PLAIN }, &[2, 4]);
    equals_one_process(Row { optimizer: "sgd", ..PLAIN }, &[2, 4]);
}

#[test]
fn three_ranks_with_four_micro_batches_each() {
    equals_one_process(Row { micro_batches: 12, ..PLAIN }, &[3]);
}

#[test]
fn eight_ranks() {
    equals_one_process(Row { micro_batches: 8, ..PLAIN }, &[2, 8]);
}

/// Uneven targets give the gradients of the whole batch at once, up to rounding.
#[test]
fn micro_batches_give_the_gradients_of_the_whole_batch() {
    let row = Row { masked: true, ..PLAIN };
    let apart = row.run(Arc::new(Solo));
    let parts = row.batches(0, 0, 1);
    let together = Batch {
        input: Tensor::cat(parts.iter().map(|b| b.input.clone()).collect(), 0),
        target: Targets {
            tokens: Tensor::cat(parts.iter().map(|b| b.target.tokens.clone()).collect(), 0),
            mask: Some(Tensor::cat(parts.iter().filter_map(|b| b.target.mask.clone()).collect(), 0)),
        },
        valid_targets: parts.iter().map(|b| b.valid_targets).sum(),
    };
    let (_, whole) = row.engine(Arc::new(Solo)).gradients(vec![together]).unwrap();
    for (a, b) in apart.gradients.iter().zip(&whole) {
        let (a_values, b_values) = (a.data.as_slice::<f32>().unwrap(), b.data.as_slice::<f32>().unwrap());
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let difference = norm(&mut a_values.iter().zip(b_values).map(|(a, b)| a - b));
        // The attention's key biases have no true gradient, only rounding.
        let scale = norm(&mut b_values.iter().copied()).max(1e-4);
        assert!(difference <= 1e-5 * scale, "{}: {difference:e} of {scale:e}", a.name);
    }
}

/// One reduction a block, and 2·Ψ·(n-1)/n values sent per rank.
#[test]
fn traffic_is_as_designed() {
    for ranks in [2, 4] {
        for outcome in (Row { tied: true, ..PLAIN }).on_threads(ranks) {
            let parameters: usize = outcome.weights.iter().map(|tensor| tensor.data.num_elements()).sum();
            for report in &outcome.reports {
                let (calls, bytes) = report.traffic[&Operation::AllReduce];
                assert_eq!(calls, 5, "embedding, three layers, head");
                let exact = 2.0 * 4.0 * parameters as f64 * (ranks - 1) as f64 / ranks as f64;
                assert!(
                    (bytes as f64 - exact).abs() <= 5.0 * 8.0 * ranks as f64,
                    "{bytes} bytes, {exact} expected"
                );
            }
        }
    }
}

/// A step's result, and the weights before and after it.
type Step = (Result<StepReport, Error>, Vec<NamedTensor>, Vec<NamedTensor>);

fn poisoned(on_nonfinite: NonFinite) -> Vec<Step> {
    on_threads(2, |collectives| {
        let (rank, row) = (collectives.rank(), Row { masked: true, on_nonfinite, ..PLAIN });
        let mut engine = row.engine(collectives);
        let before = engine.chain().tensors().unwrap();
        let mut batches = row.batches(0, rank, 2);
        if rank == 1 {
            // A mask of infinity makes this rank's second loss infinite.
            let target = &mut batches[1].target;
            target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
        }
        let result = engine.step(batches, 1e-2);
        (result, before, engine.chain().tensors().unwrap())
    })
}

#[test]
fn a_loss_that_is_not_finite_names_its_rank_and_leaves_the_weights() {
    for (result, before, after) in poisoned(NonFinite::Stop) {
        let message = result.unwrap_err().to_string();
        assert!(message.starts_with("step 1: the loss is not finite"), "{message}");
        assert!(message.contains("rank 1, micro-batch 1, in the loss of block `head`"), "{message}");
        same_bits(&after, &before, "after the failed step");
    }
    for (result, before, after) in poisoned(NonFinite::Skip) {
        assert!(result.unwrap().skipped);
        same_bits(&after, &before, "after the skipped step");
    }
}

#[test]
fn a_batch_without_valid_targets_is_an_error() {
    let mut batch = PLAIN.batch(0, 0);
    batch.valid_targets = 0;
    let error = PLAIN.engine(Arc::new(Solo)).step(vec![batch], 1e-2).unwrap_err();
    assert!(matches!(error, Error::NoTargets { step: 1 }), "{error}");
}
