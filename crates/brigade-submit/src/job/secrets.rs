//! Secrets where everybody would see them.

use std::collections::BTreeMap;

use brigade_launch::{is_secret_name, looks_like_secret};

use crate::error::{Error, Result};

/// How the names of variables that hold secrets end, also within a word.
const ENDS: [&str; 7] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS", "_KEY"];

/// How those end whose value may be the name of a file or a folder.
const OF_FILES: [&str; 2] = ["CREDENTIALS", "PWD"];

/// Values that only switch something on or off.
const SWITCHES: [&str; 8] = ["0", "1", "true", "false", "yes", "no", "on", "off"];

/// How the names of flags that hold secrets end, after another word.
const KEY: &str = "_KEY";

const INSTEAD: &str = "give Brigade's own token as a file with --token-file, or with --token-secret on Kubernetes; others on Kubernetes with \
                       --env-secret NAME=SECRET/KEY, and elsewhere in a file that the nodes can read, the hub's with --env HF_TOKEN_PATH=PATH";

/// Refuses secrets in arguments and variables.
pub(super) fn check(args: &[String], env: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in env {
        let upper = name.to_ascii_uppercase();
        let named = is_name(name) || ENDS.iter().any(|end| upper.ends_with(end));
        let place = format!("--env {name}");
        if named && may_be_one(name, value) {
            return Err(found(place, "by its name"));
        }
        no_secret(&place, value)?;
    }
    for (at, word) in args.iter().enumerate() {
        let place = format!("argument {} of the command after --", at + 1);
        let before = at.checked_sub(1).map(|at| args[at].as_str());
        let named = before.filter(|flag| flag.starts_with("--") && is_name(flag));
        if named.is_some_and(|flag| !word.starts_with('-') && may_be_one(flag, word)) {
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
        between.windows(2).any(|pair| is_name(pair[0]) && may_be_one(pair[0], pair[1]))
    };
    let what = if word.split([',', ' ', '?', '&', ';']).any(assigns) {
        Some("by its name")
    } else {
        looks_like_secret(word)
    };
    what.map_or(Ok(()), |what| Err(found(place.to_owned(), what)))
}

/// Whether the value of a name of secrets may be one. Special tokens, as in `--pad-token <pad>`, switches and the names of files are none.
fn may_be_one(name: &str, value: &str) -> bool {
    let is_switch = SWITCHES.iter().any(|switch| value.eq_ignore_ascii_case(switch));
    let is_file = match OF_FILES.iter().any(|end| name.to_ascii_uppercase().ends_with(end)) {
        true => value.starts_with('/') || value.ends_with(".json"),
        // Keys may begin with a slash, but have no dot.
        false => value.starts_with('/') && value.contains('.'),
    };
    !value.is_empty() && !value.starts_with(['<', '[']) && !is_switch && !is_file
}

/// Whether the last words of a name, of a variable, a flag or a setting, say that it is a secret.
fn is_name(name: &str) -> bool {
    let of_flag = || name.strip_prefix("--").map(|flag| flag.to_ascii_uppercase().replace(['-', '.'], "_"));
    is_secret_name(name) || of_flag().is_some_and(|flag| flag.ends_with(KEY) && flag.len() > KEY.len())
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
            ("train".into(), vec![("MYSQL_PWD", "whatever")]),
            ("train".into(), vec![("GPG_PASSPHRASE", "whatever")]),
            ("train".into(), vec![("AWS_SECRET_ACCESS_KEY", "/whatever+0123/abc")]),
            ("train".into(), vec![("GOOGLE_APPLICATION_CREDENTIALS", "whatever")]),
            ("train".into(), vec![("STORE", "AccountName=a;AccountKey=whatever;EndpointSuffix=b")]),
            ("train".into(), vec![("CONNECTION", "https://host/?token=whatever")]),
            ("launch -- ./a --url https://host/x?token=whatever".into(), vec![]),
            ("launch -- ./a --url https://host/x?a=1&api_key=whatever".into(), vec![]),
            ("launch -- ./a --passwd whatever".into(), vec![]),
            ("launch -- ./a --store AccountName=a;AccountKey=whatever;EndpointSuffix=b".into(), vec![]),
            ("launch -- curl --oauth2-bearer whatever".into(), vec![]),
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
            ("GOOGLE_APPLICATION_CREDENTIALS", "/data/sa.json"),
            ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
            ("TLS_KEY", "/certs/key.pem"),
            ("WORK_PWD", "/data/work"),
            ("HF_TOKEN", ""),
            ("COMPASS", "north"),
            ("PASSES", "3"),
            ("KEYS", "a"),
        ];
        of("train --data https://host/a@b --model hf_model --set data.tokenizer=bytes --set data.max_tokens=4", &files).unwrap();
        of("launch -- ./a --max-tokens 4 --tokenizer bytes --key-bits 256 --key id --token --pad-token <pad> --eos-token=</s> --url https://host/a?design=1 --compass north --pwd /data --credentials=/data/sa.json --use-token true --name sk-learn-run eyJ.a", &[]).unwrap();
    }
}
