//! Models of every shape: what flows between blocks may be several tensors of any kind, and blocks need not have parameters.

use brigade::core::{Batch, Block, Chain, EngineSettings, Groups};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoder,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, Relu};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::case::{Case, floats, ints};

const WIDTH: usize = 6;

fn device() -> Device {
    brigade_cpu::device().autodiff()
}

fn linear(inputs: usize, outputs: usize) -> Linear {
    LinearConfig::new(inputs, outputs).init(&device())
}

fn squared<const D: usize>(output: Tensor<D>, target: Tensor<D>) -> Tensor<1> {
    (output - target).square().sum()
}

fn apply(linear: &Linear, x: Tensor<2>) -> Tensor<2> {
    linear.forward(x)
}

fn vectors(number: usize) -> Batch<Tensor<2>, Tensor<2>> {
    Batch::new(floats(number, 1, [3, WIDTH]), floats(number, 2, [3, WIDTH]), 3)
}

#[test]
fn parameters_may_be_used_twice_in_a_block() {
    let twice = |linear: &Linear, x: Tensor<2>| linear.forward(linear.forward(x).tanh());
    let model = move || {
        (0..4)
            .fold(Chain::new(), |chain, index| chain.then_fn(format!("{index}"), linear(WIDTH, WIDTH), twice))
            .loss(squared)
    };
    Case { model, batch: vectors }.equals_one_process();
}

#[test]
fn blocks_may_be_without_parameters() {
    let model = || {
        let relu = |relu: &Relu, x: Tensor<2>| relu.forward(x);
        let scale = |dropout: &Dropout, x: Tensor<2>| dropout.forward(x) * 0.5;
        Chain::new()
            .then_fn("scale", DropoutConfig::new(0.2).init(), scale)
            .then_fn("first", linear(WIDTH, WIDTH), apply)
            .then_fn("relu", Relu::new(), relu)
            .then_fn("second", linear(WIDTH, WIDTH), apply)
            .then_fn("last", Relu::new(), relu)
            .loss(squared)
    };
    Case { model, batch: vectors }.equals_one_process();
}

/// The first block says where the large values are and which of them are below zero; the others use it.
#[test]
fn integers_and_booleans_may_flow_between_blocks() {
    type Marked = (Tensor<2>, Tensor<2, Int>, Tensor<2, Bool>);
    let mark = |linear: &Linear, x: Tensor<2>| -> Marked {
        let y = linear.forward(x);
        (y.clone(), y.clone().argmax(1), y.lower_elem(0.0))
    };
    let use_marks = |linear: &Linear, (x, largest, negative): Marked| -> Marked {
        let y = linear.forward(x.clone().mask_fill(negative.clone(), 0.1));
        let added = x.gather(1, largest.clone());
        (y + added, largest, negative)
    };
    let model = move || {
        Chain::new()
            .then_fn("mark", linear(WIDTH, WIDTH), mark)
            .then_fn("a", linear(WIDTH, WIDTH), use_marks)
            .then_fn("b", linear(WIDTH, WIDTH), use_marks)
            .then_fn("last", linear(WIDTH, WIDTH), |linear: &Linear, (x, _, _): Marked| linear.forward(x))
            .loss(squared)
    };
    Case { model, batch: vectors }.equals_one_process();
}

#[test]
fn a_model_may_have_several_inputs() {
    type Inputs = (Tensor<2>, Tensor<2, Int>, Tensor<2>);
    type Embed = (Linear, Embedding);
    let join = |(linear, embedding): &Embed, (x, words, weights): Inputs| -> (Tensor<2>, Tensor<2>) {
        let words = embedding.forward(words).mean_dim(1).squeeze_dim::<2>(1);
        (linear.forward(x) + words, weights)
    };
    let weigh = |linear: &Linear, (x, weights): (Tensor<2>, Tensor<2>)| {
        (linear.forward(x * weights.clone()), weights)
    };
    let model = move || {
        Chain::new()
            .then_fn("join", (linear(WIDTH, WIDTH), EmbeddingConfig::new(9, WIDTH).init(&device())), join)
            .then_fn("a", linear(WIDTH, WIDTH), weigh)
            .then_fn("b", linear(WIDTH, WIDTH), weigh)
            .then_fn("last", linear(WIDTH, WIDTH), |linear: &Linear, (x, _): (Tensor<2>, Tensor<2>)| {
                linear.forward(x)
            })
            .loss(squared)
    };
    let batch = |number| {
        let Batch { input, target, .. } = vectors(number);
        Batch::new((input, ints(number, 9, [3, 4]), floats(number, 5, [3, WIDTH])), target, 3)
    };
    Case { model, batch }.equals_one_process();
}

