//! What a model is trained for: `[task]` and `--task`.

mod labels;
mod loss;
mod model;
mod records;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use brigade::data::{
    Columns, DataSource, LongExamples, RecordEncoder, RowOptions, TargetToken, Tokenizer, TokenizerSpec,
};
use brigade::models::classifier::SequenceClassifier;
use brigade::models::encoder::{Encoder, Masking};
use brigade::models::{CausalLm, LoraConfig};
use brigade::report::counted;
use brigade::{Classification, MaskedLm, MultiLabelClassification, Regression};
use brigade_hf::config::{Labels, Problem};
use brigade_hf::{Config, ConfigFile, Task, TokenizerConfig};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::data::DataSection;
use crate::data::chats::COLUMNS;
use labels::{NumberedLabels, labels_of, numbered_labels};
pub use model::TaskModel;
use records::{KnownLabels, LabelMap, LabelledTexts};

/// The most labels when a text may have any number of them.
const MAX_LABELS_OF_TEXT: usize = 64;

/// How many labels a dry run assumes where only the data say how many there are.
const UNKNOWN_LABELS: usize = 2;

/// `[task]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSection {
    /// What the model is trained to predict (`--task`): `causal-lm`, the next token; `masked-lm`, masked tokens; `classification`, the column `label` of each `text`, or of
    /// `text` and `text_pair`; `multi-label-classification`, the list of labels in that column; `regression`, the number in it; or `auto`: what `config.json` says.
    pub name: TaskName,
    /// The labels of a classification, in the order of their numbers. Empty: those of the model's `config.json` if it is a classifier, else those in the data, sorted.
    pub labels: Vec<String>,
    /// The probability that a token is masked.
    pub mask_probability: f64,
    /// With `causal-lm`, the share of the target's probability that all tokens get equally in training; 0 is none.
    pub label_smoothing: f64,
    /// With `causal-lm`, the factor of the squared logarithm of the softmax's denominator that is added to the loss in training; 0 is none.
    pub z_loss: f64,
}

/// What a model is trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TaskName {
    /// What config.json says.
    Auto,
    /// The next token.
    CausalLm,
    /// Tokens that are masked.
    MaskedLm,
    /// The label of each text.
    Classification,
    /// Any number of labels for each text.
    MultiLabelClassification,
    /// The number of each text.
    Regression,
}

impl TaskName {
    /// As it is given.
    fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::CausalLm => "causal-lm",
            Self::MaskedLm => "masked-lm",
            Self::Classification => "classification",
            Self::MultiLabelClassification => "multi-label-classification",
            Self::Regression => "regression",
        }
    }
}

fn is_same_set(one: &[String], other: &[String]) -> bool {
    one.iter().collect::<BTreeSet<_>>() == other.iter().collect::<BTreeSet<_>>()
}

/// Gives a decoder without a padding token one, by which its head finds the last token of a text: the tokenizer's, or the end-of-text token.
fn fill_rows(file: &mut ConfigFile, tokenizer: &TokenizerSpec) -> anyhow::Result<()> {
    let family = file.config.family();
    let Config::Decoder(config) = &mut file.config else { return Ok(()) };
    if config.tokens.pad.is_none() {
        let own = match tokenizer {
            TokenizerSpec::File(path) => padding_of(path)?,
            _ => None,
        };
        config.tokens.pad = own.or_else(|| config.tokens.eos.first().copied());
    }
    match config.tokens.pad {
        Some(_) => Ok(()),
        None => bail!(
            "a `{family}` classifier finds the last token of a text by `pad_token_id`, but neither config.json (which has no `eos_token_id` either) nor the tokenizer has one; add \
            it to config.json"
        ),
    }
}

/// The padding token in the files of a tokenizer.
fn padding_of(tokenizer: &Path) -> anyhow::Result<Option<u32>> {
    let config = TokenizerConfig::read(tokenizer.parent().unwrap_or(Path::new("")))?;
    let Some(text) = config.special_tokens.get("pad_token") else { return Ok(None) };
    Ok(config.added_tokens.iter().find(|token| token.content == *text).map(|token| token.id))
}

