//! Files of weights: found, compared with the model, and cut into shards.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use brigade_hf::weights::{MatchedTensors, adapters_file, match_tensors, weights_file};
use brigade_hf::{Config, HfError, Task};
use brigade_sorted::SortedMap;
use serde_json::{Value, json};
use tempfile::tempdir;

fn config(fields: Value) -> Config {
    Config::from_fields("config.json", fields.as_object().unwrap()).unwrap()
}

fn llama() -> Config {
    config(
        json!({ "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 5 }),
    )
}

fn bert() -> Config {
    config(
        json!({ "model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2 }),
    )
}

/// The tensors of a file that has what the model has.
fn file(config: &Config, task: Task) -> SortedMap<String, Vec<usize>> {
    config.tensors(task).into_iter().collect()
}

fn matched(
    config: &Config,
    task: Task,
    trained_for: Option<Task>,
    file: &SortedMap<String, Vec<usize>>,
) -> Result<MatchedTensors, HfError> {
    match_tensors(Path::new("model.safetensors"), config, task, trained_for, file)
}

#[test]
fn weights_are_found_in_one_file_or_several() {
    let folder = tempdir().unwrap();
    for name in ["model.safetensors.index.json", "model.safetensors"] {
        fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
        fs::write(folder.path().join(name), "").unwrap();
        assert_eq!(weights_file(folder.path(), &llama(), None).unwrap(), folder.path().join(name));
    }
}

#[test]
fn pickles_are_refused_with_the_command_that_converts_them() {
    let folder = tempdir().unwrap();
    let message =
        || weights_file(folder.path(), &llama(), Some(Task::SequenceClassification)).unwrap_err().to_string();
    assert!(
        message().ends_with("has no weights, neither model.safetensors nor model.safetensors.index.json")
    );
    fs::write(folder.path().join("model.gguf"), "").unwrap();
    assert!(message().ends_with("; model.gguf cannot be read"), "{}", message());
    fs::remove_file(folder.path().join("model.gguf")).unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    let (message, path) = (message(), folder.path().display());
    assert!(message.contains("pytorch_model.bin is a Python pickle"), "{message}");
    let command = format!(
        "python -c 'from transformers import LlamaForSequenceClassification as Model; f = \"{path}\"; \
         Model.from_pretrained(f).save_pretrained(f)'"
    );
    assert!(message.ends_with(&command), "{message}");
    let missing = weights_file(&folder.path().join("none"), &llama(), None).unwrap_err();
    assert!(matches!(missing, HfError::Io { .. }), "{missing}");
}

#[test]
fn tensors_are_found_under_names_of_every_version() {
    let (llama, bert) = (llama(), bert());
    let task = Task::CausalLanguageModel;
    let same = matched(&llama, task, Some(task), &file(&llama, task)).unwrap();
    assert!(same.names.iter().all(|(name, there)| name == there));
    assert_eq!(same.names.len(), llama.tensors(task).len());

    let bare: SortedMap<_, _> = file(&bert, Task::Base);
    let older = bare.iter().map(|(name, shape)| {
        let name =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        (format!("bert.{name}"), shape.clone())
    });
    let mut older: SortedMap<_, _> = older.collect();
    older.insert("bert.embeddings.position_ids".into(), vec![1, 512]);
    let found = matched(&bert, Task::Base, Some(Task::Base), &older).unwrap();
    assert_eq!(found.names["embeddings.LayerNorm.weight"], "bert.embeddings.LayerNorm.gamma");
    assert_eq!(found.unused, ["bert.embeddings.position_ids"]);

    let mut with_copy = file(&llama, Task::Base);
    with_copy.insert("lm_head.weight".into(), vec![5, 8]);
    let found = matched(&llama, task, None, &with_copy).unwrap();
    assert_eq!(found.names["model.norm.weight"], "norm.weight");
    assert_eq!(found.names["lm_head.weight"], "lm_head.weight");
}

#[test]
fn a_head_for_something_else_is_left_and_the_new_one_is_fresh() {
    let bert = bert();
    let mut masked = file(&bert, Task::MaskedLanguageModel);
    masked.insert("cls.predictions.decoder.weight".into(), vec![30522, 8]);
    masked.insert("cls.seq_relationship.weight".into(), vec![2, 8]);
    let task = Task::SequenceClassification;
    let found = matched(&bert, task, Some(Task::MaskedLanguageModel), &masked).unwrap();
    assert_eq!(
        found.fresh,
        ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]
    );
    assert_eq!(found.unused.len(), 7);
    let same = matched(&bert, Task::MaskedLanguageModel, Some(Task::MaskedLanguageModel), &masked).unwrap();
    assert_eq!(same.unused, ["cls.predictions.decoder.weight", "cls.seq_relationship.weight"]);
    let half = file(&bert, task).into_iter().filter(|(name, _)| name != "classifier.bias").collect();
    let message = matched(&bert, task, None, &half).unwrap_err().to_string();
    assert!(message.ends_with("1 of the model's tensors are missing: `classifier.bias`"), "{message}");
}

#[test]
fn copies_in_tied_heads_say_of_what() {
    let tied = config(json!({
        "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 5,
        "tie_word_embeddings": true,
    }));
    let task = Task::CausalLanguageModel;
    let mut with_copy = file(&tied, task);
    with_copy.insert("lm_head.weight".into(), vec![5, 8]);
    let found = matched(&tied, task, Some(task), &with_copy).unwrap();
    assert_eq!(found.unused, ["lm_head.weight"]);
    assert_eq!(found.tied_to("lm_head.weight"), Some("model.embed_tokens.weight"));

    let (bert, task) = (bert(), Task::MaskedLanguageModel);
    let found = matched(&bert, task, Some(task), &file(&bert, task)).unwrap();
    let table = "bert.embeddings.word_embeddings.weight";
    assert_eq!(found.tied_to("cls.predictions.decoder.weight"), Some(table));
    assert_eq!(found.tied_to("cls.predictions.decoder.bias"), Some("cls.predictions.bias"));
    assert_eq!(found.tied_to("cls.seq_relationship.weight"), None);
}

#[test]
fn differences_are_one_message_each_with_the_first_ten() {
    let (llama, task) = (llama(), Task::CausalLanguageModel);
    let mut found = file(&llama, task);
    let kept = |name: &String| !name.starts_with("model.layers.1.") && name != "lm_head.weight";
    found.retain(|name, _| kept(name) || name.ends_with("q_proj.weight"));
    found.insert("model.norm.weight".into(), vec![9]);
    for index in 0..12 {
        found.insert(format!("model.layers.0.mlp.experts.{index:02}.weight"), vec![1]);
    }
    let message = matched(&llama, task, Some(task), &found).unwrap_err().to_string();
    for part in [
        "model.safetensors: 9 of the model's tensors are missing: `model.layers.1.input_layernorm.weight`, ",
        "`lm_head.weight`; the model does not use 12: `model.layers.0.mlp.experts.00.weight`, ",
        "experts.09.weight`, and 2 more; ",
        "1 have shapes that differ from the configuration: `model.norm.weight` is [9], not [8]",
    ] {
        assert!(message.contains(part), "{part}\n{message}");
    }
    assert!(!message.contains("experts.10."));
}

#[test]
fn pickled_adapters_are_refused_with_the_command_that_converts_them() {
    let folder = tempdir().unwrap();
    let message = || adapters_file(folder.path()).unwrap_err().to_string();
    assert!(message().ends_with("has no adapter_model.safetensors"), "{}", message());
    fs::write(folder.path().join("adapter_model.bin"), "").unwrap();
    let said = message();
    assert!(said.contains("adapter_model.bin is a Python pickle"), "{said}");
    assert!(said.contains("This command writes adapter_model.safetensors beside it: python -c '"), "{said}");
    fs::write(folder.path().join("adapter_model.safetensors"), "").unwrap();
    assert!(adapters_file(folder.path()).is_ok());
}
