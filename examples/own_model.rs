//! A classifier trained by Brigade on any number of ranks, and by plain Burn: to the same weights.
//! `cargo run --release --example own_model -- --nproc-per-node 2 --dp 2`

use brigade::{Block, Chain, Settings, Training, data::Sampler, initialize, launch, samples};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::{prelude::*, tensor::activation};

#[derive(Module, Debug)]
struct Layer {
    linear: nn::Linear,
    last: bool,
}

fn layers(device: &Device) -> [Layer; 2] {
    let layer = |i, o, last| Layer { linear: nn::LinearConfig::new(i, o).init(device), last };
    [layer(2, 32, false), layer(32, 2, true)]
}

impl Layer {
    fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        let y = self.linear.forward(x);
        if self.last { y } else { activation::tanh(y) }
    }
}

/// Points on two interleaved spirals, and the spiral that each belongs to.
fn spirals(indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let point = |i: &usize| {
        let (radius, arm) = ((i / 2) as f32 / 256.0, (i % 2) as f32 * std::f32::consts::PI);
        [radius * (6.0 * radius + arm).cos(), radius * (6.0 * radius + arm).sin()]
    };
    let points: Vec<f32> = indices.iter().flat_map(point).collect();
    let arms: Vec<i64> = indices.iter().map(|i| (i % 2) as i64).collect();
    (Tensor::<1>::from_data(&points[..], device).reshape([-1, 2]), Tensor::from_data(&arms[..], device))
}

fn loss(output: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
    activation::log_softmax(output, 1).gather(1, target.unsqueeze_dim(1)).sum().neg()
}

/// Plain Burn: 64 samples a step in two micro-batches, the same first weights and order of samples.
fn plain(settings: &Settings, device: &Device) -> Chain<Tensor<2>, Tensor<2>> {
    let (seed, [hidden, head]) = (settings.train.seed, layers(device));
    let mut model = (initialize(hidden, seed, "hidden"), initialize(head, seed, "head"));
    let mut adamw = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8).with_weight_decay(0.0).init();
    let order = Sampler::new(512, seed, 64, 32).expect("32 divides 64");
    for step in 0..settings.train.steps {
        let mut sum = GradientsAccumulator::new();
        for k in 0..2 {
            let (x, y) = spirals(&order.micro_batch(step, 0, 1, k).expect("two of them"), device);
            let loss = loss(model.1.apply(model.0.apply(x)), y).div_scalar(64.0);
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        model = adamw.step(settings.optimizer.learning_rate, model, sum.grads());
    }
    Chain::new().then("hidden", model.0).then("head", model.1)
}

// Brigade's part: a layer is a block; blocks, loss and samples make a run.
impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.apply(x)
    }
}

fn main() -> std::process::ExitCode {
    launch(include_str!("own_model.toml"), |session| {
        let [hidden, head] = layers(&session.device());
        let model = Chain::new().then("hidden", hidden).then("head", head).loss(loss);
        let trained = session.train(model, Training::on(samples(512, spirals)))?;
        let plain = plain(session.settings(), &session.device().autodiff()).tensors()?;
        match trained.model().tensors() {
            Ok(ours) => println!("rank {}: the weights of plain Burn: {}", session.rank(), ours == plain),
            Err(part) => println!("rank {}: {part}", session.rank()),
        }
        Ok(())
    })
}
