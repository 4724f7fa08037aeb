//! A program with a name, a description and flags of its own. It depends on nothing but Brigade, which brings Burn and clap.
//! `cargo run --release --example own_program -- --hidden 16 --nproc-per-node 2`

use brigade::burn::module::Param;
use brigade::burn::tensor::{Distribution, activation};
use brigade::burn::{self, prelude::*};
use brigade::{Block, Chain, Launch, Training, clap, samples};

/// What this program takes beside the flags of every program.
#[derive(clap::Args)]
struct Flags {
    /// Width of the hidden layer.
    #[arg(long, value_name = "N", default_value_t = 32)]
    hidden: usize,
    /// How often the curve rises and falls: one number for each curve that is added.
    #[arg(long, value_name = "N", required = true, num_args = 1..)]
    waves: Vec<u8>,
    /// Say what is trained.
    #[arg(long)]
    verbose: bool,
}

#[derive(Module, Debug)]
struct Layer {
    linear: nn::Linear,
    phase: Param<Tensor<1>>,
}

impl Block for Layer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        activation::tanh(self.linear.forward(x) + self.phase.val().unsqueeze())
    }
}

const DEFAULTS: &str = "
train = { steps = 20, micro_batch_size = 64, global_batch_size = 128 }
optimizer = { learning_rate = 1e-2 }";

fn main() -> std::process::ExitCode {
    Launch::new(DEFAULTS).name("waves").version("1.2").about("Fits a sum of sines.").run(
        |session, flags: Flags| {
            if flags.verbose {
                println!("rank {}: {} hidden, waves {:?}", session.rank(), flags.hidden, flags.waves);
            }
            let device = session.device();
            // Ranks draw the same numbers here.
            let drawn = |count| Tensor::random([count], Distribution::Normal(0.0, 0.1), &device);
            let layer = |i, o| {
                let linear = nn::LinearConfig::new(i, o).init(&device);
                Layer { linear, phase: Param::from_tensor(drawn(o)) }
            };
            let model = Chain::new()
                .then("hidden", layer(1, flags.hidden))
                .then("head", layer(flags.hidden, 1))
                .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
            let data = samples(512, move |indices, device| {
                let x: Vec<f32> = indices.iter().map(|i| *i as f32 / 512.0).collect();
                let x = Tensor::<1>::from_floats(&x[..], device).reshape([-1, 1]);
                let waves = flags.waves.iter().map(|wave| x.clone().mul_scalar(6.0 * f32::from(*wave)).sin());
                (x.clone(), waves.fold(x.zeros_like(), |sum, wave| sum + wave))
            });
            session.train(model, Training::on(data))?;
            Ok(())
        },
    )
}
