//! Learns to tell two spirals apart.
//! `burn.rs` does it with burn-train's `Learner`, `brigade.rs` is the same program moved to Brigade.

mod data;
mod model;
#[path = "../same_bits/mod.rs"]
mod same_bits;

use burn::data::{dataloader::DataLoaderBuilder, dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::optim::AdamWConfig;
use burn::prelude::*;
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};

use data::{POINTS, spirals};
use model::{Net, loss};
use same_bits::{Batches, first_weights, save};

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

fn main() -> anyhow::Result<()> {
    let order = Batches::new(POINTS, 64, 32).of_steps(200);
    let train = DataLoaderBuilder::new(Spirals).batch_size(32).build(InMemDataset::new(order));
    let test = DataLoaderBuilder::new(Spirals).batch_size(32).build(InMemDataset::new((0..POINTS).collect()));
    let training = SupervisedTraining::new("runs/from_burn_train", train, test)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .grads_accumulation(2)
        .summary();
    let model = first_weights(Net::new(&Device::default().autodiff()));
    let adamw = AdamWConfig::new().with_weight_decay(0.0).init();
    let result = training.launch(Learner::new(model, adamw, 1e-2));
    save(result.model)
}
