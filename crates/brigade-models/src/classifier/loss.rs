//! What classifiers are trained for.

use brigade_core::{Chain, Model};
use brigade_sorted::SortedMap;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

use crate::Tokens;
use crate::metrics::ACCURACY;

/// The mean distance of what a regression predicts from what is given.
pub const MEAN_ABSOLUTE_ERROR: &str = "mean_absolute_error";

/// Up to how many labels are counted one by one.
pub(super) const MAX_COUNTED: usize = 256;

/// With the cross entropy of a text's label, in nats; target: the labels' numbers, `[batch]`. Metrics: [`ACCURACY`], and for each label where there are at most 256,
/// by [`LabelCounts::metric`], how many texts have it, for how many it was predicted, and how many of these have it.
pub fn with_labels(
    chain: Chain<Tokens, Tensor<2>>,
    names: &[String],
) -> Model<Tokens, Tensor<2>, Tensor<1, Int>> {
    let counted = names.len() <= MAX_COUNTED;
    chain.loss_with_metrics(metrics(names), move |logits, labels| label_loss(logits, labels, counted))
}

/// With the binary cross entropy of each label of a text, in nats; target: 1 for each label that a text has, and 0 for the others, `[batch, labels]`. A batch has as many
/// targets as answers. Metrics: as of [`with_labels`], where a label is predicted if it is more likely than not.
pub fn with_label_sets(
    chain: Chain<Tokens, Tensor<2>>,
    names: &[String],
) -> Model<Tokens, Tensor<2>, Tensor<2>> {
    let counted = names.len() <= MAX_COUNTED;
    chain.loss_with_metrics(metrics(names), move |logits, labels| label_set_loss(logits, labels, counted))
}

/// The names of the metrics of labels.
fn metrics(names: &[String]) -> Vec<String> {
    let counts = names
        .iter()
        .filter(|_| names.len() <= MAX_COUNTED)
        .flat_map(|name| LabelCounts::KINDS.map(|kind| LabelCounts::metric(kind, name)));
    std::iter::once(ACCURACY.to_owned()).chain(counts).collect()
}

fn label_loss(logits: Tensor<2>, labels: Tensor<1, Int>, counted: bool) -> (Tensor<1>, Vec<Tensor<1>>) {
    let [batch, count] = logits.dims();
    let detached = logits.clone().detach();
    let labels = labels.reshape([batch, 1]);
    let loss = log_softmax(logits, 1).gather(1, labels.clone()).neg().sum_dim(0).reshape([1]);
    let all = || Tensor::<1, Int>::arange(0..count as i64, &detached.device()).unsqueeze::<2>();
    let is = all().equal(labels).float();
    let predicted = all().equal(detached.clone().argmax(1)).float();
    let right = is.clone() * predicted.clone();
    (loss, label_sums(is, predicted, right, counted))
}

fn label_set_loss(logits: Tensor<2>, labels: Tensor<2>, counted: bool) -> (Tensor<1>, Vec<Tensor<1>>) {
    let predicted = logits.clone().detach().greater_elem(0.0).float();
    let right = labels.clone().equal(predicted.clone()).float();
    // softplus(x) − x · y, by the larger of x and 0, so that nothing overflows.
    let softplus = logits.clone().clamp_min(0.0) + logits.clone().abs().neg().exp().add_scalar(1.0).log();
    let losses = softplus - logits * labels.clone();
    let loss = losses.sum_dim(0).sum_dim(1).reshape([1]);
    (loss, label_sums(labels, predicted, right, counted))
}

/// The sums of the metrics of labels, from 1 and 0 of each text and label: whether it has it, whether it is predicted, and whether the answer is right.
fn label_sums(is: Tensor<2>, predicted: Tensor<2>, right: Tensor<2>, counted: bool) -> Vec<Tensor<1>> {
    let count = is.dims()[1];
    let correct = is.clone() * predicted.clone();
    // Of each label, `[1, labels]`.
    let [is, predicted, correct, right] = [is, predicted, correct, right].map(|flags| flags.sum_dim(0));
    let mut sums = vec![right.sum_dim(1).reshape([1])];
    if counted {
        let of = |flags: &Tensor<2>, label| flags.clone().narrow(1, label, 1).reshape([1]);
        sums.extend((0..count).flat_map(|label| [&is, &predicted, &correct].map(|flags| of(flags, label))));
    }
    sums
}

