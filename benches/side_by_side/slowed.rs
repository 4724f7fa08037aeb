//! A training run whose data or hooks are slow on purpose.
//!
//!     cargo bench --bench slowed -- --nproc-per-node 2 [--slow-data 2 [--of-rank 1]] [--slow-hook 60] --out runs/slowed
//!
//! For the section `diagnosis` of `cargo xtask bench`, which looks whether the diagnosis finds what was slowed.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use brigade::burn::{self, prelude::*, tensor::activation};
use brigade::{Batch, Block, Chain, Dataset, Launch, StepReport, Training, clap};

const DEFAULTS: &str = "
train = { steps = 40, micro_batch_size = 256, global_batch_size = 512, validate_every = 0 }
checkpoint = { every = 0 }";

/// Wide enough that a step takes some tenths of a second on a core.
const WIDTH: usize = 512;
const LAYERS: usize = 12;

#[derive(clap::Args)]
struct Flags {
    /// Milliseconds that reading a sample takes.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    slow_data: u64,
    /// The only rank whose data is slow [default: all].
    #[arg(long, value_name = "RANK")]
    of_rank: Option<usize>,
    /// Milliseconds that a hook takes after each step.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    slow_hook: u64,
    /// Added by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

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

/// The sine, from a disk as slow as one likes.
struct Sine {
    /// How long it takes to read a sample.
    reading: Duration,
}

impl Dataset for Sine {
    type Item = f32;
    type Input = Tensor<2>;
    type Target = Tensor<2>;

    fn len(&self) -> usize {
        1 << 16
    }

    fn get(&self, index: usize) -> anyhow::Result<f32> {
        sleep(self.reading);
        Ok(index as f32 / self.len() as f32)
    }

    fn batch(&self, items: Vec<f32>, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
        let x = Tensor::<1>::from_floats(&items[..], device).reshape([-1, 1]);
        Batch::new(x.clone(), x.mul_scalar(6.0).sin(), items.len())
    }
}

fn main() -> ExitCode {
    Launch::new(DEFAULTS).name("slowed").run(|session, flags: Flags| {
        let device = session.device();
        let mut model = Chain::new().then("layer.0", layer(1, WIDTH, &device));
        for number in 1..=LAYERS {
            model = model.then(format!("layer.{number}"), layer(WIDTH, WIDTH, &device));
        }
        let model = model
            .then("head", layer(WIDTH, 1, &device))
            .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
        let is_slow = flags.of_rank.is_none_or(|rank| rank == session.rank());
        let data = Sine { reading: Duration::from_millis(if is_slow { flags.slow_data } else { 0 }) };
        let hook = Duration::from_millis(flags.slow_hook);
        session.train(model, Training::on(data).on_step(move |_: &StepReport| sleep(hook)))?;
        Ok(())
    })
}

fn layer(inputs: usize, outputs: usize, device: &Device) -> Layer {
    Layer { linear: nn::LinearConfig::new(inputs, outputs).init(device) }
}
