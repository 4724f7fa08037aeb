//! Secrets where everybody would see them.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// Ends of the names of variables that hold secrets.
const NAMES: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "ACCESS_KEY", "API_KEY", "CREDENTIALS"];

/// How well-known secrets begin, the least number of characters that follow, and what they are.
const FORMS: [(&str, usize, &str); 7] = [
    ("hf_", 20, "a token of the Hugging Face hub"),
    ("AKIA", 16, "an access key of AWS"),
    ("ASIA", 16, "an access key of AWS"),
    ("AIza", 30, "an API key of Google"),
    ("ghp_", 30, "a token of GitHub"),
    ("ya29.", 20, "an access token of Google"),
    ("-----BEGIN", 1, "a private key"),
];

const FILE: &str = "put it into a file that the nodes can read, and give --token-file for Brigade's token, or --env NAME_FILE=PATH for others";

/// Refuses secrets in arguments and variables.
pub(super) fn check(args: &[String], env: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in env {
        let upper = name.to_ascii_uppercase();
        if !value.is_empty() && NAMES.iter().any(|end| upper.ends_with(end)) {
            return Err(found(format!("--env {name}"), "by its name"));
        }
        if let Some(what) = looks_like(value) {
            return Err(found(format!("--env {name}"), what));
        }
    }
    for (at, word) in args.iter().enumerate() {
        let assigned = word
            .split_once('=')
            .map(|(name, _)| name.trim_start_matches('-').to_ascii_uppercase().replace(['-', '.'], "_"));
        let named = assigned
            .is_some_and(|name| NAMES.iter().any(|end| name == *end || name.ends_with(&format!("_{end}"))));
        let what = if named { Some("by its name") } else { looks_like(word) };
        if let Some(what) = what {
            return Err(found(format!("argument {} of the command after --", at + 1), what));
        }
    }
    Ok(())
}

fn found(place: String, what: &str) -> Error {
    Error::Secret { place, what: what.into(), instead: FILE.into() }
}

fn looks_like(text: &str) -> Option<&'static str> {
    let of_secrets = |letter: char| letter.is_ascii_alphanumeric() || "_-./+=".contains(letter);
    let begins = |word: &str| {
        FORMS.iter().find(|(start, least, _)| {
            word.strip_prefix(start).is_some_and(|rest| {
                rest.chars().take_while(|c| of_secrets(*c) || *c == ' ').count() >= *least
            })
        })
    };
    let words = text.split(['=', ',', '"', '\'']);
    if let Some((_, _, what)) = words.into_iter().find_map(begins) {
        return Some(what);
    }
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split('/').next()?;
    let user = authority.rsplit_once('@')?.0;
    user.contains(':').then_some("a password in a URL")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &str, env: &[(&str, &str)]) -> Result<()> {
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        check(&args, &env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn secrets_are_found_and_not_shown() {
        let hub = "hf_abcdefghijklmnopqrstuvwx";
        for (args, env) in [
            (format!("train --set model.path={hub}"), vec![]),
            ("train --set a.api_key=0123".into(), vec![]),
            ("train --data https://me:very-secret@host/x".into(), vec![]),
            ("train".into(), vec![("HF_TOKEN", "whatever")]),
            ("train".into(), vec![("BRIGADE_TOKEN", "0123456789abcdef")]),
            ("train".into(), vec![("AWS_SECRET_ACCESS_KEY", "whatever")]),
            ("train".into(), vec![("OTHER", hub)]),
            ("train".into(), vec![("OTHER", "-----BEGIN PRIVATE KEY")]),
        ] {
            let message = of(&args, &env).unwrap_err().to_string();
            assert!(message.contains("contains a secret") && message.contains("file"), "{message}");
            for secret in [hub, "0123", "very-secret", "whatever"] {
                assert!(!message.contains(secret), "{message}");
            }
        }
    }

    #[test]
    fn what_only_sounds_like_one_is_none() {
        let files =
            [("HF_TOKEN_FILE", "/run/secrets/hub"), ("BRIGADE_TOKEN_FILE", "/etc/token"), ("HF_TOKEN", "")];
        of("train --data https://host/a@b --model hf_model --set data.tokenizer=bytes --set data.max_tokens=4", &files).unwrap();
    }
}