/// With the squared distance of the one number that the model gives of a text from its target, `[batch]`; metric: [`MEAN_ABSOLUTE_ERROR`].
pub fn with_number(chain: Chain<Tokens, Tensor<2>>) -> Model<Tokens, Tensor<2>, Tensor<1>> {
    chain.loss_with_metrics([MEAN_ABSOLUTE_ERROR], |predicted, targets: Tensor<1>| {
        let [batch] = targets.dims();
        let difference = predicted.reshape([batch]) - targets;
        let distance = difference.clone().detach().abs().sum_dim(0);
        (difference.square().sum_dim(0), [distance])
    })
}

/// How many texts have a label, for how many it was predicted, and for how many of these rightly, or what share of all texts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LabelCounts {
    /// Those that have it (the support).
    pub texts: f64,
    /// Those for which it was predicted.
    pub predicted: f64,
    /// Those that have it and for which it was predicted.
    pub correct: f64,
}

impl LabelCounts {
    /// What is counted of each label.
    pub const KINDS: [&str; 3] = ["texts", "predicted", "correct"];

    /// The name of the metric that counts a label, such as `texts/LABEL`.
    pub fn metric(kind: &str, label: &str) -> String {
        format!("{kind}/{label}")
    }

    /// From the metrics of [`with_labels`]; none if the label is not counted.
    pub fn of(metrics: &SortedMap<String, f64>, label: &str) -> Option<Self> {
        let [texts, predicted, correct] =
            Self::KINDS.map(|kind| metrics.get(&Self::metric(kind, label)).copied());
        Some(Self { texts: texts?, predicted: predicted?, correct: correct? })
    }

    /// The harmonic mean of precision and recall; none if the label is neither there nor predicted.
    pub fn f1(&self) -> Option<f64> {
        let sum = self.texts + self.predicted;
        (sum > 0.0).then(|| 2.0 * self.correct / sum)
    }
}

/// The mean of the F1 scores of labels, as `sklearn` computes it, from the metrics of [`with_labels`] or, where texts have `several` labels, of
/// [`with_label_sets`]: there a label that is neither there nor predicted counts as 0, and else not at all. None where labels are not counted.
pub fn macro_f1(metrics: &SortedMap<String, f64>, names: &[String], several: bool) -> Option<f64> {
    let counts: Option<Vec<_>> = names.iter().map(|name| LabelCounts::of(metrics, name)).collect();
    let score = |counts: &LabelCounts| counts.f1().or(several.then_some(0.0));
    let scores: Vec<f64> = counts?.iter().filter_map(score).collect();
    Some(scores.iter().sum::<f64>() / scores.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn labels_are_counted() {
        let device = Device::flex();
        let logits = [[0.0, 2.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0], [0.0, 2.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]];
        let labels = Tensor::from_ints([1, 1, 1, 0], &device);
        let (loss, sums) = label_loss(Tensor::<2>::from_floats(logits, &device), labels, true);
        assert!(loss.into_scalar::<f32>() > 0.0);
        let sums: Vec<f64> = sums.into_iter().map(|sum| f64::from(sum.into_scalar::<f32>())).collect();
        assert_eq!(sums, [2.0, 1.0, 1.0, 0.0, 3.0, 2.0, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let of_label =
            names.iter().flat_map(|name| LabelCounts::KINDS.map(|kind| LabelCounts::metric(kind, name)));
        let metrics: SortedMap<String, f64> = of_label.zip(sums.iter().skip(1).copied()).collect();
        let b = LabelCounts::of(&metrics, "b").unwrap();
        assert_eq!((b.f1(), LabelCounts::of(&metrics, "d").unwrap().f1()), (Some(0.8), None));
        // sklearn.metrics.f1_score([1, 1, 1, 0], [1, 0, 1, 2], average="macro")
        assert!((macro_f1(&metrics, &names, false).unwrap() - 0.8 / 3.0).abs() < 1e-12);
        // A matrix with a column for each label, of which the last is all zeros.
        assert!((macro_f1(&metrics, &names, true).unwrap() - 0.8 / 4.0).abs() < 1e-12);
    }

    #[test]
    fn labels_of_which_a_text_has_several_are_counted() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[200.0, -200.0], [0.5, -1.0]], &device);
        let labels = Tensor::<2>::from_floats([[1.0, 1.0], [0.0, 0.0]], &device);
        let (loss, sums) = label_set_loss(logits, labels, true);
        // torch.nn.functional.binary_cross_entropy_with_logits(…, reduction="sum")
        assert!((loss.into_scalar::<f32>() - 201.287_34).abs() < 1e-4);
        let sums: Vec<f32> = sums.into_iter().map(|sum| sum.into_scalar::<f32>()).collect();
        assert_eq!(sums, [2.0, 1.0, 2.0, 1.0, 1.0, 0.0, 0.0]);
    }
}
