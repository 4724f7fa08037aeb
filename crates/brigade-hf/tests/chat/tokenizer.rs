//! What stands beside `tokenizer.json`.

use std::fs;
use std::path::Path;

use brigade_hf::chat::Chat;
use brigade_hf::{TokenizerConfig, additional_templates};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use super::folder;

fn with_files(files: &[(&str, Value)]) -> TempDir {
    let folder = tempdir().unwrap();
    for (name, value) in files {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn rendered(config: &TokenizerConfig, tools: bool) -> String {
    let template = config.chat_template(Path::new("folder"), tools).unwrap();
    template.render(&Chat::new([("user", "Hi")]), false).unwrap()
}

#[test]
fn the_files_of_a_current_version_are_read() {
    let config = TokenizerConfig::read(&folder().join("tokenizer")).unwrap();
    assert_eq!(config.special_tokens["bos_token"], "<s>");
    assert_eq!(config.max_length, Some(512));
    assert_eq!(config.added_tokens.len(), 8);
    let end = config.added_tokens.iter().find(|token| token.content == "<|im_end|>").unwrap();
    assert_eq!((end.id, end.special), (261, true));
    assert_eq!(config.special_texts().len(), 8);
    assert_eq!(rendered(&config, false), "<|im_start|>user\nHi<|im_end|>\n");
}

#[test]
fn the_files_of_older_versions_are_read() {
    let folder = with_files(&[
        (
            "tokenizer_config.json",
            json!({
                "bos_token": { "__type": "AddedToken", "content": "<s>", "lstrip": false },
                "eos_token": null,
                "model_max_length": 1e30,
                "extra_special_tokens": { "image_token": "<image>" },
                "chat_template": [
                    { "name": "default", "template": "{{ bos_token }}{{ eos_token }}{{ image_token }}" },
                    { "name": "tool_use", "template": "tools" },
                ],
            }),
        ),
        ("special_tokens_map.json", json!({ "bos_token": "<other>", "eos_token": { "content": "</s>" } })),
    ]);
    let config = TokenizerConfig::read(folder.path()).unwrap();
    assert_eq!(config.max_length, None);
    assert_eq!(
        (rendered(&config, false).as_str(), rendered(&config, true).as_str()),
        ("<s></s><image>", "tools")
    );
    fs::write(folder.path().join("chat_template.jinja"), "{{ bos_token }}alone").unwrap();
    let config = TokenizerConfig::read(folder.path()).unwrap();
    assert_eq!([rendered(&config, false), rendered(&config, true)], ["<s>alone", "<s>alone"]);
    // As `save_pretrained` writes several templates.
    let others = folder.path().join("additional_chat_templates");
    fs::create_dir(&others).unwrap();
    for (name, template) in
        [("tool_use.jinja", "{{ bos_token }}tools"), ("rag.jinja", "r"), ("notes.txt", "")]
    {
        fs::write(others.join(name), template).unwrap();
    }
    let config = TokenizerConfig::read(folder.path()).unwrap();
    assert!(config.templates.keys().eq(["default", "rag", "tool_use"]));
    assert_eq!([rendered(&config, false), rendered(&config, true)], ["<s>alone", "<s>tools"]);
    assert_eq!(
        additional_templates(folder.path()).unwrap(),
        ["additional_chat_templates/rag.jinja", "additional_chat_templates/tool_use.jinja"]
    );
}

#[test]
fn what_is_missing_or_wrong_is_said() {
    let empty = with_files(&[]);
    let config = TokenizerConfig::read(empty.path()).unwrap();
    assert_eq!(config, TokenizerConfig::default());
    let message = config.chat_template(Path::new("folder"), false).unwrap_err().to_string();
    assert!(message.contains("folder: there is no chat template, neither `chat_template` in"), "{message}");
    for (files, part) in [
        (("tokenizer_config.json", json!({ "bos_token": 7 })), "`bos_token` is 7; it can be a text"),
        (
            ("tokenizer_config.json", json!({ "chat_template": { "a": 1 } })),
            "`chat_template` is {\"a\":1}; it can be",
        ),
        (("tokenizer.json", json!({ "added_tokens": 1 })), "tokenizer.json is not a JSON object"),
    ] {
        let message = TokenizerConfig::read(with_files(&[files]).path()).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    let several = json!({ "chat_template": [{ "name": "tool_use", "template": "" }, { "name": "rag", "template": "" }] });
    let config = TokenizerConfig::read(with_files(&[("tokenizer_config.json", several)]).path()).unwrap();
    let message = config.chat_template(Path::new("folder"), false).unwrap_err().to_string();
    assert!(message.ends_with("there is no template `default`, only `rag`, `tool_use`"), "{message}");
}
