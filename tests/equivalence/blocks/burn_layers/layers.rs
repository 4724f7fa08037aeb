//! Layers: those of `burn::nn` but activations and losses.

use burn::nn::attention::*;
use burn::nn::conv::*;
use burn::nn::interpolate::*;
use burn::nn::norm::{Normalization, NormalizationConfig};
use burn::nn::pool::*;
use burn::nn::transformer::*;
use burn::nn::*;
use burn::tensor::Tensor;

use super::{Vectors, device, each_layer};

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

/// Only a decoder can read what a layer of one gives.
fn decoded(layer: &TransformerDecoderLayer, x: Tensor<3>) -> Tensor<3> {
    let mut decoder = TransformerDecoderConfig::new(8, 16, 2, 0).init(&x.device());
    decoder.layers.push(layer.clone());
    decoder.forward(TransformerDecoderInput::new(x.clone(), x.tanh()))
}

#[rustfmt::skip]
each_layer! {
    identity: Identity::new(), |m: Identity, x| m.forward(x);
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
    normalization_of_batch: NormalizationConfig::from(BatchNormConfig::new(8)).init(&device()), |m: Normalization, x| m.forward(channels(x));
    normalization_of_groups: NormalizationConfig::from(GroupNormConfig::new(2, 8)).init(&device()), |m: Normalization, x| m.forward(channels(x));
    normalization_of_instance: NormalizationConfig::from(InstanceNormConfig::new(8)).init(&device()), |m: Normalization, x| m.forward(channels(x));
    normalization_of_layer: NormalizationConfig::from(LayerNormConfig::new(32)).init(&device()), |m: Normalization, x| m.forward(x);
    normalization_of_rms: NormalizationConfig::from(RmsNormConfig::new(32)).init(&device()), |m: Normalization, x| m.forward(x);
    normalization_of_nothing: NormalizationConfig::Identity.init(&device()), |m: Normalization, x| m.forward(x);
    rnn: RnnConfig::new(8, 8, true).init(&device()), |m: Rnn, x| m.forward(sequence(x), None).0;
    bi_rnn: BiRnnConfig::new(8, 8, true).init(&device()), |m: BiRnn, x| m.forward(sequence(x), None).0;
    gru: GruConfig::new(8, 8, true).init(&device()), |m: Gru, x| m.forward(sequence(x), None);
    bi_gru: BiGruConfig::new(8, 8, true).init(&device()), |m: BiGru, x| m.forward(sequence(x), None).0;
    lstm: LstmConfig::new(8, 8, true).init(&device()), |m: Lstm, x| m.forward(sequence(x), None).0;
    bi_lstm: BiLstmConfig::new(8, 8, true).init(&device()), |m: BiLstm, x| m.forward(sequence(x), None).0;
    gate_controller: GateController::new(32, 32, true, Initializer::XavierNormal { gain: 1.0 }, &device()), |m: GateController, x| m.gate_product(x.clone(), x.tanh());
    attention: MultiHeadAttentionConfig::new(8, 2).init(&device()), |m: MultiHeadAttention, x| m.forward(MhaInput::self_attn(sequence(x))).context;
    cross_attention: CrossAttentionConfig::new(8, 8, 2, 2, 4).init(&device()), |m: CrossAttention, x| m.forward(sequence(x.clone()), sequence(x.tanh()), None);
    transformer_encoder: TransformerEncoderConfig::new(8, 16, 2, 1).init(&device()), |m: TransformerEncoder, x| m.forward(TransformerEncoderInput::new(sequence(x)));
    transformer_encoder_layer: TransformerEncoderLayer::new(&TransformerEncoderConfig::new(8, 16, 2, 1), &device()), |m: TransformerEncoderLayer, x| m.forward(sequence(x), None, None);
    transformer_decoder: TransformerDecoderConfig::new(8, 16, 2, 1).init(&device()), |m: TransformerDecoder, x| m.forward(TransformerDecoderInput::new(sequence(x.clone()), sequence(x.tanh())));
    transformer_decoder_layer: TransformerDecoderLayer::new(&TransformerDecoderConfig::new(8, 16, 2, 1), &device()), |m: TransformerDecoderLayer, x| decoded(m, sequence(x));
    feed_forward: PositionWiseFeedForwardConfig::new(8, 16).init(&device()), |m: PositionWiseFeedForward, x| m.forward(sequence(x));
    embedding: EmbeddingConfig::new(5, 8).init(&device()), |m: Embedding, x| sequence(x.clone()) + m.forward(sequence(x).mean_dim(2).squeeze_dim::<2>(2).sign().add_scalar(1.0).int());
    positional_encoding: PositionalEncodingConfig::new(8).init(&device()), |m: PositionalEncoding, x| m.forward(sequence(x));
    rotary_encoding: RotaryEncodingConfig::new(4, 8).init(&device()), |m: RotaryEncoding, x| m.forward(sequence(x));
    interpolate1d: Interpolate1dConfig::new().with_output_size(Some(6)).init(), |m: Interpolate1d, x| m.forward(channels(x));
    interpolate1d_linear: Interpolate1dConfig::new().with_output_size(Some(6)).with_mode(InterpolateMode::Linear).init(), |m: Interpolate1d, x| m.forward(channels(x));
    interpolate2d: Interpolate2dConfig::new().with_output_size(Some([6, 5])).with_mode(InterpolateMode::Nearest).init(), |m: Interpolate2d, x| m.forward(image(x));
    interpolate2d_linear: Interpolate2dConfig::new().with_output_size(Some([6, 5])).with_mode(InterpolateMode::Linear).init(), |m: Interpolate2d, x| m.forward(image(x));
    interpolate2d_linear_between_corners: Interpolate2dConfig::new().with_output_size(Some([6, 5])).with_mode(InterpolateMode::Linear).with_align_corners(false).init(), |m: Interpolate2d, x| m.forward(image(x));
    interpolate2d_cubic: Interpolate2dConfig::new().with_output_size(Some([6, 5])).with_mode(InterpolateMode::Cubic).init(), |m: Interpolate2d, x| m.forward(image(x));
    interpolate2d_by_factors: Interpolate2dConfig::new().with_scale_factor(Some([0.5, 1.5])).with_mode(InterpolateMode::Linear).init(), |m: Interpolate2d, x| m.forward(image(x));
    unfold: Unfold4dConfig::new([2, 2]).init(), |m: Unfold4d, x| m.forward(image(x));
    fold: Fold4dConfig::new([4, 2], [2, 1]).init(), |m: Fold4d, x| m.forward(x.reshape([-1, 4, 6 + 2]).slice([0..2, 0..4, 0..6]));
    pixel_shuffle: PixelShuffleConfig::new(2).init(), |m: PixelShuffle, x| m.forward(x.reshape([-1, 4, 2, 4]));
    pixel_unshuffle: PixelUnshuffleConfig::new(2).init(), |m: PixelUnshuffle, x| m.forward(image(x));
    cosine_similarity: CosineSimilarityConfig::new().init(), |m: CosineSimilarity, x| x.clone() * m.forward(x.clone(), x.tanh()).unsqueeze_dim::<2>(1);
    pairwise_distance: PairwiseDistanceConfig::new().init(), |m: PairwiseDistance, x| x.clone() * m.forward(x.clone(), x.tanh()).unsqueeze_dim::<2>(1);
    dropout: DropoutConfig::new(0.3).init(), |m: Dropout, x| m.forward(x);
    gaussian_noise: GaussianNoiseConfig::new(0.3).init(), |m: GaussianNoise, x| m.forward(x);
}

