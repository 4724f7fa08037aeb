//! Learns to classify sentences.
//! `burn.rs` does it with plain Burn, `brigade.rs` is the same program moved to Brigade.

mod data;
mod model;
#[path = "../same_bits/mod.rs"]
mod same_bits;

use burn::optim::{AdamWConfig, GradientsParams};
use burn::prelude::*;

use data::{TEST, TRAIN, test, train};
use model::{Classifier, correct, loss};
use same_bits::{Batches, Masks, PairwiseAccumulator, first_weights, save};

fn main() -> anyhow::Result<()> {
    let device = Device::default().autodiff();
    let mut model = first_weights(Classifier::new(&device));
    let mut adamw = AdamWConfig::new().with_weight_decay(0.0).init();
    let batches = Batches::new(TRAIN, 64, 16);
    let (mut best, mut without_improvement) = (0.0, 0);
    for step in 1..=400 {
        let mut sum = PairwiseAccumulator::new();
        for (micro_batch, numbers) in batches.of_step(step).into_iter().enumerate() {
            let (tokens, classes) = train(&numbers, &device);
            let scores = forward(&model, tokens, Masks { step, micro_batch });
            let loss = loss(scores, classes).div_scalar(64.0);
            sum.accumulate(GradientsParams::from_grads(loss.backward(), &model));
        }
        let gradients = sum.grads(&model);
        model = adamw.step(3e-3, model, gradients);
        if step % 20 == 0 {
            let accuracy = accuracy(&model.valid(), &device);
            report(step, accuracy);
            without_improvement = if accuracy > best { 0 } else { without_improvement + 1 };
            best = accuracy.max(best);
            if without_improvement == 3 {
                break;
            }
        }
    }
    save(model)
}

/// The share of the test's sentences that get the right class.
fn accuracy(model: &Classifier, device: &Device) -> f64 {
    let (tokens, classes) = test(&(0..TEST).collect::<Vec<_>>(), device);
    correct(model.forward(tokens), classes).into_scalar::<f64>() / TEST as f64
}

/// `model.forward(tokens)`, with masks that do not depend on what was drawn before.
fn forward(model: &Classifier, tokens: Tensor<2, Int>, masks: Masks) -> Tensor<2> {
    let mut x = masks.of("embedding", || model.embedding.forward(tokens));
    for (i, layer) in model.encoder.layers.iter().enumerate() {
        x = masks.of(&format!("encoder.layers.{i}"), || layer.forward(x, None, None));
    }
    masks.of("head", || model.head.forward(x))
}

fn report(step: u64, accuracy: f64) {
    println!("step {step}: {:.1}% of the test are right", 100.0 * accuracy);
}
