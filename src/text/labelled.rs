//! Texts with labels as datasets.

use brigade_core::Batch;
use brigade_data::{Error, Label, LabelKind, Sequence, SequenceLayout, TokenSequences};
use brigade_models::Tokens;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::rows::{inputs, pad};
use crate::dataset::Dataset;

/// Texts with their classes: inputs `[batch, sequence]`, padded, and as target each row's class, `[batch]`. Padding is not seen: `Tokens::documents` has where
/// each text ends.
#[derive(Debug, Clone)]
pub struct ClassDataset(TokenSequences);

/// Texts with numbers: as [`ClassDataset`], with a number as each row's target, `[batch]`.
#[derive(Debug, Clone)]
pub struct NumberDataset(TokenSequences);

impl ClassDataset {
    /// The rows as samples.
    ///
    /// # Errors
    /// If they have no classes, or a row may hold several documents.
    pub fn new(rows: TokenSequences) -> Result<Self, Error> {
        check(&rows, LabelKind::Class)?;
        Ok(Self(rows))
    }
}

impl NumberDataset {
    /// The rows as samples.
    ///
    /// # Errors
    /// If they have no numbers, or a row may hold several documents.
    pub fn new(rows: TokenSequences) -> Result<Self, Error> {
        check(&rows, LabelKind::Number)?;
        Ok(Self(rows))
    }
}

fn check(rows: &TokenSequences, wanted: LabelKind) -> Result<(), Error> {
    // An empty file has neither labels nor a layout that follows from them.
    if rows.is_empty() {
        return Ok(());
    }
    let layout = rows.options().layout;
    if layout != SequenceLayout::Documents {
        let allowed = "a text with a label has a row of its own: \"documents\" or \"auto\"".into();
        return Err(Error::InvalidSetting { option: "data.layout", given: layout.to_string(), allowed });
    }
    match rows.tokens().label_kind() {
        Some(kind) if kind == wanted => Ok(()),
        found => {
            let found = found.map_or("no label".into(), |kind| format!("{kind} as its label"));
            let message = format!("each has {found}, and {wanted} is needed");
            Err(Error::Record { place: "the examples".into(), message })
        }
    }
}

/// The rows as inputs, and each row's label as `value` makes it.
fn batch<V>(
    rows: &TokenSequences,
    mut items: Vec<Sequence>,
    device: &Device,
    value: impl Fn(Option<Label>) -> V,
) -> (Tokens, Vec<V>) {
    let shape = pad(&mut items, rows.end_of_text());
    (inputs(&items, shape, device), items.iter().map(|item| value(item.label)).collect())
}

macro_rules! dataset {
    ($type:ident, $target:ty, |$label:ident| $value:expr) => {
        impl Dataset for $type {
            type Item = Sequence;
            type Input = Tokens;
            type Target = $target;

            fn len(&self) -> usize {
                self.0.len()
            }

            fn get(&self, index: usize) -> anyhow::Result<Sequence> {
                Ok(self.0.get(index))
            }

            fn batch(&self, items: Vec<Sequence>, device: &Device) -> Batch<Tokens, $target> {
                let (tokens, labels) = batch(&self.0, items, device, |$label| $value);
                let count = labels.len();
                Batch::new(tokens, Tensor::from_data(TensorData::new(labels, [count]), device), count)
            }
        }
    };
}

dataset!(ClassDataset, Tensor<1, Int>, |label| match label {
    Some(Label::Class(class)) => i64::from(class),
    // No row is without a class: that was checked.
    _ => 0,
});
dataset!(NumberDataset, Tensor<1>, |label| match label {
    Some(Label::Number(number)) => number as f32,
    _ => 0.0,
});

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
        let data =
            ClassDataset::new(rows(SequenceLayout::Auto, [Some(Label::Class(2)), Some(Label::Class(0))]));
        let data = data.unwrap();
        let batch = data.batch((0..2).map(|row| data.get(row).unwrap()).collect(), &device);
        assert_eq!(batch.valid_targets, 2);
        assert_eq!(batch.input.ids.to_data().iter::<i64>().collect::<Vec<_>>(), [1, 2, 3, 9, 4, 9, 9, 9]);
        let bounds: Vec<i64> = batch.input.documents.unwrap().to_data().iter().collect();
        assert_eq!(bounds, [0, 3, 0, 3, 0, 3, 3, 4, 0, 1, 1, 2, 2, 3, 3, 4]);
        assert_eq!(batch.target.to_data().iter::<i64>().collect::<Vec<_>>(), [2, 0]);

        let numbers = [Some(Label::Number(0.5)), Some(Label::Number(-1.0))];
        let data = NumberDataset::new(rows(SequenceLayout::Documents, numbers)).unwrap();
        let batch = data.batch(vec![data.get(1).unwrap()], &device);
        assert_eq!(batch.input.ids.dims(), [1, 2]);
        assert_eq!(batch.target.to_data().iter::<f32>().collect::<Vec<_>>(), [-1.0]);
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
            let error = ClassDataset::new(rows.clone()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            // All of them can be read as tokens.
            TokenDataset::new(rows).get(0).unwrap();
        }
    }
}
