//! Whether a run can resume with another configuration, and what differs.

use anyhow::bail;
use brigade_sorted::{SortedMap, SortedSet};
use serde_json::Value;

use super::resolve_auto;

/// Settings that must not change when a run resumes: they decide what its state means and which data come next. A name that ends
/// in a dot stands for a whole section.
const FIXED: [&str; 12] = [
    "model.",
    "lora.rank",
    "lora.alpha",
    "lora.targets",
    "lora.rslora",
    "data.tokenizer",
    "data.validation_fraction",
    "data.layout",
    "train.seed",
    "train.global_batch_size",
    "train.sync_every",
    "optimizer.name",
];

/// Settings that do not affect what is computed; changes of them are not listed.
const FREE: [&str; 19] = [
    "output.",
    "profile.",
    "checkpoint.keep",
    "checkpoint.dir",
    "checkpoint.asynchronous",
    "checkpoint.on_failure",
    "checkpoint.timeout_seconds",
    "checkpoint.lease_seconds",
    "comm.synchronous",
    "comm.transport",
    "comm.interfaces",
    "comm.init_timeout_seconds",
    "comm.train_timeout_seconds",
    "comm.host_timeout_seconds",
    "data.sources",
    "data.cache_dir",
    "data.timeout_seconds",
    "train.readers",
    "train.read_ahead",
];

/// Tables whose keys are the user's own, so that one that is missing on a side is a difference. Of others it is a setting of another version.
const OWN_KEYS: [&str; 2] = ["model.config.", "data.columns."];

/// The settings that differ from those of the checkpoint of `step`, one per line, if the run may resume with them. An `auto` is
/// compared by what it stands for, as it is saved in checkpoints, and so may differ on another backend.
///
/// # Errors
/// If the run cannot resume with them; the message names the first such setting.
pub(crate) fn changes(step: u64, before: &Value, config: &str) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for Difference { key, was, now, is_fixed } in differences(before, config)? {
        if is_fixed {
            bail!(
                "{key} = {now} is not possible: the run resumes from step {step}, where it was {was}; start a new run, or \
                leave it unchanged"
            );
        }
        lines.push(format!("{key}: {was} before, now {now}"));
    }
    Ok(lines)
}

/// The settings that differ from earlier ones so that a run with those cannot resume, in words; none if it may.
pub(crate) fn fixed_differences(before: &Value, config: &str) -> anyhow::Result<Vec<String>> {
    let fixed = differences(before, config)?.into_iter().filter(|difference| difference.is_fixed);
    Ok(fixed.map(|Difference { key, was, now, .. }| format!("{key} was {was}, now {now}")).collect())
}

/// A setting that affects what is computed, with its value as text before and now.
struct Difference {
    key: String,
    was: String,
    now: String,
    is_fixed: bool,
}

fn differences(before: &Value, config: &str) -> anyhow::Result<Vec<Difference>> {
    let now = resolve_auto(config.parse()?);
    let (mut old, mut new) = (SortedMap::new(), SortedMap::new());
    flatten(before, String::new(), &mut old);
    flatten(&serde_json::to_value(now)?, String::new(), &mut new);
    // Runs of before this setting made an update in each step.
    old.entry("train.sync_every".into()).or_insert_with(|| 1.into());
    let names_it = |names: &[&str], key: &str| {
        names.iter().any(|name| key == *name || name.ends_with('.') && key.starts_with(name))
    };
    let is_own = |key: &&String| names_it(&OWN_KEYS, key);
    let keys: SortedSet<&String> = new.keys().chain(old.keys().filter(is_own)).collect();
    let mut found = Vec::new();
    for key in keys {
        let (was, now) = (old.get(key), new.get(key));
        if was == now || names_it(&FREE, key) || (was.is_none() && !is_own(&key)) {
            continue;
        }
        let both_files = key == "data.tokenizer" && was.is_some_and(is_path) && now.is_some_and(is_path);
        let is_fixed = names_it(&FIXED, key) && !both_files;
        let shown = |value: Option<&Value>| value.map_or_else(|| "not set".to_owned(), brief);
        found.push(Difference { key: key.clone(), was: shown(was), now: shown(now), is_fixed });
    }
    Ok(found)
}

/// A value as text; of a long list, say of files, the beginning.
fn brief(value: &Value) -> String {
    const MAX_CHARACTERS: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Whether a tokenizer is a file: its path may change, because its content is compared separately.
fn is_path(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text != "bytes" && !text.starts_with("bpe:"))
}

