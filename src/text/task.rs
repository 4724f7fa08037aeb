//! What a model of text is trained for: its inputs, its loss, its metrics.

use brigade_core::{Activation, Batch, Model, ParameterCounts};
use brigade_data::TokenSequences;
use brigade_models::classifier::{SequenceClassifier, macro_f1};
use brigade_models::encoder::{Encoder, Masking};
use brigade_models::gpt::Targets;
use brigade_models::{CausalLm, Logits, Tokens, WeightsMapping};
use brigade_sorted::SortedMap;
use burn::tensor::{Device, Int, Tensor};

use super::{ClassificationDataset, MaskedDataset, MultiLabelDataset, RegressionDataset, TokenDataset};
use crate::dataset::Dataset;
use crate::training_setup::DerivedMetric;

/// The metric of a classification: the mean of the F1 scores of its labels.
pub const MACRO_F1: &str = "macro_f1";

/// A model of text with a task: all that training it takes.
pub trait TextTask: Clone + 'static {
    /// What the last block gives.
    type Output: Activation;
    /// What a batch is to become.
    type Target: Clone + 'static;
    /// Rows of tokens with what they are to become.
    type Data: Dataset<Input = Tokens, Target = Self::Target>;

    /// The model with its loss and metrics; initial values come from (`seed`, name).
    ///
    /// # Errors
    /// If there is no such model.
    fn model(&self, seed: u64, device: &Device) -> anyhow::Result<Model<Tokens, Self::Output, Self::Target>>;

    /// A micro-batch of rows of the first token throughout, to measure what the model needs.
    fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Self::Target>;

    /// Rows as samples.
    ///
    /// # Errors
    /// If they have not the labels of the task.
    fn data(&self, rows: TokenSequences) -> anyhow::Result<Self::Data>;

    /// Relative costs of the model's blocks, in order.
    ///
    /// # Errors
    /// If there is no such model.
    fn costs(&self) -> anyhow::Result<Vec<f64>>;

    /// Tokens of a row, at most.
    fn sequence_length(&self) -> usize;

    /// Where Hugging Face's files have its parameters.
    fn mapping(&self) -> WeightsMapping;

    /// FLOPs of forward and backward per target, where each has its share of the tokens, of a model whose blocks have these parameters.
    fn flops_per_target(&self, blocks: &[ParameterCounts]) -> Option<f64> {
        let _ = blocks;
        None
    }

    /// Metrics that follow from those of the model.
    fn derived_metrics(&self) -> Vec<(&'static str, DerivedMetric)> {
        Vec::new()
    }
}

impl TextTask for CausalLm {
    type Output = Logits;
    type Target = Targets;
    type Data = TokenDataset;

    fn model(&self, seed: u64, device: &Device) -> anyhow::Result<Model<Tokens, Logits, Targets>> {
        Ok(self.model(seed, device)?)
    }

    fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Targets> {
        self.blank_batch(sequences, device)
    }

    fn data(&self, rows: TokenSequences) -> anyhow::Result<TokenDataset> {
        Ok(TokenDataset::new(rows))
    }

    fn costs(&self) -> anyhow::Result<Vec<f64>> {
        Ok(self.costs()?)
    }

    fn sequence_length(&self) -> usize {
        self.sequence_length()
    }

    fn mapping(&self) -> WeightsMapping {
        self.mapping()
    }

    fn flops_per_target(&self, blocks: &[ParameterCounts]) -> Option<f64> {
        Some(self.flops_per_target(blocks))
    }
}

/// An encoder that predicts tokens that are masked.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedLm {
    /// The model.
    pub encoder: Encoder,
    /// How tokens are masked.
    pub masking: Masking,
}

/// A text classifier: each text has one label.
#[derive(Debug, Clone, PartialEq)]
pub struct Classification(pub SequenceClassifier);

/// A multi-label text classifier: each text has any number of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiLabelClassification(pub SequenceClassifier);

/// A model that predicts a number for a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Regression(pub SequenceClassifier);

impl TextTask for MaskedLm {
    type Output = Logits;
    type Target = Targets;
    type Data = MaskedDataset;

    fn model(&self, seed: u64, device: &Device) -> anyhow::Result<Model<Tokens, Logits, Targets>> {
        Ok(self.encoder.masked_lm(seed, device))
    }

    fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Targets> {
        // As many as are masked on average.
        let count = sequences * self.encoder.sequence_length();
        let masked = ((count as f64 * self.masking.probability).ceil() as usize).clamp(1, count.max(1));
        self.encoder.blank_batch(sequences, masked, device)
    }

    fn data(&self, rows: TokenSequences) -> anyhow::Result<MaskedDataset> {
        Ok(MaskedDataset::new(rows, self.masking.clone()))
    }

    fn costs(&self) -> anyhow::Result<Vec<f64>> {
        Ok(self.encoder.costs())
    }

    fn sequence_length(&self) -> usize {
        self.encoder.sequence_length()
    }

    fn mapping(&self) -> WeightsMapping {
        self.encoder.mapping()
    }
}

/// What all tasks of a text's labels have in common.
macro_rules! of_labels {
    () => {
        fn costs(&self) -> anyhow::Result<Vec<f64>> {
            Ok(self.0.costs()?)
        }

        fn sequence_length(&self) -> usize {
            self.0.sequence_length()
        }

        fn mapping(&self) -> WeightsMapping {
            self.0.mapping()
        }
    };
}

impl TextTask for Classification {
    type Output = Tensor<2>;
    type Target = Tensor<1, Int>;
    type Data = ClassificationDataset;

    fn model(&self, seed: u64, device: &Device) -> anyhow::Result<Model<Tokens, Tensor<2>, Tensor<1, Int>>> {
        Ok(self.0.classification(seed, device)?)
    }

    fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Tensor<1, Int>> {
        Batch::new(self.0.blank_rows(sequences, device), Tensor::zeros([sequences], device), sequences)
    }

    fn data(&self, rows: TokenSequences) -> anyhow::Result<ClassificationDataset> {
        Ok(ClassificationDataset::new(rows)?.of(&self.0))
    }

    fn derived_metrics(&self) -> Vec<(&'static str, DerivedMetric)> {
        label_scores(&self.0, false)
    }

    of_labels!();
}

impl TextTask for MultiLabelClassification {
    type Output = Tensor<2>;
    type Target = Tensor<2>;
    type Data = MultiLabelDataset;

    fn model(&self, seed: u64, device: &Device) -> anyhow::Result<Model<Tokens, Tensor<2>, Tensor<2>>> {
        Ok(self.0.multi_label_classification(seed, device)?)
    }

    fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Tensor<2>> {
        let shape = [sequences, self.0.labels().len()];
        Batch::new(self.0.blank_rows(sequences, device), Tensor::zeros(shape, device), shape[0] * shape[1])
    }

    fn data(&self, rows: TokenSequences) -> anyhow::Result<MultiLabelDataset> {
        let labels = self.0.labels().len();
        Ok(MultiLabelDataset::new(rows, labels)?.of(&self.0))
    }

    fn derived_metrics(&self) -> Vec<(&'static str, DerivedMetric)> {
        label_scores(&self.0, true)
    }

    of_labels!();
}

/// What follows from the counts of labels, of which a text may have `several`.
fn label_scores(model: &SequenceClassifier, several: bool) -> Vec<(&'static str, DerivedMetric)> {
    let names = model.labels().to_vec();
    let score =
        move |metrics: &SortedMap<String, f64>| macro_f1(metrics, &names, several).unwrap_or(f64::NAN);
    match model.counts_labels() {
        true => vec![(MACRO_F1, Box::new(score))],
        false => Vec::new(),
    }
}

impl TextTask for Regression {
    type Output = Tensor<2>;
    type Target = Tensor<1>;
    type Data = RegressionDataset;

    fn model(&self, seed: u64, device: &Device) -> anyhow::Result<Model<Tokens, Tensor<2>, Tensor<1>>> {
        Ok(self.0.regression(seed, device)?)
    }

    fn blank_batch(&self, sequences: usize, device: &Device) -> Batch<Tokens, Tensor<1>> {
        Batch::new(self.0.blank_rows(sequences, device), Tensor::zeros([sequences], device), sequences)
    }

    fn data(&self, rows: TokenSequences) -> anyhow::Result<RegressionDataset> {
        Ok(RegressionDataset::new(rows)?.of(&self.0))
    }

    of_labels!();
}
