//! What families have in common: checks of sizes, and fields of labels and tokens.

use serde_json::{Map, Value, json};

use super::decoder::ActivationFunction;
use super::fields::{Fields, Ids};
use crate::error::HfError;

/// How many layers a model may have.
const MAX_LAYERS: usize = 10_000;

/// How many labels may be numbered without names.
const MAX_LABELS: usize = 1_000_000;

/// How many labels `transformers` gives a model that names none.
const LABELS: usize = 2;

/// Labels of a classification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Their names, by number (`id2label`).
    pub names: Vec<String>,
    /// What is trained; none: by the number of labels and the type of the data.
    pub problem: Option<Problem>,
}

/// What a classification is trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// Numbers.
    Regression,
    /// One label of several.
    SingleLabel,
    /// Any of the labels.
    MultiLabel,
}

impl Default for Labels {
    fn default() -> Self {
        Self::numbered(LABELS)
    }
}

impl Labels {
    /// So many labels, `LABEL_0` and so on.
    pub fn numbered(count: usize) -> Self {
        Self { names: (0..count).map(|index| format!("LABEL_{index}")).collect(), problem: None }
    }

    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, HfError> {
        // It follows from the other.
        fields.value("label2id");
        let count = fields.get_or_null::<usize>("num_labels", None)?;
        if count.is_some_and(|count| count > MAX_LABELS) {
            return Err(fields.wrong("num_labels", &format!("a whole number from 0 to {MAX_LABELS}")));
        }
        let mut labels = match fields.value("id2label") {
            None | Some(Value::Null) => Self::numbered(count.unwrap_or(LABELS)),
            Some(Value::Object(by_number)) => {
                let name = |number: usize| Some(by_number.get(&number.to_string())?.as_str()?.to_owned());
                let names: Option<_> = (0..by_number.len()).map(name).collect();
                let names = names.ok_or_else(|| {
                    fields.wrong("id2label", "an object of names for \"0\", \"1\" and so on")
                })?;
                Self { names, problem: None }
            }
            Some(_) => return Err(fields.wrong("id2label", "an object of names for \"0\", \"1\" and so on")),
        };
        if count.is_some_and(|count| count != labels.names.len()) {
            return Err(fields.wrong("num_labels", &format!("the {} of `id2label`", labels.names.len())));
        }
        labels.problem = match fields.get_or_null::<String>("problem_type", None)? {
            None => None,
            Some(name) => {
                let known = Problem::ALL.into_iter().find(|problem| problem.name() == name);
                let allowed = || Problem::ALL.map(|problem| format!("\"{}\"", problem.name())).join(", ");
                Some(known.ok_or_else(|| fields.wrong("problem_type", &allowed()))?)
            }
        };
        Ok(labels)
    }

    pub(super) fn write(&self, object: &mut Map<String, Value>) {
        let names = self.names.iter().enumerate();
        let by_number = names.clone().map(|(index, name)| (index.to_string(), json!(name)));
        object.insert("id2label".into(), Value::Object(by_number.collect()));
        object.insert(
            "label2id".into(),
            Value::Object(names.map(|(index, name)| (name.clone(), json!(index))).collect()),
        );
        object.insert("problem_type".into(), json!(self.problem.map(Problem::name)));
    }
}

impl Problem {
    const ALL: [Self; 3] = [Self::Regression, Self::SingleLabel, Self::MultiLabel];

    fn name(self) -> &'static str {
        match self {
            Self::Regression => "regression",
            Self::SingleLabel => "single_label_classification",
            Self::MultiLabel => "multi_label_classification",
        }
    }
}

/// Tokens with a meaning of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpecialTokens {
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end one.
    pub eos: Vec<u32>,
    /// The token that fills rows.
    pub pad: Option<u32>,
}

impl SpecialTokens {
    /// The fields, or what they are where they are absent.
    pub(super) fn read(fields: &Fields<'_>, [bos, eos, pad]: [Option<u32>; 3]) -> Result<Self, HfError> {
        Ok(Self {
            bos: fields.get_or_null("bos_token_id", bos)?,
            eos: fields.get("eos_token_id", Ids(eos.into_iter().collect()))?.0,
            pad: match fields.value("pad_token_id") {
                // As older conversions of Llama write that there is none.
                Some(value) if value.as_i64() == Some(-1) => None,
                _ => fields.get_or_null("pad_token_id", pad)?,
            },
        })
    }

    pub(super) fn write(&self, object: &mut Map<String, Value>) {
        let eos = match self.eos.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            several => json!(several),
        };
        object.insert("bos_token_id".into(), json!(self.bos));
        object.insert("eos_token_id".into(), eos);
        object.insert("pad_token_id".into(), json!(self.pad));
    }
}

/// The activation that a field names.
pub(super) fn activation(
    fields: &Fields<'_>,
    field: &str,
    absent: &str,
) -> Result<ActivationFunction, HfError> {
    let name = fields.get(field, absent.to_owned())?;
    ActivationFunction::of_name(&name).ok_or_else(|| fields.wrong(field, &ActivationFunction::allowed()))
}

/// The number of layers that a field says.
pub(super) fn layers(fields: &Fields<'_>, field: &str, absent: usize) -> Result<usize, HfError> {
    let layers = fields.get(field, absent)?;
    if layers == 0 || layers > MAX_LAYERS {
        return Err(fields.wrong(field, &format!("a whole number from 1 to {MAX_LAYERS}")));
    }
    Ok(layers)
}

/// Checks of what fields say together.
pub(super) struct Checks<'f> {
    /// For messages.
    pub file: &'f str,
}

impl Checks<'_> {
    pub fn positive(&self, sizes: &[(&str, usize)]) -> Result<(), HfError> {
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some((field, size)) => Err(HfError::field(self.file, field, size, "a whole number from 1")),
            None => Ok(()),
        }
    }

    pub fn above_zero(&self, numbers: &[(&str, Option<f64>)]) -> Result<(), HfError> {
        for (field, number) in numbers {
            if let Some(number) = number.filter(|number| !(*number > 0.0 && number.is_finite())) {
                return Err(HfError::field(self.file, field, number, "a number above 0"));
            }
        }
        Ok(())
    }

    pub fn deviation(&self, deviation: f64) -> Result<(), HfError> {
        if deviation >= 0.0 && deviation.is_finite() {
            return Ok(());
        }
        Err(HfError::field(self.file, "initializer_range", deviation, "a number from 0"))
    }

    pub fn probabilities(&self, numbers: &[(&str, f64)]) -> Result<(), HfError> {
        match numbers.iter().find(|(_, number)| !(0.0..1.0).contains(&(*number as f32))) {
            Some((field, number)) => Err(HfError::field(self.file, field, number, "from 0 to below 1")),
            None => Ok(()),
        }
    }

    /// The numbers of a head, where no field says it.
    pub fn head_dim(&self, hidden: (&str, usize), heads: (&str, usize)) -> Result<usize, HfError> {
        if heads.1 == 0 || !hidden.1.is_multiple_of(heads.1) {
            return Err(HfError::field(
                self.file,
                hidden.0,
                hidden.1,
                format!("a multiple of `{}`, {}", heads.0, heads.1),
            ));
        }
        Ok(hidden.1 / heads.1)
    }
}