fn flatten(value: &Value, name: String, into: &mut SortedMap<String, Value>) {
    match value {
        Value::Object(inner) => {
            for (key, value) in inner {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(value, name, into);
            }
        }
        value => drop(into.insert(name, value.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(now: &str) -> anyhow::Result<Vec<String>> {
        let before: toml::Table =
            "[model]\nwidth = 64\n[data]\ntokenizer = \"bpe:64\"\n[train]\nsteps = 5\n[output]\nlog_every = 1\n"
                .parse()
                .unwrap();
        changes(5, &serde_json::to_value(before).unwrap(), now)
    }

    #[test]
    fn settings_that_follow_from_the_backend_are_listed_with_it() {
        let auto = |backend: &str| {
            format!(
                "[compute]\nbackend = \"{backend}\"\ndtype = \"auto\"\n[comm]\ncollectives = \"auto\"\ntransport = \"tcp\""
            )
        };
        let change = |before: &str, now: &str| {
            let before = resolve_auto(before.parse().unwrap());
            changes(5, &serde_json::to_value(before).unwrap(), now).unwrap()
        };
        let line = |key: &str, was: &str, is: &str| format!("{key}: \"{was}\" before, now \"{is}\"");
        let (collectives, dtype) = (["host", "nccl"], ["fp32", "bf16"]);
        let between = |was: usize, is: usize| {
            [
                line("comm.collectives", collectives[was], collectives[is]),
                line("compute.backend", ["cpu", "cuda"][was], ["cpu", "cuda"][is]),
                line("compute.dtype", dtype[was], dtype[is]),
            ]
        };
        assert_eq!(change(&auto("cpu"), &auto("cuda")), between(0, 1));
        assert_eq!(change(&auto("cuda"), &auto("cpu")), between(1, 0));
        assert_eq!(change(&auto("cpu"), &auto("wgpu")), [line("compute.backend", "cpu", "wgpu")]);
        assert!(change(&auto("cuda"), &auto("cuda").replace("tcp", "auto")).is_empty());
    }

    #[test]
    fn a_key_of_the_users_own_that_comes_or_goes_is_a_change() {
        let before =
            serde_json::json!({ "model": { "config": { "rope_theta": 500.0 } }, "data": { "columns": {} } });
        let told = |now: &str| changes(5, &before, now).map_err(|error| error.to_string());
        let same = "[model.config]\nrope_theta = 500.0\n";
        assert_eq!(told(same), Ok(Vec::new()));
        let more = told(&format!("{same}attention_dropout = 0.5\n")).unwrap_err();
        assert!(more.starts_with("model.config.attention_dropout = 0.5 is not possible: the run resumes from step 5, where it was not set"), "{more}");
        let less = told("[model.config]\n").unwrap_err();
        assert!(less.starts_with("model.config.rope_theta = not set is not possible"), "{less}");
        let columns = told(&format!("{same}[data.columns]\ntext = \"body\"\n"));
        assert_eq!(columns, Ok(vec!["data.columns.text: not set before, now \"body\"".to_owned()]));
    }

    #[test]
    fn adapters_keep_all_but_their_dropout() {
        let lora = serde_json::json!({ "rank": 4, "alpha": 8.0, "targets": ["q_proj"], "rslora": false, "dropout": 0.0 });
        let told = |now: &str| changes(5, &serde_json::json!({ "lora": lora }), &format!("[lora]\n{now}"));
        for now in ["rank = 8", "alpha = 16.0", "targets = [\"v_proj\"]", "rslora = true"] {
            let refused = told(now).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("lora.{now} is not possible")), "{refused}");
        }
        assert_eq!(told("dropout = 0.1").unwrap(), ["lora.dropout: 0.0 before, now 0.1"]);
    }

    #[test]
    fn changes_are_listed_or_refused_by_name() {
        assert!(compare("[model]\nwidth = 64\n[output]\nlog_every = 7").unwrap().is_empty());
        assert_eq!(compare("[train]\nsteps = 9").unwrap(), ["train.steps: 5 before, now 9"]);
        let before = serde_json::json!({ "checkpoint": { "keep": 3, "keep_best": false } });
        let listed = changes(5, &before, "[checkpoint]\nkeep = 1\nkeep_best = true").unwrap();
        assert_eq!(listed, ["checkpoint.keep_best: false before, now true"]);
        let many = format!("[train]\nsteps = \"{}\"", "9".repeat(1000));
        assert_eq!(compare(&many).unwrap(), [format!("train.steps: 5 before, now \"{}…", "9".repeat(79))]);
        for (now, said) in [
            (
                "[model]\nwidth = 32",
                "model.width = 32 is not possible: the run resumes from step 5, where it was 64",
            ),
            ("[data]\ntokenizer = \"bytes\"", "data.tokenizer = \"bytes\" is not possible"),
        ] {
            let message = compare(now).unwrap_err().to_string();
            assert!(message.starts_with(said), "{message}");
        }
    }
}
