//! Learns to name other shapes with a trained, frozen backbone.
//! `burn.rs` does it with plain Burn, `brigade.rs` is the same program moved to Brigade.

mod data;
mod model;
#[path = "../same_bits/mod.rs"]
mod same_bits;

use burn::optim::{AdamWConfig, GradientsParams};
use burn::prelude::*;
use burn_store::{ModuleSnapshot, SafetensorsStore};

use data::{BACKBONE, TEST, TRAIN, test, train};
use model::{Net, correct, loss};
use same_bits::{Batches, PairwiseAccumulator, first_weights, save};

fn main() -> anyhow::Result<()> {
    let device = Device::default().autodiff();
    let mut model = first_weights(Net::new(&device));
    model.load_from(&mut SafetensorsStore::from_file(BACKBONE).allow_partial(true))?;
    (model.stem, model.body) = (model.stem.freeze(), model.body.freeze());
    let mut adamw = AdamWConfig::new().with_weight_decay(0.0).init();
    let batches = Batches::new(TRAIN, 64, 16);
    for step in 1..=60 {
        let mut sum = PairwiseAccumulator::new();
        for numbers in batches.of_step(step) {
            let (pictures, shapes) = train(&numbers, &device);
            let loss = loss(model.forward(pictures), shapes).div_scalar(64.0);
            sum.accumulate(GradientsParams::from_grads(loss.backward(), &model));
        }
        let gradients = sum.grads(&model);
        model = adamw.step(3e-2, model, gradients);
        if step % 10 == 0 {
            report(step, accuracy(&model.valid(), &device));
        }
    }
    save(model)
}

/// The share of the test's pictures that get the right shape.
fn accuracy(model: &Net, device: &Device) -> f64 {
    let (pictures, shapes) = test(&(0..TEST).collect::<Vec<_>>(), device);
    correct(model.forward(pictures), shapes).into_scalar::<f64>() / TEST as f64
}

fn report(step: u64, accuracy: f64) {
    println!("step {step}: {:.1}% of the test are right", 100.0 * accuracy);
}
