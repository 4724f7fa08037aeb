//! The commands that the book and the README show.
//!
//! Each page's commands run in order in one folder: as they are where a tiny run can stand for what the page trains, with
//! `--dry-run` where the model is large, and with `--help`, which still refuses flags that do not exist, where a cluster
//! or a model would be needed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::place::Place;

/// Makes any run tiny. The flags of the page win over these settings.
const TINY: &str = "--set model.sequence_length=16 --set model.width=16 --set model.layers=2 --set model.heads=2 \
                    --set data.tokenizer=bytes --set train.steps=60 --set train.micro_batch_size=2 \
                    --set train.global_batch_size=8 --set train.validation_samples=6 --set schedule.warmup_steps=2";

/// Pages whose runs are trained.
const TRAINED: [&str; 5] =
    ["getting-started.md", "checkpoints-and-failures.md", "data.md", "five-questions.md", "reports.md"];

/// A command of `brigade`, as words.
type Line = Vec<String>;

/// How a command is tried.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    AsItIs,
    Tiny,
    DryRun,
    /// Files are written, and nothing is submitted.
    Render,
    Help,
}

/// The commands of `brigade` in a page's blocks of shell commands.
fn commands(page: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let mut in_block = false;
    let joined = page.replace("\\\n", " ");
    for line in joined.lines() {
        match line.trim_end() {
            "```sh" => in_block = true,
            "```" => in_block = false,
            line if in_block => found.extend(command(line)),
            _ => {}
        }
    }
    found
}

/// The words after `brigade`, if that is what the line starts.
fn command(line: &str) -> Option<Line> {
    let line = line.split(" #").next()?.trim().trim_end_matches('&');
    let line = line.strip_prefix("target/release/").unwrap_or(line);
    let rest = match line.strip_prefix("cargo xtask train") {
        Some(flags) => format!("train{flags}"),
        None => line.strip_prefix("brigade ")?.to_owned(),
    };
    // `--prompt "fn main"` is one word.
    let mut words = vec![String::new()];
    let mut quote = None;
    for letter in rest.trim().chars() {
        match letter {
            '\'' | '"' if quote.is_none() => quote = Some(letter),
            letter if quote == Some(letter) => quote = None,
            ' ' if quote.is_none() => words.push(String::new()),
            letter => words.last_mut()?.push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    Some(words)
}

fn way(page: &str, words: &Line) -> Way {
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let needs_a_cluster = has("--rdzv-endpoint") && words[0] != "submit"
        || has("--coordinator")
        || words[0] == "launch"
        || has("cuda")
        || has("wgpu");
    // A model or a cluster that the bench makes.
    let input =
        |pair: &[String]| ["--model", "--cluster"].contains(&&*pair[0]) && pair[1].starts_with("runs/bench/");
    let needs_a_model = page == "models.md" || words.windows(2).any(input);
    match words[0].as_str() {
        _ if needs_a_cluster || needs_a_model => Way::Help,
        "scaling" if has("--measure") => Way::Tiny,
        "submit" if has("--dry-run") => Way::Help,
        "submit" => Way::Render,
        // It would never end, or needs the folder of a run.
        "watch" | "status" | "coordinate" => Way::Help,
        "train" if has("--dry-run") || has("--resume") && !has("auto") => Way::AsItIs,
        "train" if TRAINED.contains(&page) && !has("configs/gpt-13m.toml") => Way::Tiny,
        "train" => Way::DryRun,
        _ => Way::AsItIs,
    }
}

/// Files and folders that the pages take for granted.
fn place() -> Place {
    let place = Place::new();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::os::unix::fs::symlink(workspace.join("configs"), place.path("configs")).unwrap();
    // As many samples as the largest cluster of the pages needs.
    let mine = place.text("tiny.toml").replace("global_batch_size = 8", "global_batch_size = 64");
    fs::write(place.path("my.toml"), mine).unwrap();
    let text = "A line of text to train on.\n".repeat(200);
    for file in ["corpus/a.txt", "books/a.txt", "shards/a.txt", "path/to/your/text/a.txt"] {
        let path = place.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &text).unwrap();
    }
    fs::write(place.path("notes.jsonl"), "{\"text\": \"A note.\"}\n".repeat(200)).unwrap();
    fs::create_dir(place.path("Llama-2-7b")).unwrap();
    let llama = r#"{ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }"#;
    fs::write(place.path("Llama-2-7b/config.json"), llama).unwrap();
    let cluster = "kind = \"V100-16GB\"\nnodes = 4\ndevices_per_node = 4\ninter_node_gb_per_second = 1.1\n";
    fs::write(place.path("cluster.toml"), cluster).unwrap();
    let record = "{\"prompt\": \"A question?\", \"completion\": \"An answer.\"}\n";
    fs::write(place.path("chats.jsonl"), record.repeat(200)).unwrap();
    place
}

fn pages() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![("README.md".to_owned(), root.join("README.md"))];
    for entry in fs::read_dir(root.join("docs/book/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "md") {
            continue;
        }
        pages.push((path.file_name().unwrap().to_str().unwrap().to_owned(), path));
    }
    pages.sort();
    pages
}

#[test]
fn commands_of_the_book_work() {
    let mut count = 0;
    for (page, path) in pages() {
        let lines = commands(&fs::read_to_string(path).unwrap());
        if lines.is_empty() {
            continue;
        }
        let place = place();
        for words in lines {
            let way = way(&page, &words);
            let mut command = place.brigade("");
            match way {
                Way::AsItIs => command.args(&words),
                Way::Tiny => {
                    let has_data = words.iter().any(|word| word == "--data");
                    let data: &[&str] = if has_data { &[] } else { &["--data", "text"] };
                    command.args(&words).args(TINY.split_whitespace()).args(data)
                }
                Way::DryRun => command.args(&words).arg("--dry-run"),
                Way::Render => command.arg(&words[0]).args(["--render", "rendered"]).args(&words[1..]),
                // Before the program that `brigade launch` starts.
                Way::Help => command.args(words.iter().take_while(|word| *word != "--")).arg("--help"),
            };
            let done = place.run(&mut command);
            assert_eq!(done.code, Some(0), "{page}: `brigade {}` ({way:?}): {}", words.join(" "), done.err);
            count += 1;
        }
    }
    assert!(count > 20, "{count} commands found");
}

#[test]
fn commands_are_found_in_blocks_of_the_book() {
    let page = "brigade not this\n```sh\nbrigade plan --x 'a b' \\\n  --y   # says so\ncd runs\ntarget/release/brigade generate --prompt \"fn main\"\n```\n";
    let expected: [&[&str]; 2] = [&["plan", "--x", "a b", "--y"], &["generate", "--prompt", "fn main"]];
    assert_eq!(commands(page), expected);
    assert_eq!(way("data.md", &commands("```sh\ncargo xtask train\n```")[0]), Way::Tiny);
    assert_eq!(way("clusters.md", &vec!["launch".into()]), Way::Help);
}
