//! Learns to classify sentences.
//! `burn.rs` does it with plain Burn, `brigade.rs` is the same program moved to Brigade.

mod data;
#[allow(dead_code)] // `Classifier::forward`: Brigade runs the blocks.
mod model;

use brigade::{Chain, Training, launch, samples};

use data::{TEST, TRAIN, test, train};
use model::{Classifier, correct, loss};

const DEFAULTS: &str = "
train = { steps = 400, global_batch_size = 64, micro_batch_size = 16, gradient_clipping = 0, validate_every = 20, \
    early_stopping_patience = 3, early_stopping_metric = 'accuracy' }
optimizer = { learning_rate = 3e-3, weight_decay = 0, beta2 = 0.999, epsilon = 1e-5 }
schedule.name = 'constant'";

fn main() -> std::process::ExitCode {
    launch(DEFAULTS, |session| {
        let model = Classifier::new(&session.device());
        let chain = Chain::new().then_fn("embedding", model.embedding, |m, tokens| m.forward(tokens));
        let chain = chain.then_each("encoder.layers", model.encoder.layers, |m, x| m.forward(x, None, None));
        let model = chain.then_fn("head", model.head, |m, x| m.forward(x)).loss(loss);
        let data =
            Training::on(samples(TRAIN, train)).validate(samples(TEST, test)).metric("accuracy", correct);
        session.train(model, data.on_validation(|found| report(found.step, found.metrics["accuracy"])))?;
        Ok(())
    })
}

fn report(step: u64, accuracy: f64) {
    println!("step {step}: {:.1}% of the test are right", 100.0 * accuracy);
}
