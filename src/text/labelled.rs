//! Texts with labels as datasets.

use brigade_core::Batch;
use brigade_data::{Error, Label, LabelKind, Sequence, SequenceLayout, TokenSequences};
use brigade_models::Tokens;
use brigade_models::classifier::SequenceClassifier;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::rows::{inputs, pad, token_tensor};
use crate::dataset::Dataset;

/// Texts with labels.
#[derive(Debug, Clone)]
struct Rows {
    rows: TokenSequences,
    /// Whether tokens of a second text have a type of their own.
    has_types: bool,
    /// A token that does not belong to a text at its end.
    padding: Option<u32>,
}

/// Texts with their classes: inputs `[batch, sequence]`, padded, and as target each row's class, `[batch]`. Padding is not seen: `Tokens::documents` has where
/// each text ends.
#[derive(Debug, Clone)]
pub struct ClassificationDataset(Rows);

/// Texts with numbers: as [`ClassificationDataset`], with a number as each row's target, `[batch]`.
#[derive(Debug, Clone)]
pub struct RegressionDataset(Rows);

/// Texts with any number of classes each: as [`ClassificationDataset`], with a 1 for each class that a row has as its target, and a 0 for the others, `[batch, classes]`.
#[derive(Debug, Clone)]
pub struct MultiLabelDataset(Rows, usize);

impl ClassificationDataset {
    /// The rows as samples.
    ///
    /// # Errors
    /// If they have no classes, or a row may hold several documents.
    pub fn new(rows: TokenSequences) -> Result<Self, Error> {
        Ok(Self(Rows::new(rows, LabelKind::Class)?))
    }
}

impl RegressionDataset {
    /// The rows as samples.
    ///
    /// # Errors
    /// If they have no numbers, or a row may hold several documents.
    pub fn new(rows: TokenSequences) -> Result<Self, Error> {
        Ok(Self(Rows::new(rows, LabelKind::Number)?))
    }
}

impl MultiLabelDataset {
    /// The rows as samples. `classes`: how many there are, 64 at most.
    ///
    /// # Errors
    /// If they have no sets of classes, or a row may hold several documents.
    pub fn new(rows: TokenSequences, classes: usize) -> Result<Self, Error> {
        Ok(Self(Rows::new(rows, LabelKind::Classes)?, classes))
    }
}

impl Rows {
    fn new(rows: TokenSequences, wanted: LabelKind) -> Result<Self, Error> {
        let found = Self { rows, has_types: false, padding: None };
        // An empty file has neither labels nor a layout that follows from them.
        if found.rows.is_empty() {
            return Ok(found);
        }
        let layout = found.rows.options().layout;
        if layout != SequenceLayout::Documents {
            let allowed =
                "a text with a label has a row of its own; it must be \"documents\" or \"auto\"".into();
            return Err(Error::InvalidSetting { option: "data.layout", given: layout.to_string(), allowed });
        }
        match found.rows.tokens().label_kind() {
            Some(kind) if kind == wanted => Ok(found),
            other => {
                let other = other.map_or("no label".into(), |kind| format!("{kind} as its label"));
                let message = format!("each has {other}, and {wanted} is needed");
                Err(Error::Record { place: "the examples".into(), message })
            }
        }
    }

    /// The rows as inputs, and each row's label as `value` makes it.
    fn batch<V>(
        &self,
        mut items: Vec<Sequence>,
        device: &Device,
        value: impl Fn(Option<Label>) -> V,
    ) -> (Tokens, Vec<V>) {
        let shape = pad(&mut items, self.rows.end_of_text());
        if let Some(padding) = self.padding {
            items.iter_mut().for_each(|item| cut_padding(item, padding));
        }
        let types = self.has_types.then(|| types(&items, shape, device)).flatten();
        let tokens = Tokens { types, ..inputs(&items, shape, device) };
        (tokens, items.iter().map(|item| value(item.label)).collect())
    }
}

/// Counts tokens of padding at the end of a row's text as what follows it, but for the first token of all.
fn cut_padding(row: &mut Sequence, padding: u32) {
    let length = row.documents.first().copied().unwrap_or(row.inputs.len());
    let text = row.inputs[..length].iter().rposition(|token| *token != padding).map_or(1, |last| last + 1);
    if text < row.inputs.len() {
        row.documents = vec![text];
    }
}

/// The types of tokens: 1 for those of a second text, 0 for others. None where there is no second text.
fn types(rows: &[Sequence], shape: [usize; 2], device: &Device) -> Option<Tensor<2, Int>> {
    let of_row = |row: &Sequence| -> Vec<u32> {
        let text = row.documents.first().copied().unwrap_or(row.valid.len());
        row.valid.iter().enumerate().map(|(at, of_first)| u32::from(at < text && !of_first)).collect()
    };
    let types: Vec<u32> = rows.iter().flat_map(of_row).collect();
    types.contains(&1).then(|| token_tensor(types.iter(), shape, device))
}

macro_rules! dataset {
    ($type:ident, $target:ty, |$data:ident, $label:ident| $value:expr, |$values:ident, $device:ident| $tensor:expr) => {
        impl $type {
            /// For a model: the tokens of second texts have the type 1, if it knows types, and trailing padding tokens are excluded from each text.
            pub fn of(mut self, model: &SequenceClassifier) -> Self {
                self.0.has_types = model.has_types();
                self.0.padding = model.padding();
                self
            }
        }

        impl Dataset for $type {
            type Item = Sequence;
            type Input = Tokens;
            type Target = $target;

            fn len(&self) -> usize {
                self.0.rows.len()
            }

            fn get(&self, index: usize) -> anyhow::Result<Sequence> {
                Ok(self.0.rows.get(index)?)
            }

            fn batch(&self, items: Vec<Sequence>, $device: &Device) -> Batch<Tokens, $target> {
                let $data = self;
                let (tokens, $values) = self.0.batch(items, $device, |$label| $value);
                let (target, count) = $tensor;
                Batch::new(tokens, target, count)
            }
        }
    };
}

