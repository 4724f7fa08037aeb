//! What an autodiff graph for each block costs: the same GPT, trained by the block engine and by plain Burn in one graph.
//!
//!     cargo bench --bench blocks -- [--tiny] blocks|one-graph [rows] [steps]
//!     cargo bench --features cuda --bench blocks -- …      on the first GPU (or wgpu)
//!
//! The shape is that of `configs/gpt2-124m.toml` with a head of its own, in fp32 (`--tiny`: 4 layers of width 128, to try it). Both sides do the same
//! operations, from the embedding to the clipped gradient, and wait for the device at the end of a step; but the engine steps flat buffers, in its
//! pieces, and plain Burn one parameter after the other. Prints one JSON line a step; `benches/gpu/run.sh` lets the two take turns.

use std::time::Instant;

use brigade::core::{Batch, Engine, EngineSettings, Groups, OptimizerFactory, clip_factor};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::module::{Initializer, Module, ModuleVisitor, Param};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::{Parser, ValueEnum};

const RATE: f64 = 1e-4;

/// Gradients of a larger norm are scaled down to it.
const CLIPPING: Option<f64> = Some(1.0);

/// Trains the same GPT by the block engine or by plain Burn in one graph.
#[derive(Debug, Parser)]
struct Options {
    /// What trains it.
    mode: Mode,
    /// Sequences in a step.
    #[arg(default_value_t = 1)]
    rows: usize,
    #[arg(default_value_t = 8)]
    steps: usize,
    /// A tiny model, to try it.
    #[arg(long)]
    tiny: bool,
    /// Added by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    Blocks,
    OneGraph,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Options { mode, rows, steps, tiny, .. } = Options::parse();
    let config = if tiny { shape(512, 64, 128, 4, 4) } else { shape(50257, 1024, 768, 12, 12) };
    let device = device();
    let tokens: Vec<i64> =
        (0..rows * config.sequence_length).map(|i| (i * 7919 % config.vocabulary) as i64).collect();
    let tokens = TensorData::new(tokens, [rows, config.sequence_length]);
    let tokens = Tensor::<2, Int>::from_data(tokens, &device);
    match mode {
        Mode::Blocks => blocks(&config, &device, tokens, steps),
        Mode::OneGraph => one_graph(&config, &device, tokens, steps),
    }
}

fn shape(vocabulary: usize, sequence_length: usize, width: usize, layers: usize, heads: usize) -> GptConfig {
    GptConfig {
        vocabulary,
        sequence_length,
        width,
        layers,
        heads,
        tied_head: false,
        activation: Gelu::Gelu,
        dropout: 0.0,
        initializer_range: 0.02,
    }
}

/// The first device of the best backend that this was built for.
fn device() -> Device {
    #[cfg(feature = "cuda")]
    return Device::cuda(0);
    #[cfg(all(feature = "wgpu", not(feature = "cuda")))]
    return Device::wgpu(burn::tensor::DeviceKind::DefaultDevice);
    #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
    {
        // SAFETY: nothing has started a thread yet.
        unsafe { brigade_cpu::keep_heap() };
        brigade_cpu::device()
    }
}

fn report(mode: &str, step: usize, started: Instant, tokens: usize, loss: f64) {
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{{\"mode\": \"{mode}\", \"step\": {step}, \"seconds\": {seconds:.6}, \"tokens_per_second\": {:.1}, \"loss\": {loss:.6}}}",
        tokens as f64 / seconds
    );
}

fn blocks(
    config: &GptConfig,
    device: &Device,
    tokens: Tensor<2, Int>,
    steps: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let adamw = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01);
    let optimizer = OptimizerFactory::new(adamw.build(), adamw.build());
    let settings = EngineSettings { gradient_clipping: CLIPPING, ..EngineSettings::default() };
    let model = config.model(0, device)?;
    let mut engine = Engine::new(model, 0, &optimizer, Groups::single_rank(), settings)?;
    let count = tokens.dims().iter().product();
    for step in 0..steps {
        let started = Instant::now();
        let target = Targets { tokens: tokens.clone(), mask: None };
        let batch = Batch::new(tokens.clone().into(), target, count);
        let loss = engine.step(vec![batch], RATE)?.loss;
        device.sync()?;
        report("blocks", step, started, count, loss);
    }
    Ok(())
}

fn one_graph(
    config: &GptConfig,
    device: &Device,
    tokens: Tensor<2, Int>,
    steps: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let device = device.clone().autodiff();
    let mut gpt = Gpt::new(config, &device);
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01).init();
    let count = tokens.dims().iter().product();
    for step in 0..steps {
        let started = Instant::now();
        let loss = gpt.loss(tokens.clone());
        let mut gradients = GradientsParams::from_grads(loss.backward(), &gpt);
        clip(&gpt, &mut gradients);
        gpt = optimizer.step(RATE, gpt, gradients);
        let loss = f64::from(loss.into_scalar::<f32>());
        device.sync()?;
        report("one graph", step, started, count, loss);
    }
    Ok(())
}

