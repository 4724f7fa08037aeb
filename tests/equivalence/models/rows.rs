//! Rows of texts: documents that share a row and do not see one another, and rows that are padded, of another length in each micro-batch.

use brigade::core::{Batch, Chain, EngineSettings, Groups, Model};
use brigade::data::{
    Example, Label, LongExamples, RowOptions, SequenceLayout, TargetToken, TokenSequences, TokenWriter,
};
use brigade::models::encoder::Encoder;
use brigade::models::gpt::{Gelu, GptConfig, Targets, cross_entropy};
use brigade::models::{Logits, Tokens};
use brigade::{ClassificationDataset, Dataset, TokenDataset};
use brigade_hf::{Config, Task};
use burn::tensor::{Int, Tensor};
use serde_json::json;

use crate::case::Case;

const LENGTH: usize = 12;
const VOCABULARY: usize = 24;
const END: u32 = 23;

/// Documents of 3 to 17 tokens, the first tokens of each of which are not learned.
fn documents() -> Vec<Example> {
    let document = |index: usize| {
        // Two that follow one another are as long, so that micro-batches differ.
        let length = 3 + index / 2 * 7 % 15;
        let mut ids: Vec<u32> = (0..length).map(|at| ((at * 31 + index * 17) * 7919 % 23) as u32).collect();
        ids[length - 1] = END;
        let learned = (0..length).map(|at| at > index % 3).collect();
        Example { ids, learned, label: None, cut: 0 }
    };
    (0..40).map(document).collect()
}

fn rows(documents: &[Example], options: RowOptions) -> TokenSequences {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TokenWriter::create(folder.path(), "train", VOCABULARY).unwrap();
    documents.iter().for_each(|document| writer.push_example(document).unwrap());
    writer.finish().unwrap();
    TokenSequences::open(folder.path(), "train", options, END).unwrap()
}

fn chain() -> Chain<Tokens, Logits> {
    let gpt = GptConfig {
        vocabulary: VOCABULARY,
        sequence_length: LENGTH,
        width: 12,
        layers: 3,
        heads: 3,
        tied_head: true,
        activation: Gelu::Gelu,
        dropout: 0.0,
        initializer_range: 0.02,
    };
    gpt.chain(5, &brigade_cpu::device()).unwrap()
}

fn model() -> Model<Tokens, Logits, Targets> {
    chain().loss(|logits, targets| cross_entropy(logits, targets).0)
}

/// Two rows, by the number of their micro-batch.
fn batch<D: Dataset>(data: &D, number: usize) -> Batch<D::Input, D::Target> {
    let row = |row: usize| data.get((2 * number + row) % data.len()).unwrap();
    data.batch((0..2).map(row).collect(), &brigade_cpu::device())
}

fn layouts() -> [RowOptions; 3] {
    let of = |layout| RowOptions { pad_to_multiple: 4, ..RowOptions::new(LENGTH, layout) };
    [
        RowOptions { reset_attention_mask: true, ..of(SequenceLayout::Packed) },
        RowOptions { long: LongExamples::Split, ..of(SequenceLayout::Bfd) },
        of(SequenceLayout::Documents),
    ]
}

#[test]
fn packed_documents_and_padded_rows() {
    for options in layouts() {
        let data = TokenDataset::new(rows(&documents(), options));
        let first = batch(&data, 0).input;
        assert!(first.documents.is_some(), "{options:?}");
        let lengths: Vec<usize> =
            (0..data.len() / 2).map(|number| batch(&data, number).input.ids.dims()[1]).collect();
        let varies = lengths.iter().any(|length| *length != lengths[0]);
        assert_eq!(varies, options.layout == SequenceLayout::Documents, "{lengths:?}");
        Case { model, batch: |number| batch(&data, number) }.equals_one_process();
    }
}

/// Rows with one label each, of several lengths.
#[test]
fn padded_rows_with_labels() {
    let mut documents = documents();
    for (index, document) in documents.iter_mut().enumerate() {
        document.label = Some(Label::Class(index as u32 % 3));
        document.ids.truncate(LENGTH);
        document.learned.truncate(LENGTH);
    }
    let options = RowOptions {
        pad_to_multiple: 4,
        target: TargetToken::Same,
        ..RowOptions::new(LENGTH, SequenceLayout::Auto)
    };
    let data = ClassificationDataset::new(rows(&documents, options)).unwrap();
    // The class is read off the logits of each row's third token.
    let loss = |logits: Logits, classes: Tensor<1, Int>| {
        let rows = classes.dims()[0];
        let logits = logits.whole();
        let (count, ids) = (logits.dims()[0] / rows, logits.dims()[1]);
        let third = logits.reshape([rows, count, ids]).slice([0..rows, 2..3, 0..ids]).reshape([rows, ids]);
        cross_entropy(Logits::Whole(third), Targets { tokens: classes.reshape([rows, 1]), mask: None }).0
    };
    Case { model: || chain().loss(loss), batch: |number| batch(&data, number) }.equals_one_process();
}

/// A document that shares a row has the loss that it has alone: it sees no other, and its positions begin at its beginning.
#[test]
fn documents_that_share_a_row_have_the_loss_that_they_have_alone() {
    let losses = layouts().into_iter().skip(1).map(|options| {
        let options = RowOptions { long: LongExamples::Cut, ..options };
        let data = TokenDataset::new(rows(&documents(), options));
        let rows: Vec<_> = (0..data.len()).map(|row| data.get(row).unwrap()).collect();
        let all = data.batch(rows, &brigade_cpu::device());
        let engine = Case { model, batch: |number| batch(&data, number) };
        let mut engine = engine.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
        (data.len(), engine.evaluate(1, |_| Ok(all.clone())).unwrap().loss)
    });
    let [(shared, a), (alone, b)] = losses.collect::<Vec<_>>().try_into().unwrap();
    assert!(alone == 40 && shared < 35, "{shared} rows instead of {alone}");
    assert!((a - b).abs() < 1e-6 * b, "{a} and {b}");
}

/// No token sees the padding of a packed row, also where no causal mask hides it: a short text has one loss in rows of any length.
#[test]
fn padding_of_packed_rows_does_not_change_the_loss_of_an_encoder() {
    let text: Vec<u32> = (0..40).map(|at| at * 7919 % END).collect();
    for family in ["bert", "roberta"] {
        // Weights so large that what is attended to matters.
        let fields = json!({
            "model_type": family, "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 1, "max_position_embeddings": 514,
            "initializer_range": 0.5,
        });
        let config = Config::from_fields("config.json", fields.as_object().unwrap()).unwrap();
        let [short, long] = [64, 512].map(|length| {
            let encoder = Encoder::from_config(&config, Task::MaskedLanguageModel, Some(length)).unwrap();
            let options =
                RowOptions { target: TargetToken::Same, ..RowOptions::new(length, SequenceLayout::Packed) };
            let data = TokenDataset::new(rows(&[Example::of(text.clone())], options));
            let case = Case {
                model: || encoder.masked_lm(7, &brigade_cpu::device()),
                batch: |number| batch(&data, number),
            };
            let mut engine = case.engine(Groups::single_rank(), EngineSettings::default()).unwrap();
            engine.evaluate(1, |_| Ok(batch(&data, 0))).unwrap().loss
        });
        assert!((short - long).abs() < 1e-5 * short, "{family}: {short} and {long}");
    }
}
