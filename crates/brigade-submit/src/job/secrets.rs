//! Secrets where everybody would see them.

use std::collections::BTreeMap;

use brigade_launch::looks_like_secret;

use crate::error::{Error, Result};

/// How the names of secrets end, in whole words.
const NAMES: [&str; 8] =
    ["TOKEN", "SECRET", "PASSWORD", "PASS", "ACCESS_KEY", "API_KEY", "SECRET_KEY", "CREDENTIALS"];

/// How the names of variables that hold secrets end, also within a word.
const ENDS: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "_KEY"];

/// How the names of flags that hold secrets end, after another word.
const KEY: &str = "_KEY";

const INSTEAD: &str = "give Brigade's own token as a file with --token-file, or with --token-secret on Kubernetes; others on Kubernetes with \
                       --env-secret NAME=SECRET/KEY, and elsewhere in a file that the nodes can read, the hub's with --env HF_TOKEN_PATH=PATH";

/// Refuses secrets in arguments and variables.
pub(super) fn check(args: &[String], env: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in env {
        let upper = name.to_ascii_uppercase();
        let named = is_name(name) || ENDS.iter().any(|end| upper.ends_with(end));
        let what = if named && !value.is_empty() { Some("by its name") } else { looks_like_secret(value) };
        if let Some(what) = what {
            return Err(found(format!("--env {name}"), what));
        }
    }
    for (at, word) in args.iter().enumerate() {
        let place = format!("argument {} of the command after --", at + 1);
        let before = at.checked_sub(1).map(|at| args[at].as_str());
        let named = before.is_some_and(|flag| flag.starts_with("--") && is_name(flag));
        if named && !word.starts_with('-') && may_be_one(word) {
            return Err(found(place, "by its name"));
        }
        no_secret(&place, word)?;
    }
    Ok(())
}

/// Refuses a word that is a secret, or gives one to a name.
pub(crate) fn no_secret(place: &str, word: &str) -> Result<()> {
    let assigns = |part: &str| {
        let between: Vec<&str> = part.split('=').collect();
        between.windows(2).any(|pair| is_name(pair[0]) && may_be_one(pair[1]))
    };
    let what =
        if word.split([',', ' ']).any(assigns) { Some("by its name") } else { looks_like_secret(word) };
    what.map_or(Ok(()), |what| Err(found(place.to_owned(), what)))
}

/// Special tokens, as in `--pad-token <pad>`, are no secrets.
fn may_be_one(value: &str) -> bool {
    !value.is_empty() && !value.starts_with(['<', '['])
}

/// Whether the last words of a name, of a variable, a flag or a setting, say that it is a secret.
fn is_name(name: &str) -> bool {
    let is_flag = name.starts_with("--");
    let name = name.trim_start_matches('-').to_ascii_uppercase().replace(['-', '.'], "_");
    if is_flag && name.ends_with(KEY) && name.len() > KEY.len() {
        return true;
    }
    NAMES.iter().any(|end| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_')))
}

fn found(place: String, what: &str) -> Error {
    Error::Secret { place, what: what.into(), instead: INSTEAD.into() }
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
            ("launch -- ./a --wandb-key whatever".into(), vec![]),
            ("launch -- ./a --wandb_key=whatever".into(), vec![]),
            ("launch -- ./a --export=A=1,HF_TOKEN=whatever".into(), vec![]),
            ("train --data https://host/a?X-Amz-Date=1&X-Amz-Signature=whatever".into(), vec![]),
            ("train --data https://host/a?X-Goog-Signature=whatever".into(), vec![]),
            ("train --data https://host/a?sv=1&sig=whatever".into(), vec![]),
            ("train --set output.notify=https://hooks.slack.com/services/whatever".into(), vec![]),
            ("launch -- ./a --header Authorization:whatever".into(), vec![]),
            ("train".into(), vec![("OTHER", "Authorization: Basic whatever")]),
            ("train".into(), vec![("OTHER", "Bearer whatever")]),
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
            ("HF_TOKEN_PATH", "/run/secrets/hub"),
            ("NOTE", "a bearer"),
            ("BRIGADE_TOKEN_FILE", "/etc/token"),
            ("HF_TOKEN", ""),
            ("COMPASS", "north"),
            ("PASSES", "3"),
            ("KEYS", "a"),
        ];
        of("train --data https://host/a@b --model hf_model --set data.tokenizer=bytes --set data.max_tokens=4", &files).unwrap();
        of("launch -- ./a --max-tokens 4 --tokenizer bytes --key-bits 256 --key id --token --pad-token <pad> --eos-token=</s> --url https://host/a?design=1 --compass north --name sk-learn-run eyJ.a", &[]).unwrap();
    }
}
