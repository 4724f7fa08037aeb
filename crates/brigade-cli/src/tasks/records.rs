//! Records with a text and a label.

use brigade::data::{Example, Label, Place, Record, RecordEncoder, Result, Tokenizer};
use serde_json::{Map, Value};

use super::labels::not_a_label;

/// Makes examples of records with the columns `text` and `label`.
#[derive(Debug)]
pub struct LabelledTexts {
    /// The names of classes; none where labels are numbers to predict.
    pub labels: Option<Vec<String>>,
    /// The most tokens of an example.
    pub most: usize,
}

impl RecordEncoder for LabelledTexts {
    fn identity(&self) -> String {
        format!("labelled 1 {:?} {}", self.labels, self.most)
    }

    fn takes(&self, _: &Record) -> bool {
        true
    }

    fn example(&self, place: &Place, record: &str, tokenizer: &Tokenizer) -> Result<Example> {
        let fields: Map<String, Value> =
            serde_json::from_str(record).map_err(|error| place.error(error.to_string()))?;
        let column = |name: &str| fields.get(name).unwrap_or(&Value::Null);
        let Value::String(text) = column("text") else {
            return Err(place.error(format!("the text is {}, and must be a string", column("text"))));
        };
        let label = self.label(column("label")).map_err(|problem| place.error(problem))?;
        Ok(Example::of(tokenizer.encode_whole(text, self.most)?).with_label(label))
    }
}

impl LabelledTexts {
    fn label(&self, value: &Value) -> std::result::Result<Label, String> {
        let Some(labels) = &self.labels else {
            let number = value.as_f64().filter(|number| number.is_finite());
            let wrong = || format!("the label is {value}, and must be a number (--task regression)");
            return number.map(Label::Number).ok_or_else(wrong);
        };
        let class = match (value, value.as_u64()) {
            (Value::String(name), _) => labels.iter().position(|label| label == name),
            (_, Some(number)) => usize::try_from(number).ok().filter(|number| *number < labels.len()),
            _ => return Err(not_a_label(value)),
        };
        let class = class.and_then(|class| u32::try_from(class).ok());
        class
            .map(Label::Class)
            .ok_or_else(|| format!("the label {value} is none of the model's: {}", listed(labels)))
    }
}

fn listed(labels: &[String]) -> String {
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
        let classes = LabelledTexts { labels: Some(vec!["bad".into(), "good".into()]), most: 8 };
        assert_eq!(classes.label(&json!("good")), Ok(Label::Class(1)));
        assert_eq!(classes.label(&json!(0)), Ok(Label::Class(0)));
        let numbers = LabelledTexts { labels: None, most: 8 };
        assert_eq!(numbers.label(&json!(-0.5)), Ok(Label::Number(-0.5)));
        for (encoder, value, said) in [
            (&classes, json!("odd"), r#"the label "odd" is none of the model's: "bad", "good""#),
            (&classes, json!(2), "the label 2 is none of the model's"),
            (&classes, json!(0.5), "must be a name or a whole number"),
            (&numbers, json!("good"), "must be a number (--task regression)"),
        ] {
            let error = encoder.label(&value).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
