//! Records with a text and a label.

use brigade::data::{Example, Label, Record, RecordEncoder, RecordLocation, Result, Tokenizer, WholeText};
use brigade_sorted::SortedMap;
use serde_json::{Map, Value};

use super::labels::{not_a_label, whole_number};

/// Makes examples of records with the columns `text` and `label`, and perhaps `text_pair`.
#[derive(Debug)]
pub struct LabelledTexts {
    /// What labels are.
    pub labels: LabelMap,
    /// The most tokens of an example.
    pub most: usize,
    /// Whether longer texts are refused, and not cut.
    pub refuses_long: bool,
}

/// What the labels of texts may be.
#[derive(Debug)]
pub enum LabelMap {
    /// One of these.
    One(KnownLabels),
    /// Any of these.
    Several(KnownLabels),
    /// Numbers to predict.
    Numbers,
}

/// Labels by name or by number.
#[derive(Debug)]
pub struct KnownLabels {
    /// In the order of the model's outputs.
    names: Vec<String>,
    /// The output of each number in the data.
    numbers: SortedMap<i64, usize>,
}

impl RecordEncoder for LabelledTexts {
    fn identity(&self) -> String {
        let labels = match &self.labels {
            LabelMap::One(labels) => format!("one of {}", labels.identity()),
            LabelMap::Numbers => "numbers".to_owned(),
            LabelMap::Several(labels) => format!("several of {}", labels.identity()),
        };
        format!("labelled 3 {labels} {} {}", self.most, self.refuses_long)
    }

    fn takes(&self, _: &Record) -> bool {
        true
    }

    fn example(&self, place: &RecordLocation, record: &str, tokenizer: &Tokenizer) -> Result<Example> {
        let fields: Map<String, Value> =
            serde_json::from_str(record).map_err(|error| place.error(error.to_string()))?;
        let column = |name: &str| fields.get(name).unwrap_or(&Value::Null);
        let Value::String(text) = column("text") else {
            return Err(place.error(format!("the text is {}, but must be a string", column("text"))));
        };
        let label = self.labels.label(column("label")).map_err(|problem| place.error(problem))?;
        let (whole, is_pair) = match column("text_pair") {
            Value::Null => (tokenizer.encode_whole(text, self.most)?, false),
            Value::String(pair) => (tokenizer.encode_pair([text, pair], self.most)?, true),
            other => return Err(place.error(format!("the text_pair is {other}, but must be a string"))),
        };
        let WholeText { ids, of_second, cut } = whole;
        if ids.is_empty() {
            return Err(place
                .error("its text has no tokens, so there is nothing to predict its label from".to_owned()));
        }
        if self.refuses_long && cut > 0 {
            return Err(place.error(format!(
                "it has {} tokens, more than the {} of a row (model.sequence_length), and data.long = \"refuse\"; use \"cut\" or longer rows",
                ids.len() + cut,
                self.most
            )));
        }
        let learned = of_second.into_iter().map(|of_second| !(is_pair && of_second)).collect();
        Ok(Example { ids, learned, label: Some(label), cut })
    }
}

impl LabelMap {
    fn label(&self, value: &Value) -> std::result::Result<Label, String> {
        match self {
            Self::Numbers => {
                let number = value.as_f64().filter(|number| number.is_finite());
                let wrong = || format!("the label is {value}, but must be a number (--task regression)");
                number.map(Label::Number).ok_or_else(wrong)
            }
            Self::One(labels) => labels.index(value).map(Label::Class),
            Self::Several(labels) => {
                let Value::Array(values) = value else {
                    return Err(format!(
                        "the label is {value}, but must be a list of names or whole numbers"
                    ));
                };
                let mut all = 0u64;
                for given in values {
                    let bit = 1 << labels.index(given)?;
                    if all & bit != 0 {
                        return Err(format!(
                            "the label is {value}, which names {given} twice; it must list the labels that the text has, and is no \
                             row of zeros and ones"
                        ));
                    }
                    all |= bit;
                }
                Ok(Label::Classes(all))
            }
        }
    }
}

/// The label that each number in data means where the data do not say it: the one of this name if all names are whole numbers, else the one at
/// this place.
pub fn usual_numbers(names: &[String]) -> SortedMap<i64, usize> {
    let named = names.iter().zip(0..).map(|(name, output)| Some((name.parse::<i64>().ok()?, output)));
    let named: Option<SortedMap<i64, usize>> = named.collect();
    named.unwrap_or_else(|| (0..).zip(0..names.len()).collect())
}

