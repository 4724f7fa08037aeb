//! Templates of chats, compared with what `transformers` makes of them (`fixtures/make_chats.py`).

#![allow(clippy::unwrap_used)]

mod records;
mod spans;
mod tokenizer;
mod transformers;

use std::fs;
use std::path::PathBuf;

use brigade_hf::chat::{Chat, ChatTemplate};
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat")
}

/// What `transformers` makes of the chats.
fn expected() -> Value {
    serde_json::from_slice(&fs::read(folder().join("expected.json")).unwrap()).unwrap()
}

/// A chat of the fixture, with its fields in their order.
fn chat(name: &str) -> Chat {
    let text = fs::read_to_string(folder().join("chats").join(format!("{name}.json"))).unwrap();
    let chat = Chat::from_json(name, &text).unwrap();
    let variables = serde_json::from_str::<Value>(&text).unwrap()["variables"].take();
    let variables = variables.as_object().cloned().unwrap_or_default();
    variables.into_iter().fold(chat, |chat, (name, value)| chat.with_variable(name, value))
}

/// A template of the fixture, with the special tokens of its tokenizer.
fn template(name: &str) -> ChatTemplate {
    let source = fs::read_to_string(folder().join("templates").join(format!("{name}.jinja"))).unwrap();
    let tokens = [("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>")];
    let tokens = tokens.map(|(name, token)| (format!("{name}_token"), token.to_owned()));
    ChatTemplate::new(name, &source, tokens).unwrap().with_time(expected()["now"].as_str().unwrap()).unwrap()
}
