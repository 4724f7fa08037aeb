//! What a language model is to predict, and how well it does.

use burn::tensor::{Int, Tensor};

use crate::{Logits, LossOptions};

/// What a language model is to predict.
#[derive(Debug, Clone)]
pub struct Targets {
    /// The next token of each position, `[batch, sequence]`; below 0, such as -100, where it is masked as well.
    pub tokens: Tensor<2, Int>,
    /// 1 where the target counts, 0 where it is masked, `[batch, sequence]`; none if all count.
    pub mask: Option<Tensor<2>>,
}

/// The metric's name: the share of valid targets to which the model gives the highest logit.
pub const ACCURACY: &str = "next_token_accuracy";

/// The sum over valid targets of the cross entropy, in nats, and the number of those whose logit is the highest of their row,
/// each of shape `[1]`.
pub fn cross_entropy(logits: Logits, targets: Targets) -> (Tensor<1>, [Tensor<1>; 1]) {
    cross_entropy_with(logits, targets, LossOptions::default(), 1)
}

/// [`cross_entropy`], in training with these options, and with fewer logits in memory at a time.
pub(crate) fn cross_entropy_with(
    logits: Logits,
    targets: Targets,
    options: LossOptions,
    rows_divisor: usize,
) -> (Tensor<1>, [Tensor<1>; 1]) {
    let [batch, length] = targets.tokens.dims();
    let tokens = targets.tokens.reshape([batch * length]);
    let mask = targets.mask.map(|mask| mask.reshape([batch * length]));
    let (loss, correct) = logits.cross_entropy_with(tokens, mask, options, rows_divisor);
    (loss, [correct])
}
