//! Every layer of Burn that a training step can hold: on replicas, stages and shards, and computed again, with the bits of one process.

use brigade::core::{Batch, Chain, Model};
use burn::nn::attention::*;
use burn::nn::conv::*;
use burn::nn::interpolate::*;
use burn::nn::pool::*;
use burn::nn::transformer::*;
use burn::nn::{activation, *};
use burn::tensor::{Device, Tensor};

use crate::case::{Case, floats, one_mesh_each};

/// Samples of a micro-batch, and values of each.
const ROWS: usize = 2;
const WIDTH: usize = 32;

type Vectors = Tensor<2>;

fn device() -> Device {
    brigade_cpu::device().autodiff()
}

fn sequence(x: Vectors) -> Tensor<3> {
    x.reshape([-1, 4, 8])
}

fn channels(x: Vectors) -> Tensor<3> {
    x.reshape([-1, 8, 4])
}

fn image(x: Vectors) -> Tensor<4> {
    x.reshape([-1, 2, 4, 4])
}

fn volume(x: Vectors) -> Tensor<5> {
    x.reshape([-1, 2, 2, 2, 4])
}

/// The values of each sample as a vector, repeated or cut.
fn vectors<const D: usize>(x: Tensor<D>) -> Vectors {
    let flat: Vectors = x.reshape([ROWS as i32, -1]);
    let times = WIDTH.div_ceil(flat.dims()[1]);
    Tensor::cat(vec![flat; times], 1).narrow(1, 0, WIDTH)
}

fn trains_alike(model: &(dyn Fn() -> Model<Vectors, Vectors, Vectors> + Sync)) {
    let batch = |number| Batch::new(floats(number, 1, [ROWS, WIDTH]), floats(number, 2, [ROWS, 3]), ROWS);
    Case { model, batch }.equals_one_process_on(&one_mesh_each());
}

fn dense(outputs: usize) -> Linear {
    LinearConfig::new(WIDTH, outputs).init(&device())
}

macro_rules! layers {
    ($($name:ident: $module:expr, |$m:ident: $type:ty, $x:ident| $forward:expr;)*) => {
        $(#[test]
        fn $name() {
            let model = || {
                let forward = |$m: &$type, $x: Vectors| vectors($forward);
                Chain::new()
                    .then_fn("in", dense(WIDTH), |linear: &Linear, x: Vectors| linear.forward(x))
                    .then_fn("a", $module, forward)
                    .then_fn("b", $module, forward)
                    .then_fn("out", dense(3), |linear: &Linear, x| linear.forward(x))
                    .loss(|output: Vectors, target: Vectors| (output - target).square().sum())
            };
            trains_alike(&model);
        })*
    };
}

