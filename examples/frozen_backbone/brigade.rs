//! Learns to name other shapes with a trained, frozen backbone.
//! `burn.rs` does it with plain Burn, `brigade.rs` is the same program moved to Brigade.

mod data;
#[allow(dead_code)] // `Net::forward`: Brigade runs the blocks.
mod model;

use brigade::models::{LoadWeights, Strict, WeightsMapping};
use brigade::{Chain, Training, launch, samples};
use burn::prelude::*;

use data::{BACKBONE, TEST, TRAIN, test, train};
use model::{Net, correct, loss};

const DEFAULTS: &str = "
train = { steps = 60, global_batch_size = 64, micro_batch_size = 16, gradient_clipping = 0, validate_every = 10 }
optimizer = { learning_rate = 3e-2, weight_decay = 0, beta2 = 0.999, epsilon = 1e-5 }
schedule.name = 'constant'";

fn main() -> std::process::ExitCode {
    launch(DEFAULTS, |session| {
        let model = Net::new(&session.device());
        let chain = Chain::new().then_fn("stem", model.stem.freeze(), |m, pictures| m.forward(pictures));
        let chain = chain.then_fn("body", model.body.freeze(), |m, x| m.forward(x));
        let mut model = chain.then_fn("classifier", model.classifier, |m, x| m.forward(x)).loss(loss);
        model.load_weights(BACKBONE, &WeightsMapping::default(), Strict::No)?;
        let data =
            Training::on(samples(TRAIN, train)).validate(samples(TEST, test)).metric("accuracy", correct);
        session.train(model, data.on_validation(|found| report(found.step, found.metrics["accuracy"])))?;
        Ok(())
    })
}

fn report(step: u64, accuracy: f64) {
    println!("step {step}: {:.1}% of the test are right", 100.0 * accuracy);
}
