//! Records of data.

use std::error::Error;

use brigade_hf::HfError;
use brigade_hf::chat::{ChatTemplate, Encoded, Record, RecordTokenizer, TokenizedRecord};
use serde_json::json;
use tokenizers::Tokenizer;

use super::{folder, template};

fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(folder().join("tokenizer/tokenizer.json")).unwrap()
}

fn tokens(template: Option<&ChatTemplate>, record: &serde_json::Value) -> Result<TokenizedRecord, HfError> {
    let tokenizer = tokenizer();
    let encode = |text: &str, add: bool| -> Result<Encoded, Box<dyn Error + Send + Sync>> {
        let encoding = tokenizer.encode(text, add)?;
        let offsets = encoding.get_offsets().iter().map(|(begin, end)| *begin..*end).collect();
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets })
    };
    let special = ["<|im_end|>".to_owned()];
    let records = RecordTokenizer { template, special_tokens: &special, eos_token: "</s>", encode };
    records.tokens("data.jsonl:7", &Record::from_json("data.jsonl:7", &record.to_string())?)
}

/// The text of all tokens, and of those that are learned.
fn texts(template: Option<&ChatTemplate>, record: serde_json::Value) -> (String, String) {
    let found = tokens(template, &record).unwrap();
    let learned = found.ids.iter().zip(&found.learned).filter(|(_, learned)| **learned).map(|(id, _)| *id);
    let learned: Vec<_> = learned.collect();
    let decode = |ids: &[u32]| tokenizer().decode(ids, false).unwrap();
    (decode(&found.ids), decode(&learned))
}

#[test]
fn of_chats_what_the_assistant_says_is_learned() {
    for name in ["chatml", "chatml-generation"] {
        let template = template(name);
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        let mut record = json!({ "messages": [
            turn("system", "S"), turn("user", "A"), turn("assistant", "é1"), turn("user", "B"), turn("assistant", "2"),
        ] });
        let (all, learned) = texts(Some(&template), record.clone());
        assert!(
            all.ends_with("<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"),
            "{all}"
        );
        assert_eq!(learned, "é1<|im_end|>2<|im_end|>", "{name}");
        record["messages"][2]["weight"] = json!(0);
        record["messages"][4]["weight"] = json!(1);
        assert_eq!(texts(Some(&template), record.clone()), (all.clone(), "2<|im_end|>".to_owned()), "{name}");

        let messages = record["messages"].as_array().unwrap();
        let parts = json!({ "prompt": messages[..3], "completion": messages[3..] });
        assert_eq!(texts(Some(&template), parts), (all, "2<|im_end|>".to_owned()), "{name}");
    }
}

#[test]
fn of_completions_all_but_the_prompt_is_learned() {
    let (all, learned) = texts(None, json!({ "prompt": "2 + 2 =", "completion": " 4" }));
    assert_eq!((all.as_str(), learned.as_str()), ("2 + 2 = 4</s>", " 4</s>"));
    // To say nothing is to end at once.
    let (all, learned) = texts(None, json!({ "prompt": "2 + 2 =", "completion": "" }));
    assert_eq!((all.as_str(), learned.as_str()), ("2 + 2 =</s>", "</s>"));
}

#[test]
fn what_is_no_record_is_refused_by_its_place() {
    let template = template("chatml");
    let user = json!({ "role": "user", "content": "A" });
    for (record, part) in [
        (json!({ "messages": [user] }), "the assistant says nothing in this chat that could be learned"),
        (
            json!({ "messages": [user, { "role": "assistant", "content": "B", "weight": 0 }] }),
            "the assistant says nothing",
        ),
        (json!({ "messages": [] }), "`messages` is empty"),
        (json!({ "messages": "A" }), "`messages` is not a list"),
        (json!({ "messages": [user, { "content": "B" }] }), "message 2 of `messages` has no `role`"),
        (
            json!({ "messages": [{ "role": "assistant", "weight": 0.5 }] }),
            "the `weight` of message 1 is neither 0 nor 1",
        ),
        (json!({ "messages": [user], "tools": {} }), "`tools` is not a list"),
        (json!({ "prompt": "A", "completion": [user] }), "must both be strings or both be lists of messages"),
        (
            json!({ "text": "A", "id": 1 }),
            "it has neither `messages` nor `prompt` and `completion`, but `id`, `text`",
        ),
        (json!([1]), "it has neither `messages` nor `prompt` and `completion`, but nothing"),
    ] {
        let message = tokens(Some(&template), &record).unwrap_err().to_string();
        assert!(message.starts_with("data.jsonl:7: ") && message.contains(part), "{message}");
    }
    let message = Record::from_json("data.jsonl:7", "{").unwrap_err().to_string();
    assert!(message.starts_with("data.jsonl:7: it is not JSON: "), "{message}");
    let message = tokens(None, &json!({ "messages": [user] })).unwrap_err().to_string();
    assert_eq!(message, "data.jsonl:7: there is no chat template");
}

#[test]
fn marks_that_are_not_those_of_the_turns_do_not_say_which_are_learned() {
    let marks =
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}";
    let template = ChatTemplate::new("marks", marks, []).unwrap();
    let record = json!({ "messages": [
        { "role": "user", "content": "A" }, { "role": "assistant", "content": "B", "weight": 0 },
    ] });
    let message = tokens(Some(&template), &record).unwrap_err().to_string();
    assert!(message.contains("it marks 2 parts for 1 turn of the assistant"), "{message}");
}