#[rustfmt::skip]
layers! {
    linear: LinearConfig::new(32, 32).init(&device()), |m: Linear, x| m.forward(x);
    conv1d: Conv1dConfig::new(8, 8, 3).init(&device()), |m: Conv1d, x| m.forward(channels(x));
    conv2d: Conv2dConfig::new([2, 2], [3, 3]).init(&device()), |m: Conv2d, x| m.forward(image(x));
    conv3d: Conv3dConfig::new([2, 2], [2, 2, 2]).init(&device()), |m: Conv3d, x| m.forward(volume(x));
    conv_transpose1d: ConvTranspose1dConfig::new([8, 8], 3).init(&device()), |m: ConvTranspose1d, x| m.forward(channels(x));
    conv_transpose2d: ConvTranspose2dConfig::new([2, 2], [3, 3]).init(&device()), |m: ConvTranspose2d, x| m.forward(image(x));
    conv_transpose3d: ConvTranspose3dConfig::new([2, 2], [2, 2, 2]).init(&device()), |m: ConvTranspose3d, x| m.forward(volume(x));
    deform_conv2d: DeformConv2dConfig::new([2, 2], [1, 1]).init(&device()), |m: DeformConv2d, x| m.forward(image(x.clone()), image(x).mul_scalar(0.3), None);
    avg_pool1d: AvgPool1dConfig::new(2).init(), |m: AvgPool1d, x| m.forward(channels(x));
    avg_pool2d: AvgPool2dConfig::new([2, 2]).init(), |m: AvgPool2d, x| m.forward(image(x));
    max_pool1d: MaxPool1dConfig::new(2).init(), |m: MaxPool1d, x| m.forward(channels(x));
    max_pool2d: MaxPool2dConfig::new([2, 2]).init(), |m: MaxPool2d, x| m.forward(image(x));
    adaptive_avg_pool1d: AdaptiveAvgPool1dConfig::new(3).init(), |m: AdaptiveAvgPool1d, x| m.forward(channels(x));
    adaptive_avg_pool2d: AdaptiveAvgPool2dConfig::new([3, 2]).init(), |m: AdaptiveAvgPool2d, x| m.forward(image(x));
    adaptive_avg_pool3d: AdaptiveAvgPool3dConfig::new([1, 2, 3]).init(), |m: AdaptiveAvgPool3d, x| m.forward(volume(x));
    batch_norm: BatchNormConfig::new(8).init(&device()), |m: BatchNorm, x| m.forward(channels(x));
    batch_norm_of_images: BatchNormConfig::new(2).init(&device()), |m: BatchNorm, x| m.forward(image(x));
    group_norm: GroupNormConfig::new(2, 8).init(&device()), |m: GroupNorm, x| m.forward(channels(x));
    instance_norm: InstanceNormConfig::new(8).init(&device()), |m: InstanceNorm, x| m.forward(channels(x));
    layer_norm: LayerNormConfig::new(32).init(&device()), |m: LayerNorm, x| m.forward(x);
    rms_norm: RmsNormConfig::new(32).init(&device()), |m: RmsNorm, x| m.forward(x);
    local_response_norm: LocalResponseNormConfig::new(3).init(), |m: LocalResponseNorm, x| m.forward(image(x));
    rnn: RnnConfig::new(8, 8, true).init(&device()), |m: Rnn, x| m.forward(sequence(x), None).0;
    bi_rnn: BiRnnConfig::new(8, 8, true).init(&device()), |m: BiRnn, x| m.forward(sequence(x), None).0;
    gru: GruConfig::new(8, 8, true).init(&device()), |m: Gru, x| m.forward(sequence(x), None);
    bi_gru: BiGruConfig::new(8, 8, true).init(&device()), |m: BiGru, x| m.forward(sequence(x), None).0;
    lstm: LstmConfig::new(8, 8, true).init(&device()), |m: Lstm, x| m.forward(sequence(x), None).0;
    bi_lstm: BiLstmConfig::new(8, 8, true).init(&device()), |m: BiLstm, x| m.forward(sequence(x), None).0;
    attention: MultiHeadAttentionConfig::new(8, 2).init(&device()), |m: MultiHeadAttention, x| m.forward(MhaInput::self_attn(sequence(x))).context;
    cross_attention: CrossAttentionConfig::new(8, 8, 2, 2, 4).init(&device()), |m: CrossAttention, x| m.forward(sequence(x.clone()), sequence(x.tanh()), None);
    transformer_encoder: TransformerEncoderConfig::new(8, 16, 2, 1).init(&device()), |m: TransformerEncoder, x| m.forward(TransformerEncoderInput::new(sequence(x)));
    transformer_decoder: TransformerDecoderConfig::new(8, 16, 2, 1).init(&device()), |m: TransformerDecoder, x| m.forward(TransformerDecoderInput::new(sequence(x.clone()), sequence(x.tanh())));
    feed_forward: PositionWiseFeedForwardConfig::new(8, 16).init(&device()), |m: PositionWiseFeedForward, x| m.forward(sequence(x));
    embedding: EmbeddingConfig::new(5, 8).init(&device()), |m: Embedding, x| sequence(x.clone()) + m.forward(sequence(x).mean_dim(2).squeeze_dim::<2>(2).sign().add_scalar(1.0).int());
    positional_encoding: PositionalEncodingConfig::new(8).init(&device()), |m: PositionalEncoding, x| m.forward(sequence(x));
    rotary_encoding: RotaryEncodingConfig::new(4, 8).init(&device()), |m: RotaryEncoding, x| m.forward(sequence(x));
    interpolate1d: Interpolate1dConfig::new().with_output_size(Some(6)).init(), |m: Interpolate1d, x| m.forward(channels(x));
    interpolate2d: Interpolate2dConfig::new().with_output_size(Some([6, 5])).with_mode(InterpolateMode::Nearest).init(), |m: Interpolate2d, x| m.forward(image(x));
    unfold: Unfold4dConfig::new([2, 2]).init(), |m: Unfold4d, x| m.forward(image(x));
    fold: Fold4dConfig::new([4, 2], [2, 1]).init(), |m: Fold4d, x| m.forward(x.reshape([-1, 4, 6 + 2]).slice([0..2, 0..4, 0..6]));
    pixel_shuffle: PixelShuffleConfig::new(2).init(), |m: PixelShuffle, x| m.forward(x.reshape([-1, 4, 2, 4]));
    pixel_unshuffle: PixelUnshuffleConfig::new(2).init(), |m: PixelUnshuffle, x| m.forward(image(x));
    cosine_similarity: CosineSimilarityConfig::new().init(), |m: CosineSimilarity, x| x.clone() * m.forward(x.clone(), x.tanh()).unsqueeze_dim::<2>(1);
    dropout: DropoutConfig::new(0.3).init(), |m: Dropout, x| m.forward(x);
    gaussian_noise: GaussianNoiseConfig::new(0.3).init(), |m: GaussianNoise, x| m.forward(x);
    swiglu: SwiGluConfig::new(32, 16).init(&device()), |m: SwiGlu, x| m.forward(x);
    prelu: PReluConfig::new().init(&device()), |m: PRelu, x| m.forward(x);
    rrelu: activation::RReluConfig::new().init(), |m: activation::RRelu, x| m.forward(x);
    celu: CeluConfig::new().init(), |m: Celu, x| m.forward(x);
    elu: EluConfig::new().init(), |m: Elu, x| m.forward(x);
    gelu: Gelu::new(), |m: Gelu, x| m.forward(x);
    gelu_of_tanh: Gelu::new_approximate(), |m: Gelu, x| m.forward(x);
    glu: GLU::new(1), |m: GLU, x| m.forward(x);
    hard_shrink: HardShrinkConfig::new().init(), |m: HardShrink, x| m.forward(x);
    hard_sigmoid: HardSigmoidConfig::new().init(), |m: HardSigmoid, x| m.forward(x);
    hard_swish: activation::HardSwish::new(), |m: activation::HardSwish, x| m.forward(x);
    hardtanh: activation::HardtanhConfig::new().init(), |m: activation::Hardtanh, x| m.forward(x);
    leaky_relu: LeakyReluConfig::new().init(), |m: LeakyRelu, x| m.forward(x);
    log_sigmoid: activation::LogSigmoid::new(), |m: activation::LogSigmoid, x| m.forward(x);
    mish: activation::Mish::new(), |m: activation::Mish, x| m.forward(x);
    relu: Relu::new(), |m: Relu, x| m.forward(x);
    relu6: activation::Relu6::new(), |m: activation::Relu6, x| m.forward(x);
    selu: Selu::new(), |m: Selu, x| m.forward(x);
    shrink: ShrinkConfig::new().init(), |m: Shrink, x| m.forward(x);
    sigmoid: Sigmoid::new(), |m: Sigmoid, x| m.forward(x);
    silu: activation::SiLU::new(), |m: activation::SiLU, x| m.forward(x);
    soft_shrink: SoftShrinkConfig::new().init(), |m: SoftShrink, x| m.forward(x);
    softplus: SoftplusConfig::new().init(), |m: Softplus, x| m.forward(x);
    softsign: Softsign::new(), |m: Softsign, x| m.forward(x);
    tanh: Tanh::new(), |m: Tanh, x| m.forward(x);
    tanhshrink: activation::Tanhshrink::new(), |m: activation::Tanhshrink, x| m.forward(x);
    threshold: activation::ThresholdConfig::new(0.1, 0.2).init(), |m: activation::Threshold, x| m.forward(x);
    thresholded_relu: ThresholdedReluConfig::new().init(), |m: ThresholdedRelu, x| m.forward(x);
}
