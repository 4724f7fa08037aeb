//! Families of models, and what they are trained to do.

use std::fmt;

use super::fields::Fields;
use crate::error::HfError;

/// A family of models, which `config.json` names by its `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `gpt2`
    Gpt2,
    /// `llama`: Llama 2, 3, 3.1 and 3.2, and what has their form.
    Llama,
    /// `mistral`
    Mistral,
    /// `qwen2`
    Qwen2,
    /// `qwen3`
    Qwen3,
    /// `gemma2`
    Gemma2,
    /// `gemma3_text`: Gemma 3 without images.
    Gemma3,
    /// `bert`
    Bert,
    /// `roberta`
    Roberta,
}

/// What a model's last layers are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// Nothing: a model without a head, whose tensors have no prefix.
    Base,
    /// The next token.
    CausalLanguageModel,
    /// Tokens that are masked.
    MaskedLanguageModel,
    /// A label, several, or a number for a whole text.
    SequenceClassification,
}

impl Family {
    /// All, decoders first.
    pub const ALL: [Self; 9] = [
        Self::Gpt2,
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gemma2,
        Self::Gemma3,
        Self::Bert,
        Self::Roberta,
    ];

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3_text",
            Self::Bert => "bert",
            Self::Roberta => "roberta",
        }
    }

    /// The family of a `model_type`.
    pub fn from_model_type(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.model_type() == name)
    }

    /// The names of all, for messages.
    pub fn known() -> String {
        Self::ALL.map(|family| format!("`{}`", family.model_type())).join(", ")
    }

    /// Whether every token sees those after it.
    pub fn is_encoder(self) -> bool {
        matches!(self, Self::Bert | Self::Roberta)
    }

    /// What a model of this family is trained to do from its beginning.
    pub fn language_model(self) -> Task {
        if self.is_encoder() { Task::MaskedLanguageModel } else { Task::CausalLanguageModel }
    }

    /// The class of `transformers` that loads a model of this family for a task; none if there is none.
    pub fn class(self, task: Task) -> Option<String> {
        if self.language_model() != task
            && matches!(task, Task::CausalLanguageModel | Task::MaskedLanguageModel)
        {
            return None;
        }
        let stem = match (self, task) {
            (Self::Gpt2, _) => "GPT2",
            (Self::Llama, _) => "Llama",
            (Self::Mistral, _) => "Mistral",
            (Self::Qwen2, _) => "Qwen2",
            (Self::Qwen3, _) => "Qwen3",
            (Self::Gemma2, _) => "Gemma2",
            (Self::Gemma3, Task::CausalLanguageModel) => "Gemma3",
            (Self::Gemma3, _) => "Gemma3Text",
            (Self::Bert, _) => "Bert",
            (Self::Roberta, _) => "Roberta",
        };
        let ending = match task {
            Task::Base => "Model",
            Task::CausalLanguageModel if self == Self::Gpt2 => "LMHeadModel",
            Task::CausalLanguageModel => "ForCausalLM",
            Task::MaskedLanguageModel => "ForMaskedLM",
            Task::SequenceClassification => "ForSequenceClassification",
        };
        Some(format!("{stem}{ending}"))
    }

    /// The family and task of a class of `transformers`; no task if it is another one.
    fn of_class(class: &str) -> Option<(Self, Option<Task>)> {
        let known = Self::ALL.into_iter().find_map(|family| {
            let task = Task::ALL.into_iter().find(|task| family.class(*task).as_deref() == Some(class))?;
            Some((family, Some(task)))
        });
        known.or_else(|| {
            let stem = class.split("For").next().filter(|stem| *stem != class)?;
            let family = Self::ALL.into_iter().find(|family| {
                family.class(Task::Base).is_some_and(|base| base.strip_suffix("Model") == Some(stem))
            })?;
            Some((family, None))
        })
    }

    /// The family and the task that a configuration names.
    pub(super) fn of(fields: &Fields<'_>) -> Result<(Self, Option<Task>), HfError> {
        let model_type = fields.get_or_null::<String>("model_type", None)?;
        let classes = fields.get_or_null::<Vec<String>>("architectures", None)?.unwrap_or_default();
        let of_class = classes.first().and_then(|class| Self::of_class(class));
        let family = match &model_type {
            Some(name) => Self::from_model_type(name),
            None => of_class.map(|(family, _)| family),
        };
        let given = || match (&model_type, classes.first()) {
            (Some(name), _) => format!("`model_type` `{name}`"),
            (None, Some(class)) => format!("no `model_type`, and `architectures` names `{class}`"),
            (None, None) => "no `model_type` and no `architectures`".to_owned(),
        };
        let family = family.ok_or_else(|| HfError::UnknownFamily {
            file: fields.file.to_owned(),
            given: given(),
            known: Self::known(),
        })?;
        Ok((family, of_class.filter(|(of_class, _)| *of_class == family).and_then(|(_, task)| task)))
    }
}

impl Task {
    const ALL: [Self; 4] =
        [Self::Base, Self::CausalLanguageModel, Self::MaskedLanguageModel, Self::SequenceClassification];
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type())
    }
}
