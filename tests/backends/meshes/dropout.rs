//! Dropout on GPUs. They draw other masks than the CPU, but the same in each run and on every mesh: a seed is set before a block
//! runs, under a lock, and each kernel that draws takes its seeds when it is launched.

use brigade::core::{Activation, Batch, Chain, EngineSettings, Groups, Model};
use brigade::models::gpt::{self, Gelu, GptConfig, Targets};
use brigade::models::{Logits, Tokens};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use super::case::{Case, floats, ints};
use crate::backend::{Backend, backends};

const VOCABULARY: usize = 13;
const WIDTH: usize = 8;
const LENGTH: usize = 5;

/// How far runs are apart, at least, that have other masks: as a part of what is learned, of which rounding is less than a hundredth.
const APART: f64 = 0.25;

/// Dropout of the embeddings, in attention and of what goes to the residual stream.
pub fn gpt(device: &Device, dropout: f64) -> Model<Tokens, Logits, Targets> {
    let config = GptConfig {
        vocabulary: VOCABULARY,
        sequence_length: LENGTH,
        width: WIDTH,
        layers: 2,
        heads: 2,
        tied_head: true,
        activation: Gelu::GeluTanh,
        dropout,
        // So large that masks show in the loss.
        initializer_range: 0.3,
    };
    config.chain(5, device).unwrap().loss(|logits, targets| gpt::cross_entropy(logits, targets).0)
}

pub fn texts(number: usize, device: &Device) -> Batch<Tokens, Targets> {
    let tokens = |number| ints(number, VOCABULARY, [2, LENGTH], device);
    Batch::new(tokens(number).into(), Targets { tokens: tokens(number + 100), mask: None }, 2 * LENGTH)
}

/// Burn's own layers, unchanged.
fn encoder(device: &Device, dropout: f64) -> Model<Tensor<2, Int>, Tensor<3>, Tensor<3>> {
    let device = &device.clone().autodiff();
    let drop = DropoutConfig::new(dropout).init();
    let embedding = (EmbeddingConfig::new(VOCABULARY, WIDTH).init(device), drop.clone());
    let layer = || TransformerEncoderConfig::new(WIDTH, 16, 2, 1).with_dropout(dropout).init(device);
    let encode = |m: &TransformerEncoder, x: Tensor<3>| m.forward(TransformerEncoderInput::new(x));
    type Embed = (Embedding, Dropout);
    type Head = (Dropout, Linear);
    Chain::new()
        .then_fn("embedding", embedding, |(m, d): &Embed, x| d.forward(m.forward(x)))
        .then_fn("layers.0", layer(), encode)
        .then_fn("layers.1", layer(), encode)
        .then_fn("head", (drop, LinearConfig::new(WIDTH, 2).init(device)), |(d, m): &Head, x| {
            m.forward(d.forward(x))
        })
        .loss(|output, target: Tensor<3>| (output - target).square().sum())
}

fn sentences(number: usize, device: &Device) -> Batch<Tensor<2, Int>, Tensor<3>> {
    let input = ints(number, VOCABULARY, [2, LENGTH], device);
    Batch::new(input, floats(number, 3, [2, LENGTH, 2], device), 2 * LENGTH)
}

/// A run of one seed is the same everywhere, and far from one of another seed, whose initial weights and data are the same.
fn equals_one_process<I: Activation + Clone, O: Activation, T: Clone + 'static>(
    model: impl Fn(&Device, f64) -> Model<I, O, T> + Sync,
    batch: impl Fn(usize, &Device) -> Batch<I, T> + Sync,
) {
    let (model, batch) = (&model, &batch);
    let with = |dropout| Case { model: move |device: &Device| model(device, dropout), batch, seed: 11 };
    for backend in backends() {
        let one = with(0.5).equals_one_process(&backend);
        let apart = with(0.5).distance_of_another_seed(&backend, &one);
        assert!(apart > APART, "{}: {apart} apart", backend.name);
        let without = with(0.0);
        let one = without.alone(&backend);
        let apart = without.distance_of_another_seed(&backend, &one);
        assert_eq!(apart, 0.0, "{}: nothing but dropout draws", backend.name);
    }
}

#[test]
fn a_gpt_drops_the_same_on_every_mesh() {
    equals_one_process(gpt, texts);
}

#[test]
fn burns_layers_drop_the_same_on_every_mesh() {
    equals_one_process(encoder, sentences);
}

/// The losses of a step with one micro-batch, the same step with that twice, and the next one with it. Nothing is learned.
fn repeated(backend: &Backend, dropout: f64) -> [f64; 3] {
    let losses = |device: Device, groups: Groups| {
        let case = Case { model: |device: &Device| gpt(device, dropout), batch: texts, seed: 11 };
        let mut engine = case.engine(&device, groups, EngineSettings::default());
        let times = |count: usize| (0..count).map(|_| texts(0, &device)).collect::<Vec<_>>();
        let [one, two] = [1, 2].map(|count| engine.gradients(&times(count), 0).unwrap().0);
        engine.step(times(1), 0.0).unwrap();
        [one, two, engine.gradients(&times(1), 0).unwrap().0]
    };
    backend.on_threads(1, 1, losses).remove(0)
}

#[test]
fn masks_differ_between_steps_and_micro_batches() {
    for backend in backends() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-4 * b;
        let [one, twice, next] = repeated(&backend, 0.0);
        assert!(near(one, twice) && near(one, next), "{}: {one}, {twice}, {next}", backend.name);
        let [one, twice, next] = repeated(&backend, 0.5);
        assert!(!near(one, twice) && !near(one, next), "{}: {one}, {twice}, {next}", backend.name);
    }
}
