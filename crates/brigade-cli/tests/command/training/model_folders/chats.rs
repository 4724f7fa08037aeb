//! Training on chats, with the template of the model's folder.

use std::fs;

use serde_json::{Value, json};

use super::folders::{BYTES, with_llama};
use crate::place::Place;

const TEMPLATE: &str = "{% for message in messages %}{% if message.role == 'assistant' %}\
                        {% generation %}{{ message.content }};{% endgeneration %}\
                        {% else %}{{ message.content }}:{% endif %}{% endfor %}";

fn with_chats() -> Place {
    let place = with_llama();
    fs::write(place.path("llama/chat_template.jinja"), TEMPLATE).unwrap();
    fs::create_dir(place.path("llama/additional_chat_templates")).unwrap();
    fs::write(place.path("llama/additional_chat_templates/rag.jinja"), "rag").unwrap();
    let turn = |role: &str, content: &str| format!("{{\"role\": \"{role}\", \"content\": \"{content}\"}}");
    let chat = |number: usize| {
        let (question, answer) = ("ab".repeat(number % 5), format!("{}", number * 7));
        format!("{{\"messages\": [{}, {}]}}\n", turn("user", &question), turn("assistant", &answer))
    };
    fs::write(place.path("chats.jsonl"), (0..200).map(chat).collect::<String>()).unwrap();
    place
}

#[test]
fn chats_train_to_the_same_bytes_on_a_mesh() {
    let place = with_chats();
    let line = format!("--model llama --set model.pretrained=false {BYTES} --data chats.jsonl");
    for layout in ["auto", "documents"] {
        let train = |name: &str, mesh: &str| {
            let line = format!(
                "{line} --set data.layout={layout} --set data.pad_to_multiple=4 {mesh} --out {name}-{layout}"
            );
            let said = place.succeed(&mut place.train(&line)).err;
            assert_eq!(said.contains("documents in"), layout == "auto", "{said}");
            place.read(&format!("{name}-{layout}/model.safetensors"))
        };
        let alone = train("alone", "--nproc-per-node 1");
        assert!(
            train("mesh", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all") == alone,
            "{layout}"
        );
        assert_eq!(place.text(&format!("alone-{layout}/additional_chat_templates/rag.jinja")), "rag");
        let loss = |step: usize| place.metrics(&format!("alone-{layout}"))[step]["loss"].as_f64().unwrap();
        let last = place.metrics(&format!("alone-{layout}")).len() - 1;
        assert!(loss(last) < loss(0), "{layout}: {} to {}", loss(0), loss(last));
    }
}

#[test]
fn answers_end_with_the_token_that_ends_a_turn_of_the_template() {
    let place = with_chats();
    let mut tokenizer: Value = serde_json::from_str(&place.text("llama/tokenizer.json")).unwrap();
    let mut added = tokenizer["added_tokens"][0].clone();
    (added["id"], added["content"]) = (257.into(), "<|im_end|>".into());
    tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    fs::write(place.path("llama/tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(place.path("llama/chat_template.jinja"), TEMPLATE.replace(';', "<|im_end|>")).unwrap();
    let ends = |run: &str| {
        let generation: Value =
            serde_json::from_str(&place.text(&format!("{run}/generation_config.json"))).unwrap();
        generation["eos_token_id"].clone()
    };
    let line = format!("{BYTES} --data chats.jsonl --steps 1 --nproc-per-node 1");
    place.succeed(&mut place.train(&format!("--model llama --set model.pretrained=false {line} --out a")));
    assert_eq!(ends("a"), json!([2, 257]));
    fs::remove_file(place.path("a/generation_config.json")).unwrap();
    place.succeed(&mut place.train(&format!("--model a --lora-rank 2 {line} --out b")));
    assert_eq!(ends("b"), json!([2, 257]));
}

#[test]
fn a_chat_in_which_the_assistant_is_silent_ends_the_run_before_it_begins() {
    let place = with_chats();
    let silent = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
    fs::write(place.path("chats.jsonl"), place.text("chats.jsonl") + silent).unwrap();
    let line = format!("--model llama --set model.pretrained=false {BYTES} --data chats.jsonl --out a");
    let done = place.run(&mut place.train(&line));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(
        done.err.contains("chats.jsonl:201: ") && done.err.contains("the assistant says nothing"),
        "{}",
        done.err
    );
    assert!(!place.path("a").exists());
}
