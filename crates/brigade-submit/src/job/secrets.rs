//! Secrets where everybody would see them.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// How the names of secrets end, in whole words.
const NAMES: [&str; 8] =
    ["TOKEN", "SECRET", "PASSWORD", "PASS", "ACCESS_KEY", "API_KEY", "SECRET_KEY", "CREDENTIALS"];

/// How the names of variables that hold secrets end, also within a word.
const ENDS: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "_KEY"];

/// How well-known secrets begin, the least number of characters that follow, and what they are.
const FORMS: [(&str, usize, &str); 12] = [
    ("hf_", 20, "a token of the Hugging Face hub"),
    ("AKIA", 16, "an access key of AWS"),
    ("ASIA", 16, "an access key of AWS"),
    ("AIza", 30, "an API key of Google"),
    ("ghp_", 30, "a token of GitHub"),
    ("github_pat_", 30, "a token of GitHub"),
    ("glpat-", 20, "a token of GitLab"),
    ("sk-proj-", 20, "an API key of OpenAI"),
    ("sk-", 32, "an API key"),
    ("xoxb-", 20, "a token of Slack"),
    ("ya29.", 20, "an access token of Google"),
    ("-----BEGIN", 0, "a private key"),
];

const FILE: &str = "put it into a file that the nodes can read, and give --token-file for Brigade's token, or --env NAME_FILE=PATH for others";

/// Refuses secrets in arguments and variables.
pub(super) fn check(args: &[String], env: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in env {
        let upper = name.to_ascii_uppercase();
        let named = is_name(name) || ENDS.iter().any(|end| upper.ends_with(end));
        let what = if named && !value.is_empty() { Some("by its name") } else { looks_like(value) };
        if let Some(what) = what {
            return Err(found(format!("--env {name}"), what));
        }
    }
    for (at, word) in args.iter().enumerate() {
        let assigned = word.split_once('=').is_some_and(|(name, value)| is_name(name) && may_be_one(value));
        let before = at.checked_sub(1).map(|at| args[at].as_str());
        let named = before.is_some_and(|flag| flag.starts_with("--") && is_name(flag));
        let follows = named && !word.starts_with('-') && may_be_one(word);
        let what = if assigned || follows { Some("by its name") } else { looks_like(word) };
        if let Some(what) = what {
            return Err(found(format!("argument {} of the command after --", at + 1), what));
        }
    }
    Ok(())
}

/// Special tokens, as in `--pad-token <pad>`, are no secrets.
fn may_be_one(value: &str) -> bool {
    !value.is_empty() && !value.starts_with(['<', '['])
}

/// Whether the last words of a name, of a variable, a flag or a setting, say that it is a secret.
fn is_name(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_uppercase().replace(['-', '.'], "_");
    NAMES.iter().any(|end| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_')))
}

fn found(place: String, what: &str) -> Error {
    Error::Secret { place, what: what.into(), instead: FILE.into() }
}

fn looks_like(text: &str) -> Option<&'static str> {
    let of_secrets = |letter: &char| letter.is_ascii_alphanumeric() || "_-".contains(*letter);
    let begins = |word: &str| {
        let long = |rest: &str, least| rest.chars().take_while(of_secrets).count() >= least;
        let known = FORMS
            .iter()
            .find(|(start, least, _)| word.strip_prefix(start).is_some_and(|rest| long(rest, *least)));
        // Two parts of a JSON Web Token are objects.
        let is_jwt = word.starts_with("eyJ") && word.contains(".eyJ");
        known.map(|(_, _, what)| *what).or_else(|| is_jwt.then_some("a JSON Web Token"))
    };
    let mut words = text.split(['=', ',', '"', '\'', ' ']);
    if let Some(what) = words.find_map(begins) {
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
            ("launch -- ./a --api-key 0123".into(), vec![]),
            ("launch -- ./a --hub_token whatever".into(), vec![]),
            ("launch -- ./a --db-password=whatever".into(), vec![]),
            ("launch -- ./a --db.pass whatever".into(), vec![]),
            ("launch -- ./a --key sk-proj-0123456789abcdefghij".into(), vec![]),
            ("launch -- ./a --key sk-0123456789abcdefghijklmnopqrstuv".into(), vec![]),
            ("launch -- ./a --key github_pat_0123456789abcdefghijklmnopqrstuv".into(), vec![]),
            ("launch -- ./a --key glpat-0123456789abcdefghij".into(), vec![]),
            ("launch -- ./a --key xoxb-0123456789-abcdefghij".into(), vec![]),
            ("launch -- ./a --key eyJ0123.eyJ0123.0123".into(), vec![]),
            ("train".into(), vec![("OTHER", "Bearer eyJ0123.eyJ0123.0123")]),
            ("train".into(), vec![("PGPASSWORD", "whatever")]),
            ("train".into(), vec![("DB_PASS", "whatever")]),
            ("train".into(), vec![("STRIPE_KEY", "whatever")]),
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
        let files = [
            ("HF_TOKEN_FILE", "/run/secrets/hub"),
            ("BRIGADE_TOKEN_FILE", "/etc/token"),
            ("HF_TOKEN", ""),
            ("COMPASS", "north"),
            ("PASSES", "3"),
            ("KEYS", "a"),
        ];
        of("train --data https://host/a@b --model hf_model --set data.tokenizer=bytes --set data.max_tokens=4", &files).unwrap();
        of("launch -- ./a --max-tokens 4 --tokenizer bytes --key-bits 256 --key id --token --pad-token <pad> --eos-token=</s> --compass north --name sk-learn-run eyJ.a", &[]).unwrap();
    }
}
