//! Learns to tell two spirals apart.
//! `burn.rs` does it with burn-train's `Learner`, `brigade.rs` is the same program moved to Brigade.

mod data;
#[path = "../same_bits/in_order.rs"]
mod in_order;
mod model;
#[path = "../same_bits/mod.rs"]
mod same_bits;

use burn::data::{dataloader::DataLoaderBuilder, dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::optim::AdamWConfig;
use burn::prelude::*;
use burn_train::metric::store::{Aggregate, EventStoreClient, Split};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{ClassificationOutput, EarlyStoppingStrategy, InferenceStep};
use burn_train::{Learner, SupervisedTraining, TrainOutput, TrainStep};

use data::{POINTS, spirals};
use in_order::InOrder;
use model::{Net, loss};
use same_bits::{Batches, first_weights, save};

const EPOCHS: usize = 25;
/// Steps of an epoch.
const STEPS: u64 = 8;

#[derive(Clone, Debug)]
pub struct Batch {
    pub points: Tensor<2>,
    pub arms: Tensor<1, Int>,
}

struct Spirals;

impl Batcher<usize, Batch> for Spirals {
    fn batch(&self, numbers: Vec<usize>, device: &Device) -> Batch {
        let (points, arms) = spirals(&numbers, device);
        Batch { points, arms }
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        let scores = self.forward(batch.points);
        let loss = loss(scores.clone(), batch.arms.clone()).div_scalar(64.0);
        ClassificationOutput::new(loss, scores, batch.arms)
    }
}

/// Reports after each epoch, and never stops.
#[derive(Clone)]
struct Report;

impl EarlyStoppingStrategy for Report {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let percent = store.find_metric("Accuracy", epoch, Aggregate::Mean, &Split::Valid);
        report(STEPS * epoch as u64, percent.unwrap_or(f64::NAN) / 100.0);
        false
    }
}

fn main() -> anyhow::Result<()> {
    let order = InOrder::new(Batches::new(POINTS, 64, 32).of_steps(STEPS * EPOCHS as u64), EPOCHS);
    let train = DataLoaderBuilder::new(Spirals).batch_size(32).build(order);
    let test = DataLoaderBuilder::new(Spirals).batch_size(32).build(InMemDataset::new((0..POINTS).collect()));
    let training = SupervisedTraining::new("runs/from_burn_train", train, test)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .early_stopping(Report)
        .num_epochs(EPOCHS)
        .grads_accumulation(2)
        .summary();
    let model = first_weights(Net::new(&Device::default().autodiff()));
    let adamw = AdamWConfig::new().with_weight_decay(0.0).init();
    let result = training.launch(Learner::new(model, adamw, 1e-2));
    save(result.model)
}

fn report(step: u64, accuracy: f64) {
    println!("step {step}: {:.0} of {POINTS} points are right", accuracy * POINTS as f64);
}
