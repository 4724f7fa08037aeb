//! Losses: each is the loss of a model.

use brigade::core::Chain;
use burn::nn::Linear;
use burn::nn::loss::*;
use burn::tensor::activation::{log_softmax, sigmoid, softmax};
use burn::tensor::{Int, Tensor};

use super::{ROWS, Vectors, WIDTH, apply, dense, device, trains_alike};

/// A class of each sample.
fn classes(target: Vectors) -> Tensor<1, Int> {
    target.narrow(1, 0, 1).abs().mul_scalar(WIDTH as f32 - 0.5).int().reshape([-1])
}

/// Whether each value is positive.
fn binary(target: Vectors) -> Tensor<2, Int> {
    target.greater_scalar(0.0).int()
}

/// Both halves of each vector.
fn halves(x: Vectors) -> [Vectors; 2] {
    [x.clone().narrow(1, 0, WIDTH / 2), x.narrow(1, WIDTH / 2, WIDTH / 2)]
}

fn numbers<const N: usize>(values: [i64; N], like: &Vectors) -> Tensor<1, Int> {
    Tensor::from_ints(values, &like.device())
}

/// A test of each loss, and the names of their types.
macro_rules! losses {
    ($($name:ident: $module:expr, |$m:ident: $type:ty, $output:ident, $target:ident| $forward:expr;)*) => {
        pub const TYPES: &[&str] = &[$(stringify!($type)),*];

        $(#[test]
        fn $name() {
            trains_alike(&|| {
                let $m: $type = $module;
                Chain::new()
                    .then_fn("in", dense(), apply)
                    .then_fn("hidden", dense(), |linear: &Linear, x| apply(linear, x).tanh())
                    .then_fn("out", dense(), apply)
                    .loss(move |$output: Vectors, $target: Vectors| $forward)
            });
        })*
    };
}

// Where Burn gives a mean alone, it is multiplied by the number of samples.
#[rustfmt::skip]
losses! {
    binary_cross_entropy: BinaryCrossEntropyLossConfig::new().init(&device()), |loss: BinaryCrossEntropyLoss, output, target| loss.forward(sigmoid(output), binary(target)) * ROWS as f32;
    binary_cross_entropy_of_logits: BinaryCrossEntropyLossConfig::new().with_logits(true).with_smoothing(Some(0.1)).init(&device()), |loss: BinaryCrossEntropyLoss, output, target| loss.forward(output, binary(target)) * ROWS as f32;
    cosine_embedding: CosineEmbeddingLossConfig::new().with_reduction(Reduction::Sum).init(), |loss: CosineEmbeddingLoss, output, target| { let [a, b] = halves(output); loss.forward(a, b, target.narrow(1, 0, 1).sign().int().reshape([-1])) };
    cross_entropy: CrossEntropyLossConfig::new().init(&device()), |loss: CrossEntropyLoss, output, target| loss.forward(output, classes(target)) * ROWS as f32;
    cross_entropy_smoothed: CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(&device()), |loss: CrossEntropyLoss, output, target| loss.forward(output, classes(target)) * ROWS as f32;
    cross_entropy_weighted: CrossEntropyLossConfig::new().with_weights(Some((1..=WIDTH).map(|class| class as f32).collect())).init(&device()), |loss: CrossEntropyLoss, output, target| loss.forward(output, classes(target)) * ROWS as f32;
    ctc: CTCLossConfig::new().init(), |loss: CTCLoss, output, _target| { let (targets, inputs, lengths) = (numbers([3, 5, 2, 2], &output).reshape([2, 2]), numbers([4, 3], &output), numbers([2, 1], &output)); loss.forward_with_reduction(log_softmax(output.reshape([2, 4, 8]).swap_dims(0, 1), 2), targets, inputs, lengths, Reduction::Sum) };
    gaussian_nll: GaussianNLLLossConfig::new().with_full(true).init(), |loss: GaussianNLLLoss, output, target| loss.forward(output.clone(), target, output.exp(), Reduction::Sum);
    hinge_embedding: HingeEmbeddingLossConfig::new().init(), |loss: HingeEmbeddingLoss, output, target| loss.forward(output, target.sign(), Reduction::Sum);
    huber: HuberLossConfig::new(0.5).init(), |loss: HuberLoss, output, target| loss.forward(output, target, Reduction::Sum);
    kl_divergence: KLDivLossConfig::new().init(), |loss: KLDivLoss, output, target| loss.forward(log_softmax(output, 1), softmax(target, 1), Reduction::Sum);
    lp: LpLossConfig::new(3.0).init(), |loss: LpLoss, output, target| loss.forward(output, target, Reduction::Sum);
    lp_of_l1: LpLossConfig::l1(), |loss: LpLoss, output, target| loss.forward(output, target, Reduction::Sum);
    margin_ranking: MarginRankingLossConfig::new().with_margin(0.5).init(), |loss: MarginRankingLoss, output, target| { let [a, b] = halves(output); let [sign, _] = halves(target.sign()); loss.forward(a, b, sign, Reduction::Sum) };
    mse: MseLoss::new(), |loss: MseLoss, output, target| loss.forward(output, target, Reduction::Sum);
    multi_margin: MultiMarginLossConfig::new().with_p(2).init(), |loss: MultiMarginLoss, output, target| loss.forward(output, classes(target), Reduction::Sum);
    poisson_nll: PoissonNllLossConfig::new().init(), |loss: PoissonNllLoss, output, target| loss.forward(output, target.abs(), Reduction::Sum);
    poisson_nll_in_full: PoissonNllLossConfig::new().with_log_input(false).with_full(true).init(), |loss: PoissonNllLoss, output, target| loss.forward(output.exp(), target.abs() * 5.0, Reduction::Sum);
    rnnt: RNNTLossConfig::new().init(), |loss: RNNTLoss, output, _target| { let (targets, frames, lengths) = (numbers([3, 2], &output).reshape([2, 1]), numbers([4, 3], &output), numbers([1, 1], &output)); loss.forward_with_reduction(output.reshape([2, 4, 2, 4]), targets, frames, lengths, Reduction::Sum) };
    smooth_l1: SmoothL1LossConfig::new().init(), |loss: SmoothL1Loss, output, target| loss.forward_with_reduction(output, target, Reduction::Sum);
    soft_margin: SoftMarginLoss::new(), |loss: SoftMarginLoss, output, target| loss.forward(output, target.sign(), Reduction::Sum);
    triplet_margin: TripletMarginLossConfig::new().init(), |loss: TripletMarginLoss, output, target| loss.forward(output, target.clone(), target.neg(), Reduction::Sum);
}
