//! What an autodiff graph for each block costs: the same GPT, trained by the block engine and by plain Burn in one graph.
//!
//!     cargo bench --bench blocks -- blocks|one-graph [rows] [steps] [tiny]
//!     cargo bench --features cuda --bench blocks -- …      on the first GPU (or wgpu)
//!
//! The shape is that of `configs/gpt2-124m.toml` with a head of its own, in fp32 (`tiny`: 4 layers of width 128, to try it). Prints one JSON
//! line a step; `benches/gpu/run.sh` lets the two take turns.

use std::time::Instant;

use brigade::core::{Batch, Engine, EngineSettings, Groups, OptimizerFactory};
use brigade::models::gpt::{Gelu, GptConfig, Targets};
use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};

const RATE: f64 = 1e-4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse::<usize>().ok());
    let (rows, steps) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(8));
    let tiny = arguments.iter().any(|argument| argument == "tiny");
    let config = if tiny { shape(512, 64, 128, 4, 4) } else { shape(50257, 1024, 768, 12, 12) };
    let device = device();
    let tokens: Vec<i64> =
        (0..rows * config.sequence_length).map(|i| (i * 7919 % config.vocabulary) as i64).collect();
    let tokens = TensorData::new(tokens, [rows, config.sequence_length]);
    let tokens = Tensor::<2, Int>::from_data(tokens, &device);
    match arguments.first().map(String::as_str) {
        Some("blocks") => blocks(&config, &device, tokens, steps),
        Some("one-graph") => one_graph(&config, &device, tokens, steps),
        other => Err(format!("the first argument is blocks or one-graph, not {other:?}").into()),
    }
}

fn shape(vocabulary: usize, sequence_length: usize, width: usize, layers: usize, heads: usize) -> GptConfig {
    let activation = Gelu::Gelu;
    GptConfig { vocabulary, sequence_length, width, layers, heads, tied_head: false, activation }
}

/// The first device of the best backend that this was built for.
fn device() -> Device {
    #[cfg(feature = "cuda")]
    return Device::cuda(0);
    #[cfg(all(feature = "wgpu", not(feature = "cuda")))]
    return Device::wgpu(burn::tensor::DeviceKind::DefaultDevice);
    #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
    {
        brigade_cpu::keep_heap();
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
    let model = config.model(0, device)?;
    let mut engine = Engine::new(model, 0, &optimizer, Groups::alone(), EngineSettings::default())?;
    let count = tokens.dims().iter().product();
    for step in 0..steps {
        let started = Instant::now();
        let target = Targets { tokens: tokens.clone(), mask: None };
        let batch = Batch { input: tokens.clone(), target, valid_targets: count };
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
        let gradients = GradientsParams::from_grads(loss.backward(), &gpt);
        gpt = optimizer.step(RATE, gpt, gradients);
        let loss = f64::from(loss.into_scalar::<f32>());
        device.sync()?;
        report("one graph", step, started, count, loss);
    }
    Ok(())
}

/// The GPT of `brigade::models`, as one writes it without Brigade.
#[derive(Module, Debug)]
struct Gpt {
    wte: Embedding,
    wpe: Param<Tensor<2>>,
    layers: Vec<Layer>,
    ln_f: LayerNorm,
    lm_head: Linear,
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
            wpe: burn::module::Initializer::Zeros.init([config.sequence_length, d], device),
            layers: (0..config.layers).map(layer).collect(),
            ln_f: norm(),
            lm_head: LinearConfig::new(d, config.vocabulary).with_bias(false).init(device),
        }
    }

    /// The mean loss of telling each token from those before it and itself; only its time matters.
    fn loss(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        let [rows, length] = tokens.dims();
        let mut x = self.wte.forward(tokens.clone()) + self.wpe.val().unsqueeze::<3>();
        for layer in &self.layers {
            x = layer.forward(x);
        }
        let logits = self.lm_head.forward(self.ln_f.forward(x));
        let [_, _, vocabulary] = logits.dims();
        let scores = log_softmax(logits.reshape([rows * length, vocabulary]), 1);
        scores.gather(1, tokens.reshape([rows * length, 1])).mean().neg()
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [b, t, d] = x.dims();
        let (h, size) = (self.heads, d / self.heads);
        let qkv = self.c_attn.forward(self.ln_1.forward(x.clone()));
        let part = |index: usize| {
            let part = qkv.clone().narrow(2, index * d, d);
            part.reshape([b, t, h, size]).swap_dims(1, 2)
        };
        let scores = part(0).matmul(part(1).transpose()).div_scalar((size as f64).sqrt());
        let mask = Tensor::<2, Int>::ones([t, t], &x.device()).triu(1).bool().unsqueeze::<4>();
        let weights = softmax(scores.mask_fill(mask.expand([b, h, t, t]), f32::NEG_INFINITY), 3);
        let mixed = weights.matmul(part(2)).swap_dims(1, 2).reshape([b, t, d]);
        let x = x + self.c_proj.forward(mixed);
        let y = self.out.forward(gelu(self.c_fc.forward(self.ln_2.forward(x.clone()))));
        x + y
    }
}
