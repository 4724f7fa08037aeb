//! What the assistant said.

use std::ops::Range;

use brigade_hf::chat::{Chat, ChatTemplate, token_mask};
use tokenizers::Tokenizer;

use super::{chat, expected, folder, template};

/// What a template says that the assistant said.
fn said(template: &ChatTemplate, chat: &Chat) -> Vec<String> {
    let special = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"].map(str::to_owned);
    let found = template.assistant_text(chat, &special).unwrap();
    assert_eq!(found.text, template.render(chat, false).unwrap());
    found.spans.iter().map(|span| found.text[span.clone()].to_owned()).collect()
}

#[test]
fn tokens_of_the_assistant_are_those_of_transformers() {
    let tokenizer = Tokenizer::from_file(folder().join("tokenizer/tokenizer.json")).unwrap();
    let expected = expected();
    for case in expected["masked"].as_array().unwrap() {
        let chat = chat(case["chat"].as_str().unwrap());
        let found = template("chatml-generation").assistant_text(&chat, &[]).unwrap();
        let encoding = tokenizer.encode(found.text.as_str(), false).unwrap();
        assert_eq!(serde_json::json!(encoding.get_ids()), case["ids"], "{}", case["chat"]);
        let offsets: Vec<Range<usize>> =
            encoding.get_offsets().iter().map(|(begin, end)| *begin..*end).collect();
        let mask: Vec<u8> = token_mask(&found.spans, &offsets).into_iter().map(u8::from).collect();
        assert_eq!(serde_json::json!(mask), case["mask"], "{}", case["chat"]);
    }
}

#[test]
fn templates_without_marks_show_the_same_as_one_with_them() {
    for name in ["answer", "turns", "unicode", "nulls", "empty"] {
        let chat = chat(name);
        assert_eq!(said(&template("chatml"), &chat), said(&template("chatml-generation"), &chat), "{name}");
    }
}

#[test]
fn every_family_shows_what_the_assistant_said() {
    for (name, turns) in [
        ("llama3", ["The Nile.<|eot_id|>", "The Amazon.\nBy far.<|eot_id|>", "You're welcome.<|eot_id|>"]),
        ("mistral", [" The Nile.</s>", " The Amazon.\nBy far.</s>", " You're welcome.</s>"]),
        (
            "gemma",
            ["The Nile.<end_of_turn>", "The Amazon.\nBy far.<end_of_turn>", "You're welcome.<end_of_turn>"],
        ),
        (
            "qwen3",
            [
                "The Nile.<|im_end|>",
                " The Amazon.\nBy far. <|im_end|>",
                "<think>\n\n</think>\n\nYou're welcome.<|im_end|>",
            ],
        ),
    ] {
        assert_eq!(said(&template(name), &chat("turns")), turns, "{name}");
    }
    let thoughts = ["6<|im_end|>", "<think>\nTwice four.\n</think>\n\n8<|im_end|>"];
    assert_eq!(said(&template("qwen3"), &chat("thoughts")), thoughts);
}

#[test]
fn calls_of_tools_are_the_assistants() {
    let said = said(&template("qwen3"), &chat("tools"));
    assert_eq!(said.len(), 2);
    assert!(
        said[0].starts_with("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Zürich\""),
        "{}",
        said[0]
    );
    assert!(said[0].ends_with("</tool_call><|im_end|>"), "{}", said[0]);
}

#[test]
fn a_chat_without_the_assistant_is_refused() {
    for name in ["chatml", "chatml-generation"] {
        let message = template(name).assistant_text(&chat("question"), &[]).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "the chat template of {name}: the assistant says nothing in this chat that could be learned"
            )
        );
    }
}

#[test]
fn a_template_that_hides_where_the_assistant_speaks_is_refused() {
    let shuffled =
        "{% for message in messages[::-1] %}{{ message.role }} {{ message.content }}\n{% endfor %}";
    let template = ChatTemplate::new("shuffled", shuffled, []).unwrap();
    for (name, number) in [("turns", 3), ("answer", 2)] {
        let message = template.assistant_text(&chat(name), &[]).unwrap_err().to_string();
        let part =
            format!("it does not show where message {number} is; blocks of {{% generation %}} would mark it");
        assert!(message.contains(&part), "{message}");
    }
}

#[test]
fn white_space_after_a_turn_counts_only_where_no_special_token_ends_it() {
    let plain = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    let template = ChatTemplate::new("plain", plain, []).unwrap();
    assert_eq!(said(&template, &chat("answer")), [" 2\n"]);
}

#[test]
fn tokens_belong_to_what_they_share_a_byte_with() {
    let offsets = [0..2, 2..2, 2..4, 3..5, 5..6, 8..9];
    assert_eq!(token_mask(&[1..2, 4..5], &offsets), [true, false, false, true, false, false]);
}

#[test]
fn the_header_of_a_first_turn_is_not_learned() {
    let zephyr = "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}</s>\n{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}{% endfor %}";
    let zephyr = ChatTemplate::new("zephyr", zephyr, []).unwrap();
    let turns = [("assistant", "Welcome"), ("user", "Hi"), ("assistant", "Hello")];
    for template in [&zephyr, &template("chatml"), &template("llama3")] {
        let said = said(template, &Chat::new(turns));
        assert!(said[0].starts_with("Welcome") && said[1].starts_with("Hello"), "{said:?}");
    }
}

#[test]
fn an_answer_without_the_thoughts_that_its_prompt_begins_is_learned_from_its_content_on() {
    let thinks = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    let thinks = ChatTemplate::new("thinks", thinks, []).unwrap();
    let turns =
        [("user", "2 + 2?"), ("assistant", "<think>\nEasy.</think>4"), ("user", "+ 1?"), ("assistant", "5")];
    assert_eq!(said(&thinks, &Chat::new(turns)), ["4<|im_end|>", "5<|im_end|>"]);
}
