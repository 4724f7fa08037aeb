//! Learns to tell two spirals apart.
//! `burn.rs` does it with burn-train's `Learner`, `brigade.rs` is the same program moved to Brigade.

mod data;
#[allow(dead_code)] // `Net::forward`: Brigade runs the blocks.
mod model;

use brigade::{Chain, Training, launch, samples};
use burn::prelude::*;

use data::{POINTS, spirals};
use model::{Net, loss};

const DEFAULTS: &str = "
train = { epochs = 25, global_batch_size = 64, micro_batch_size = 32, gradient_clipping = 0, validate_every = 8 }
optimizer = { learning_rate = 1e-2, weight_decay = 0, beta2 = 0.999, epsilon = 1e-5 }
schedule.name = 'constant'";

fn main() -> std::process::ExitCode {
    launch(DEFAULTS, |session| {
        let model = Net::new(&session.device());
        let chain = Chain::new().then_fn("hidden", model.hidden, |m, points| m.forward(points));
        let model = chain.then_fn("head", model.head, |m, x| m.forward(x)).loss(loss);
        let data = Training::on(samples(POINTS, spirals)).validate(samples(POINTS, spirals));
        let data = data.metric("accuracy", correct);
        session.train(model, data.on_validation(|found| report(found.step, found.metrics["accuracy"])))?;
        Ok(())
    })
}

fn correct(scores: Tensor<2>, arms: Tensor<1, Int>) -> Tensor<1> {
    scores.argmax(1).squeeze_dim(1).equal(arms).float().sum()
}

fn report(step: u64, accuracy: f64) {
    println!("step {step}: {:.0} of {POINTS} points are right", accuracy * POINTS as f64);
}
