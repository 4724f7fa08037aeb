//! Texts are those of `transformers`.

use serde_json::Value;

use super::{chat, expected, template};

/// What templates raise on their own.
const RAISED: &str = "TemplateError: ";

#[test]
fn chats_become_the_texts_of_transformers() {
    let (mut texts, mut raised) = (0, 0);
    let mut wrong = Vec::new();
    for case in expected()["rendered"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let prompt = case["prompt"].as_bool().unwrap();
        let found = template(name).render(&chat(case["chat"].as_str().unwrap()), prompt);
        let right = match (&case["text"], case["error"].as_str(), &found) {
            (Value::String(text), _, Ok(found)) => text == found,
            (_, Some(error), Err(found)) => match error.strip_prefix(RAISED) {
                Some(message) => found.to_string() == format!("the chat template of {name}: {message}"),
                None => true,
            },
            _ => false,
        };
        texts += usize::from(found.is_ok());
        raised += usize::from(found.is_err());
        if !right {
            wrong.push(format!(
                "{name} {} {prompt}: {} {}, but {found:?}",
                case["chat"], case["text"], case["error"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(texts > 150 && raised > 10, "{texts} {raised}");
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    let template = brigade_hf::chat::ChatTemplate::new("endless", endless, []).unwrap();
    let message = template.render(&chat("question"), false).unwrap_err().to_string();
    assert!(message.starts_with("the chat template of endless: "), "{message}");
}

#[test]
fn what_is_no_template_and_what_is_no_time_are_refused() {
    let error = brigade_hf::chat::ChatTemplate::new("chat_template.jinja", "{% for %}", []).unwrap_err();
    assert!(
        error.to_string().starts_with("the chat template of chat_template.jinja: syntax error"),
        "{error}"
    );
    let error = template("chatml").with_time("tomorrow").unwrap_err();
    assert!(error.to_string().contains("`time` is tomorrow; it can be a time such as"), "{error}");
}