/// Scales gradients down to [`CLIPPING`] by their global norm, which the host reads, as the engine's.
fn clip(gpt: &Gpt, gradients: &mut GradientsParams) {
    let mut squares = Squares { gradients, sums: Vec::new() };
    gpt.visit(&mut squares);
    let norm = f64::from(Tensor::cat(squares.sums, 0).sum().into_scalar::<f32>()).sqrt();
    if let Some(factor) = clip_factor(norm, CLIPPING) {
        gpt.visit(&mut Scale { gradients, factor });
    }
}

/// Sums the squares of each parameter's gradient.
struct Squares<'a> {
    gradients: &'a GradientsParams,
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.get::<D>(param.id);
        self.sums.extend(gradient.map(|gradient| gradient.clone().mul(gradient).sum()));
    }
}

struct Scale<'a> {
    gradients: &'a mut GradientsParams,
    factor: f64,
}

impl ModuleVisitor for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.gradients.register(param.id, gradient.mul_scalar(self.factor));
        }
    }
}

/// The GPT of `brigade::models` in one piece.
#[derive(Module, Debug)]
struct Gpt {
    wte: Embedding,
    wpe: Param<Tensor<2>>,
    layers: Vec<Layer>,
    ln_f: LayerNorm,
    lm_head: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Layer {
    ln_1: LayerNorm,
    c_attn: Linear,
    c_proj: Linear,
    ln_2: LayerNorm,
    c_fc: Linear,
    out: Linear,
    heads: usize,
}

impl Gpt {
    fn new(config: &GptConfig, device: &Device) -> Self {
        let d = config.width;
        let norm = || LayerNormConfig::new(d).init(device);
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let layer = |_| Layer {
            ln_1: norm(),
            c_attn: linear(d, 3 * d),
            c_proj: linear(d, d),
            ln_2: norm(),
            c_fc: linear(d, 4 * d),
            out: linear(4 * d, d),
            heads: config.heads,
        };
        Self {
            wte: EmbeddingConfig::new(config.vocabulary, d).init(device),
            wpe: Initializer::Zeros.init([config.sequence_length, d], device),
            layers: (0..config.layers).map(layer).collect(),
            ln_f: norm(),
            lm_head: Initializer::Normal { mean: 0.0, std: 0.02 }.init([config.vocabulary, d], device),
        }
    }

    /// The mean loss of telling each token from those before it and itself; only its time matters.
    fn loss(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        let [rows, length] = tokens.dims();
        let mut x = self.wte.forward(tokens.clone()) + self.wpe.val().unsqueeze::<3>();
        for layer in &self.layers {
            x = layer.forward(x);
        }
        let [_, _, width] = x.dims();
        let x = self.ln_f.forward(x.reshape([rows * length, width]));
        let scores = log_softmax(x.matmul(self.lm_head.val().transpose()), 1);
        scores.gather(1, tokens.reshape([rows * length, 1])).sum().neg().div_scalar((rows * length) as f64)
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [b, t, d] = x.dims();
        let (h, size) = (self.heads, d / self.heads);
        let x = x.reshape([b * t, d]);
        let qkv =
            self.c_attn.forward(self.ln_1.forward(x.clone())).reshape([b, t, 3 * h, size]).swap_dims(1, 2);
        let part = |index: usize| qkv.clone().slice([0..b, index * h..(index + 1) * h]);
        let (q, k, v) = (part(0).mul_scalar((size as f64).powf(-0.5)), part(1), part(2));
        let scores = q.matmul(k.swap_dims(2, 3)) + causal_mask(t, &v.device().inner());
        let mixed = softmax(scores, 3).matmul(v).swap_dims(1, 2).reshape([b * t, d]);
        let x = x + self.c_proj.forward(mixed);
        let y = self.out.forward(gelu(self.c_fc.forward(self.ln_2.forward(x.clone()))));
        (x + y).reshape([b, t, d])
    }
}

/// `[1, 1, length, length]`, made on the device: 0 where a position may look, minus infinity at later positions.
fn causal_mask(length: usize, device: &Device) -> Tensor<4> {
    let position = Tensor::<1, Int>::arange(0..length as i64, device);
    let is_later = position.clone().reshape([1, length]).greater(position.reshape([length, 1]));
    Tensor::<2>::zeros([length, length], device).mask_fill(is_later, f32::NEG_INFINITY).unsqueeze()
}