impl TaskSection {
    /// The task of a model, and the labels that it has or that the data have. `given` is the model, for messages; `keeps_head`: whether its weights are loaded;
    /// `reads_data`: whether the data are read where they alone say what the labels are, which are unknown otherwise.
    pub fn resolved(
        mut self,
        file: &ConfigFile,
        data: &DataSection,
        given: &str,
        (keeps_head, reads_data): (bool, bool),
    ) -> anyhow::Result<Self> {
        let labels = file.config.labels();
        let is_classifier = file.task == Some(Task::SequenceClassification);
        if self.name == TaskName::Auto {
            let is_number = labels.problem == Some(Problem::Regression) || labels.names.len() == 1;
            self.name = match (&file.config, file.task) {
                (_, Some(Task::MaskedLanguageModel)) => TaskName::MaskedLm,
                (_, Some(Task::SequenceClassification)) if labels.problem == Some(Problem::MultiLabel) => {
                    TaskName::MultiLabelClassification
                }
                (_, Some(Task::SequenceClassification)) if is_number => TaskName::Regression,
                (_, Some(Task::SequenceClassification)) => TaskName::Classification,
                (Config::Decoder(_), _) => TaskName::CausalLm,
                _ => bail!(
                    "{given} is a `{}` without a head; say with --task (task.name) what to train it for: classification, multi-label-classification, regression or masked-lm",
                    file.config.family()
                ),
            };
        }
        if !(self.mask_probability > 0.0 && self.mask_probability <= 1.0) {
            bail!(
                "task.mask_probability = {} is not possible: it must be above 0 and at most 1",
                self.mask_probability
            );
        }
        if is_classifier && keeps_head {
            self.check_head(labels, given)?;
        }
        if self.has_labels() && reads_data && !data.has_sources() {
            bail!(
                "task.name (--task) = {:?} needs records, each with a `text` and a `label`; give them with --data (data.sources)",
                self.name.as_str()
            );
        }
        match self.name {
            TaskName::Classification | TaskName::MultiLabelClassification => {
                if self.labels.is_empty() && is_classifier {
                    self.labels.clone_from(&labels.names);
                } else if self.labels.is_empty() && reads_data {
                    self.labels = labels_of(data, &self.columns())?;
                }
                let mut seen = BTreeSet::new();
                if let Some(twice) = self.labels.iter().find(|label| !seen.insert(*label)) {
                    bail!("task.labels has {twice:?} twice; each label is one of the model's outputs");
                }
                if self.name == TaskName::MultiLabelClassification && self.labels.len() > MAX_LABELS_OF_TEXT {
                    bail!(
                        "task.name (--task) = \"multi-label-classification\" with {} labels is not possible: there may be {MAX_LABELS_OF_TEXT}",
                        self.labels.len()
                    );
                }
            }
            _ if !self.labels.is_empty() => {
                bail!(
                    "task.labels = {:?} is for task.name (--task) = \"classification\" or \"multi-label-classification\"",
                    self.labels
                );
            }
            _ => {}
        }
        if self.has_labels() && data.long == LongExamples::Split {
            bail!(
                "data.long = \"split\" is not possible for texts with labels: a part of a text has no label of its own; \"cut\" keeps what fits of it, \"refuse\" ends the run"
            );
        }
        Ok(self)
    }

    /// Whether texts have labels, or numbers.
    pub fn has_labels(&self) -> bool {
        matches!(
            self.name,
            TaskName::Classification | TaskName::MultiLabelClassification | TaskName::Regression
        )
    }

    /// A note where the labels are unknown, as in a dry run, which reads no data.
    pub fn note_on_labels(&self) -> Option<String> {
        let tells_labels = matches!(self.name, TaskName::Classification | TaskName::MultiLabelClassification);
        (tells_labels && self.labels.is_empty()).then(|| {
            format!("the labels are not known without reading the data, so the model is shown with {UNKNOWN_LABELS} of them; task.labels names them")
        })
    }

    /// The labels, or as many as are assumed where they are unknown.
    fn labels_or_unknown(&self) -> Vec<String> {
        match self.labels.is_empty() {
            true => (0..UNKNOWN_LABELS).map(|label| format!("LABEL_{label}")).collect(),
            false => self.labels.clone(),
        }
    }

    /// Checks that the head of a model that is a classifier already, with these labels, has as many outputs as the task needs.
    fn check_head(&self, own: &Labels, given: &str) -> anyhow::Result<()> {
        let is_number =
            own.problem == Some(Problem::Regression) || own.problem.is_none() && own.names.len() == 1;
        let has = match is_number {
            true => "predicts a number".to_owned(),
            false => format!(
                "is a classifier with {}: {}",
                counted(own.names.len(), "label"),
                own.names.join(", ")
            ),
        };
        let instead = "begin with the model that it was trained from, which gets a new head";
        match self.name {
            TaskName::Regression if own.names.len() != 1 => {
                bail!("task.name (--task) = \"regression\" is not possible: {given} {has}; {instead}")
            }
            TaskName::Classification | TaskName::MultiLabelClassification if is_number => {
                bail!(
                    "task.name (--task) = {:?} is not possible: {given} {has}; {instead}",
                    self.name.as_str()
                )
            }
            TaskName::Classification | TaskName::MultiLabelClassification
                if !self.labels.is_empty() && self.labels.len() != own.names.len() =>
            {
                bail!(
                    "task.labels = {:?} is not possible: {given} {has}; give as many, leave it out, or {instead}",
                    self.labels
                )
            }
            TaskName::Classification | TaskName::MultiLabelClassification
                if self.labels != own.names && is_same_set(&self.labels, &own.names) =>
            {
                bail!(
                    "task.labels = {:?} is not possible: {given} {has}, in this order; leave it out, or {instead}",
                    self.labels
                )
            }
            _ => Ok(()),
        }
    }