impl KnownLabels {
    /// The labels with these names, in the order of the model's outputs. `numbers` are the outputs of the numbers 0, 1, … in the data, where the
    /// data say what they stand for.
    pub fn new(names: Vec<String>, numbers: Option<Vec<usize>>) -> Self {
        let numbers = match numbers {
            Some(outputs) => (0..).zip(outputs).collect(),
            None => usual_numbers(&names),
        };
        Self { names, numbers }
    }

    /// The output of a label that is given by its name or its number.
    fn index(&self, value: &Value) -> std::result::Result<u32, String> {
        let Self { names, numbers } = self;
        let class = match value {
            Value::String(name) => names.iter().position(|label| label == name),
            _ => numbers.get(&whole_number(value).ok_or_else(|| not_a_label(value))?).copied(),
        };
        let class = class.and_then(|class| u32::try_from(class).ok());
        class.ok_or_else(|| format!("the model has no label {value}; its labels are {}", listed(names)))
    }

    fn identity(&self) -> String {
        format!("{:?} by {:?}", self.names, self.numbers)
    }
}

pub fn listed(labels: &[String]) -> String {
    const SHOWN: usize = 10;
    let mut text = labels.iter().take(SHOWN).map(|label| format!("{label:?}")).collect::<Vec<_>>().join(", ");
    if labels.len() > SHOWN {
        text.push_str(&format!(" and {} more", labels.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_are_names_or_numbers_of_the_map() {
        let named = |numbers| KnownLabels::new(vec!["bad".to_owned(), "good".into()], numbers);
        let names = || named(None);
        let classes = LabelMap::One(names());
        assert_eq!(classes.label(&json!("good")), Ok(Label::Class(1)));
        assert_eq!(classes.label(&json!(0)), Ok(Label::Class(0)));
        let turned = LabelMap::One(named(Some(vec![1, 0])));
        assert_eq!(
            [json!("good"), json!(0), json!(1)].map(|value| turned.label(&value)),
            [1, 1, 0].map(|class| Ok(Label::Class(class)))
        );
        assert!(turned.label(&json!(2)).is_err());
        let numbers = LabelMap::Numbers;
        let several = LabelMap::Several(names());
        assert_eq!(several.label(&json!(["good", 0])), Ok(Label::Classes(3)));
        assert_eq!(several.label(&json!([])), Ok(Label::Classes(0)));
        assert_eq!(numbers.label(&json!(-0.5)), Ok(Label::Number(-0.5)));
        for (labels, value, said) in [
            (&classes, json!("odd"), r#"the model has no label "odd"; its labels are "bad", "good""#),
            (&classes, json!(2), "the model has no label 2"),
            (&classes, json!(0.5), "must be a name or a whole number"),
            (&numbers, json!("good"), "must be a number (--task regression)"),
            (&several, json!("good"), "must be a list of names or whole numbers"),
            (&several, json!(["odd"]), r#"the model has no label "odd"; its labels are "bad", "good""#),
        ] {
            let error = labels.label(&value).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn whole_numbers_are_the_names_of_labels_that_are_called_so() {
        let label = |names: &[&str], numbers: Option<Vec<usize>>, value: Value| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            LabelMap::One(KnownLabels::new(names, numbers)).label(&value)
        };
        let class = |class| Ok(Label::Class(class));
        let ratings = ["1", "2", "3"];
        for (value, expected) in [(json!(1), 0), (json!(3), 2), (json!("3"), 2), (json!(2.0), 1)] {
            assert_eq!(label(&ratings, None, value), class(expected));
        }
        let error = label(&ratings, None, json!(0)).unwrap_err();
        assert!(error.contains("the model has no label 0; its labels are \"1\", \"2\""), "{error}");
        assert_eq!(label(&["-1", "0", "1"], None, json!(-1)), class(0));
        assert_eq!(label(&["0", "1"], None, json!(1)), class(1));
        // What the data say of their numbers comes first.
        assert_eq!(label(&ratings, Some(vec![0, 1, 2]), json!(1)), class(1));
        assert_eq!(label(&["bad", "good"], None, json!(1.0)), class(1));
    }
}