/// Burn's processor backend does not have these modes, or no gradient of them, and says so; and a weight whose layout in use is not that in files.
mod refused {
    use brigade::core::Dtype;
    use burn::nn::LinearLayout;

    use super::*;
    use crate::blocks::burn_layers::{step_on_one_process, with_two};

    fn interpolates_with(mode: InterpolateMode) {
        let config = Interpolate2dConfig::new().with_output_size(Some([6, 5])).with_mode(mode);
        let module = || config.clone().init();
        step_on_one_process(Dtype::F32, || {
            with_two([module(), module()], |m: &Interpolate2d, x| m.forward(image(x)))
        });
    }

    #[test]
    #[should_panic(
        expected = "(in block `a`, step 1, micro-batch 0); parameters and inputs of a block have the type of compute.dtype"
    )]
    fn constants_of_another_type() {
        let module = || PositionalEncodingConfig::new(8).init(&device());
        let apply = |m: &PositionalEncoding, x: Vectors| m.forward(sequence(x));
        step_on_one_process(Dtype::Bf16, || with_two([module(), module()], apply));
    }

    #[test]
    #[should_panic(expected = "`a.weight` is a parameter with a `load_mapper`")]
    fn linear_in_columns() {
        let module = || LinearConfig::new(32, 32).with_layout(LinearLayout::Col).init(&device());
        step_on_one_process(Dtype::F32, || with_two([module(), module()], |m: &Linear, x| m.forward(x)));
    }

    #[test]
    #[should_panic(expected = "interpolate: unsupported mode NearestExact")]
    fn interpolate2d_nearest_exact() {
        interpolates_with(InterpolateMode::NearestExact);
    }

    #[test]
    #[should_panic(expected = "interpolate_backward: unsupported mode Lanczos3 / dtype F32 (in block `")]
    fn interpolate2d_lanczos() {
        interpolates_with(InterpolateMode::Lanczos);
    }
}