/// One value of each row.
fn one_each<E: burn::tensor::Element>(values: Vec<E>) -> (TensorData, usize) {
    let count = values.len();
    (TensorData::new(values, [count]), count)
}

dataset!(
    ClassificationDataset,
    Tensor<1, Int>,
    |_data, label| match label {
        Some(Label::Class(class)) => i64::from(class),
        // No row is without a class: that was checked.
        _ => 0,
    },
    |values, device| {
        let (data, count) = one_each(values);
        (Tensor::from_data(data, device), count)
    }
);
dataset!(
    RegressionDataset,
    Tensor<1>,
    |_data, label| match label {
        Some(Label::Number(number)) => number as f32,
        _ => 0.0,
    },
    |values, device| {
        let (data, count) = one_each(values);
        (Tensor::from_data(data, device), count)
    }
);
dataset!(
    MultiLabelDataset,
    Tensor<2>,
    |data, label| match label {
        Some(Label::Classes(bits)) => (0..data.1).map(|class| ((bits >> class) & 1) as f32).collect(),
        _ => vec![0.0_f32; data.1],
    },
    |values, device| {
        let shape = [values.len(), values.first().map_or(0, Vec::len)];
        let data = TensorData::new(values.concat(), shape);
        (Tensor::from_data(data, device), shape[0] * shape[1])
    }
);

#[cfg(test)]
mod tests {
    use brigade_data::{Example, RowOptions, TargetToken, TokenWriter};

    use super::*;
    use crate::TokenDataset;

    fn rows(layout: SequenceLayout, labels: [Option<Label>; 2]) -> TokenSequences {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(folder.path(), "train", 10).unwrap();
        for (ids, label) in [vec![1, 2, 3], vec![4]].into_iter().zip(labels) {
            writer.push_example(&Example { label, ..Example::of(ids) }).unwrap();
        }
        writer.finish().unwrap();
        let target = TargetToken::Same;
        let options = RowOptions { pad_to_multiple: 2, target, ..RowOptions::new(8, layout) };
        TokenSequences::open(folder.path(), "train", options, 9).unwrap()
    }

    #[test]
    fn rows_are_padded_and_padding_sees_itself_alone() {
        let device = brigade_cpu::device();
        let data = ClassificationDataset::new(rows(
            SequenceLayout::Auto,
            [Some(Label::Class(2)), Some(Label::Class(0))],
        ));
        let data = data.unwrap();
        let batch = data.batch((0..2).map(|row| data.get(row).unwrap()).collect(), &device);
        assert_eq!(batch.valid_targets, 2);
        assert_eq!(batch.input.ids.to_data().iter::<i64>().collect::<Vec<_>>(), [1, 2, 3, 9, 4, 9, 9, 9]);
        let bounds: Vec<i64> = batch.input.documents.unwrap().to_data().iter().collect();
        assert_eq!(bounds, [0, 3, 0, 3, 0, 3, 3, 4, 0, 1, 1, 2, 2, 3, 3, 4]);
        assert_eq!(batch.target.to_data().iter::<i64>().collect::<Vec<_>>(), [2, 0]);

        let numbers = [Some(Label::Number(0.5)), Some(Label::Number(-1.0))];
        let data = RegressionDataset::new(rows(SequenceLayout::Documents, numbers)).unwrap();
        let batch = data.batch(vec![data.get(1).unwrap()], &device);
        assert_eq!(batch.input.ids.dims(), [1, 2]);
        assert_eq!(batch.target.to_data().iter::<f32>().collect::<Vec<_>>(), [-1.0]);
    }

    #[test]
    fn padding_at_the_end_of_a_text_is_no_part_of_it() {
        let cut = |inputs: &[u32], documents: &[usize]| {
            let (inputs, documents) = (inputs.to_vec(), documents.to_vec());
            let valid = vec![true; inputs.len()];
            let mut row = Sequence { targets: inputs.clone(), inputs, valid, documents, label: None };
            cut_padding(&mut row, 9);
            row.documents
        };
        assert_eq!(cut(&[1, 9, 2], &[]), Vec::<usize>::new());
        assert_eq!(cut(&[1, 9, 2, 9, 9], &[]), [3]);
        assert_eq!(cut(&[1, 9, 2, 9, 9, 0, 0], &[5]), [3]);
        assert_eq!(cut(&[1, 2, 0], &[2]), [2]);
        assert_eq!(cut(&[9, 9], &[]), [1]);
    }

    #[test]
    fn labels_of_another_kind_and_rows_of_several_documents_are_refused() {
        let classes = [Some(Label::Class(1)); 2];
        for (rows, said) in [
            (rows(SequenceLayout::Auto, [None; 2]), "data.layout = packed is not allowed"),
            (rows(SequenceLayout::Bfd, classes), "data.layout = bfd is not allowed"),
            (rows(SequenceLayout::Documents, [None; 2]), "each has no label, and a class is needed"),
            (
                rows(SequenceLayout::Documents, [Some(Label::Number(1.0)); 2]),
                "each has a number as its label",
            ),
        ] {
            let error = ClassificationDataset::new(rows.clone()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            // All of them can be read as tokens.
            TokenDataset::new(rows).get(0).unwrap();
        }
    }
}