    /// The model for this task; records in `file` what `config.json` will say about it.
    pub fn model(
        &self,
        file: &mut ConfigFile,
        sequence_length: usize,
        lora: &LoraConfig,
        tokenizer: &TokenizerSpec,
    ) -> anyhow::Result<TaskModel> {
        let (task, labels) = match self.name {
            TaskName::Auto | TaskName::CausalLm => (Task::CausalLanguageModel, None),
            TaskName::MaskedLm => (Task::MaskedLanguageModel, None),
            TaskName::Classification => {
                (Task::SequenceClassification, Some((self.labels_or_unknown(), Problem::SingleLabel)))
            }
            TaskName::MultiLabelClassification => {
                (Task::SequenceClassification, Some((self.labels_or_unknown(), Problem::MultiLabel)))
            }
            TaskName::Regression => {
                let own = &file.config.labels().names;
                let keeps_own = file.task == Some(Task::SequenceClassification) && own.len() == 1;
                let names = if keeps_own { own.clone() } else { vec!["LABEL_0".to_owned()] };
                (Task::SequenceClassification, Some((names, Problem::Regression)))
            }
        };
        file.task = Some(task);
        if let Some((names, problem)) = labels {
            *file.config.labels_mut() = Labels { names, problem: Some(problem) };
            fill_rows(file, tokenizer)?;
            let model = SequenceClassifier::from_config(&file.config, Some(sequence_length))?;
            let model = model.with_adapters(lora)?;
            return Ok(match problem {
                Problem::SingleLabel => TaskModel::Classification(Classification(model)),
                Problem::MultiLabel => TaskModel::MultiLabel(MultiLabelClassification(model)),
                Problem::Regression => TaskModel::Regression(Regression(model)),
            });
        }
        if task == Task::CausalLanguageModel {
            let model = CausalLm::from_config(&file.config, Some(sequence_length))?;
            return Ok(TaskModel::CausalLm(model.with_adapters(lora)?.with_loss_options(self.loss())));
        }
        let encoder = Encoder::from_config(&file.config, task, Some(sequence_length))?.with_adapters(lora)?;
        let masking = self.masking(&encoder, tokenizer)?;
        Ok(TaskModel::MaskedLm(MaskedLm { encoder, masking }))
    }

    fn masking(&self, encoder: &Encoder, tokenizer: &TokenizerSpec) -> anyhow::Result<Masking> {
        let TokenizerSpec::File(path) = tokenizer else {
            bail!("--task masked-lm needs a tokenizer with a mask token, but data.tokenizer is {tokenizer}");
        };
        let tokenizer = Tokenizer::from_file(path)?;
        let mask = tokenizer.mask_token().with_context(|| {
            format!("--task masked-lm needs a tokenizer with a mask token, but {} has none", path.display())
        })?;
        let vocabulary = encoder.vocabulary().min(tokenizer.vocabulary_size()) as u32;
        if mask as usize >= encoder.vocabulary() {
            bail!(
                "--task masked-lm needs an embedding of the mask token, but {} gives it id {mask}, and the model has {vocabulary} embeddings",
                path.display()
            );
        }
        let special = tokenizer.special_tokens();
        Ok(Masking { mask, probability: self.mask_probability, vocabulary, special })
    }

    /// How rows are made for this task.
    pub fn rows(&self, rows: RowOptions) -> RowOptions {
        match self.name {
            TaskName::Auto | TaskName::CausalLm => rows,
            _ => RowOptions { target: TargetToken::Same, ..rows },
        }
    }

    /// The columns of records that are read.
    pub fn columns(&self) -> Columns {
        match self.name {
            TaskName::Classification | TaskName::MultiLabelClassification | TaskName::Regression => {
                Columns::new(&["text", "label"], &["text_pair"])
            }
            TaskName::Auto | TaskName::CausalLm | TaskName::MaskedLm => Columns::new(&[], &COLUMNS),
        }
    }

    /// What the numbers of labels in the data mean to the model.
    pub fn numbered_labels(&self, sources: &[DataSource]) -> anyhow::Result<NumberedLabels> {
        match self.name {
            TaskName::Classification | TaskName::MultiLabelClassification => {
                numbered_labels(sources, &self.labels)
            }
            _ => Ok(NumberedLabels::default()),
        }
    }

    /// What makes examples of records that have labels, for rows of so many tokens.
    ///
    /// `numbers` are the model's outputs for the numbers of labels in the data, where they are not the usual ones.
    pub fn records(
        &self,
        sequence_length: usize,
        long: LongExamples,
        numbers: Option<Vec<usize>>,
    ) -> Option<Arc<dyn RecordEncoder>> {
        let known = || KnownLabels::new(self.labels.clone(), numbers);
        let labels = match self.name {
            TaskName::Classification => LabelMap::One(known()),
            TaskName::MultiLabelClassification => LabelMap::Several(known()),
            TaskName::Regression => LabelMap::Numbers,
            TaskName::Auto | TaskName::CausalLm | TaskName::MaskedLm => return None,
        };
        let refuses_long = long == LongExamples::Refuse;
        Some(Arc::new(LabelledTexts { labels, most: sequence_length, refuses_long }))
    }
}
