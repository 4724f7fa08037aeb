//! A model of each task.

use brigade::core::ParameterCounts;
use brigade::models::{Adapters, CausalLm};
use brigade::{Classification, MaskedLm, MultiLabelClassification, Regression, Settings, TextTask};

/// A model with its task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskModel {
    CausalLm(CausalLm),
    MaskedLm(MaskedLm),
    Classification(Classification),
    MultiLabel(MultiLabelClassification),
    Regression(Regression),
}

impl TaskModel {
    /// Tokens of a sequence.
    pub fn sequence_length(&self) -> usize {
        match self {
            Self::CausalLm(model) => model.sequence_length(),
            Self::MaskedLm(model) => model.sequence_length(),
            Self::Classification(model) => model.sequence_length(),
            Self::MultiLabel(model) => model.sequence_length(),
            Self::Regression(model) => model.sequence_length(),
        }
    }

    /// Rows of the table of embeddings: all tokens are below it.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::CausalLm(model) => model.vocabulary(),
            Self::MaskedLm(model) => model.encoder.vocabulary(),
            Self::Classification(Classification(model))
            | Self::MultiLabel(MultiLabelClassification(model))
            | Self::Regression(Regression(model)) => model.vocabulary(),
        }
    }

    /// How many parameters of each block are trained with these settings, and how many are not.
    pub fn parameter_counts(&self, settings: &Settings) -> anyhow::Result<Vec<ParameterCounts>> {
        match self {
            Self::CausalLm(task) => settings.parameter_counts(|device| TextTask::model(task, 0, device)),
            Self::MaskedLm(task) => settings.parameter_counts(|device| TextTask::model(task, 0, device)),
            Self::Classification(task) => {
                settings.parameter_counts(|device| TextTask::model(task, 0, device))
            }
            Self::MultiLabel(task) => settings.parameter_counts(|device| TextTask::model(task, 0, device)),
            Self::Regression(task) => settings.parameter_counts(|device| TextTask::model(task, 0, device)),
        }
    }

    /// Its adapters.
    pub fn adapters(&self) -> &Adapters {
        match self {
            Self::CausalLm(model) => model.adapters(),
            Self::MaskedLm(model) => model.encoder.adapters(),
            Self::Classification(Classification(model))
            | Self::MultiLabel(MultiLabelClassification(model))
            | Self::Regression(Regression(model)) => model.adapters(),
        }
    }
}
