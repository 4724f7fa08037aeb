//! Fits a sine with plain Burn. README.md shows what Brigade changes of it: `sine_brigade.rs`.
//! `cargo run --release --example sine_burn`

use burn::optim::{AdamWConfig, GradientsParams};
use burn::{prelude::*, tensor::activation};

#[derive(Module, Debug)]
struct Layer {
    linear: nn::Linear,
}

impl Layer {
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

fn main() {
    let device = Device::default().autodiff();
    let mut model = (layer(1, 32, &device), layer(32, 1, &device));
    let mut adamw = AdamWConfig::new().init();
    let all: Vec<usize> = (0..512).collect();
    for _ in 0..200 {
        let (x, y) = sine(&all, &device);
        let loss = loss(model.1.forward(model.0.forward(x)), y).div_scalar(512.0);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = adamw.step(1e-2, model, gradients);
    }
}
