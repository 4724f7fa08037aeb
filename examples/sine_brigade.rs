//! Fits a sine with Brigade, on any number of ranks. README.md shows how it differs from `sine_burn.rs`.
//! `cargo run --release --example sine_brigade -- --nproc-per-node 2`

use brigade::{Block, Chain, Training, launch, samples};
use burn::{prelude::*, tensor::activation};

#[derive(Module, Debug)]
struct Layer {
    linear: nn::Linear,
}

impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        activation::tanh(self.linear.forward(x))
    }
}

fn layer(inputs: usize, outputs: usize, device: &Device) -> Layer {
    Layer { linear: nn::LinearConfig::new(inputs, outputs).init(device) }
}

/// The sine at 512 places: the input and the target of the samples with these numbers.
fn sine(samples: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let x: Vec<f32> = samples.iter().map(|i| *i as f32 / 128.0).collect();
    let x = Tensor::<1>::from_floats(&x[..], device).reshape([-1, 1]);
    (x.clone(), x.sin())
}

fn loss(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (output - target).square().sum()
}

const DEFAULTS: &str = "
train = { steps = 200, micro_batch_size = 64, global_batch_size = 512 }
optimizer = { learning_rate = 1e-2 }";

fn main() -> std::process::ExitCode {
    launch(DEFAULTS, |session| {
        let device = session.device();
        let (hidden, head) = (layer(1, 32, &device), layer(32, 1, &device));
        let model = Chain::new().then("hidden", hidden).then("head", head).loss(loss);
        session.train(model, Training::on(samples(512, sine)))?;
        Ok(())
    })
}