/// Each half of the way down keeps its output for the half of the way up that has its size.
#[test]
fn outputs_may_skip_blocks_as_in_a_u_net() {
    type Image = Tensor<4>;
    type Down = (Conv2d, MaxPool2d);
    type Up = (ConvTranspose2d, Conv2d);
    let down = |inputs, outputs| -> Down {
        let conv = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(burn::nn::PaddingConfig2d::Same);
        (conv.init(&device()), MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init())
    };
    let up = |inputs, outputs| -> Up {
        let grow = ConvTranspose2dConfig::new([inputs, outputs], [2, 2]).with_stride([2, 2]);
        let conv =
            Conv2dConfig::new([2 * outputs, outputs], [3, 3]).with_padding(burn::nn::PaddingConfig2d::Same);
        (grow.init(&device()), conv.init(&device()))
    };
    fn go_up((grow, conv): &Up, x: Image, skipped: Image) -> Image {
        conv.forward(Tensor::cat(vec![grow.forward(x), skipped], 1)).tanh()
    }
    let model = move || {
        Chain::new()
            .then_fn("down.0", down(1, 2), |(conv, pool): &Down, x: Image| {
                let y = conv.forward(x).tanh();
                (pool.forward(y.clone()), y)
            })
            .then_fn("down.1", down(2, 3), |(conv, pool): &Down, (x, first): (Image, Image)| {
                let y = conv.forward(x).tanh();
                (pool.forward(y.clone()), y, first)
            })
            .then_fn("up.1", up(3, 3), |m: &Up, (x, second, first): (Image, Image, Image)| {
                (go_up(m, x, second), first)
            })
            .then_fn("up.0", up(3, 2), |m: &Up, (x, first): (Image, Image)| go_up(m, x, first))
            .loss(squared)
    };
    let batch = |number| Batch::new(floats(number, 1, [2, 1, 8, 8]), floats(number, 2, [2, 2, 8, 8]), 2);
    Case { model, batch }.equals_one_process();
}

/// The sentence to translate and its translation so far go in; the decoder reads what the encoder made of the first.
#[test]
fn an_encoder_may_have_a_decoder() {
    type Words = Tensor<2, Int>;
    #[derive(Module, Debug)]
    struct Embed {
        source: Embedding,
        target: Embedding,
    }
    impl Block for Embed {
        type Input = (Words, Words);
        type Output = (Tensor<3>, Tensor<3>);
        fn forward(&self, (source, target): (Words, Words)) -> (Tensor<3>, Tensor<3>) {
            (self.source.forward(source), self.target.forward(target))
        }
    }
    let embedding = || EmbeddingConfig::new(11, 8).init(&device());
    let encode = |encoder: &TransformerEncoder, (source, target): (Tensor<3>, Tensor<3>)| {
        (encoder.forward(TransformerEncoderInput::new(source)), target)
    };
    let decode = |decoder: &TransformerDecoder, (memory, target): (Tensor<3>, Tensor<3>)| {
        decoder.forward(TransformerDecoderInput::new(target, memory))
    };
    let model = move || {
        Chain::new()
            .then("embeddings", Embed { source: embedding(), target: embedding() })
            .then_fn("encoder.0", TransformerEncoderConfig::new(8, 16, 2, 1).init(&device()), encode)
            .then_fn("encoder.1", TransformerEncoderConfig::new(8, 16, 2, 1).init(&device()), encode)
            .then_fn("decoder", TransformerDecoderConfig::new(8, 16, 2, 1).init(&device()), decode)
            .then_fn("head", linear(8, 11), |linear: &Linear, x: Tensor<3>| linear.forward(x))
            .loss(squared)
    };
    let batch = |number| {
        Batch::new((ints(number, 11, [2, 5]), ints(number + 7, 11, [2, 3])), floats(number, 2, [2, 3, 11]), 6)
    };
    Case { model, batch }.equals_one_process();
}

#[test]
fn clones_of_parameters_without_values_are_named() {
    let layer = linear(4, 4);
    let refused = || {
        let layers = || Chain::new().then_fn("a", layer.clone(), apply).then_fn("b", layer.clone(), apply);
        let case = Case { model: || layers().loss(squared), batch: vectors };
        case.engine(Groups::single_rank(), EngineSettings::default())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let message = refused().unwrap_err();
    for said in ["`b.bias` is a clone of `a.bias`", "from its config", "`Chain::tie`"] {
        assert!(message.contains(said), "{said}: {message}");
    }
    // With values, each is a module of its own.
    drop(brigade::initialize(layer.clone(), 1, "layer"));
    refused().unwrap();
}
