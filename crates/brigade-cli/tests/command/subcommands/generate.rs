//! `brigade generate`

use std::process::Stdio;

use serde_json::Value;

use crate::place::Place;

#[test]
fn a_trained_run_goes_on_with_text() {
    let place = Place::new();
    place.succeed(
        &mut place.train("--nproc-per-node 2 --steps 150 --set optimizer.learning_rate=1e-2 --out a"),
    );
    let text = |line: &str| {
        let done = place.succeed(
            place.brigade("generate --model a").args(["--prompt", "fn number_"]).args(line.split(' ')),
        );
        assert_eq!(done.err, "");
        done.out
    };
    let first = text("--tokens 40 --seed 1");
    assert!(first.starts_with("fn number_") && first.ends_with('\n') && first.len() > 12, "{first:?}");
    assert_eq!(text("--tokens 40 --seed 1"), first);
    assert_ne!(text("--tokens 40 --seed 2 --temperature 2"), text("--tokens 40 --seed 3 --temperature 2"));
    assert_eq!(text("--tokens 0"), "fn number_\n");
    let (whole, stop) = (text("--tokens 14 --temperature 0"), "()");
    let stopped = text(&format!("--tokens 14 --temperature 0 --stop {stop} --stop ~~"));
    assert_eq!(stopped.trim_end_matches('\n'), whole.split(stop).next().unwrap().trim_end_matches('\n'));
    // The best token each time, whatever the seed; the text grows beyond the model's 16 positions.
    let best = text("--tokens 30 --temperature 0 --seed 1");
    assert_eq!(text("--tokens 30 --temperature 0 --seed 2"), best);
    assert!(best.len() > 20 && best.is_ascii(), "{best:?}");
    // In bf16, alone and on stages.
    let short = "--tokens 8 --temperature 0";
    assert_eq!(text(&format!("{short} --dtype fp32")), text(short));
    let rounded = text(&format!("{short} --dtype bf16"));
    assert!(rounded.starts_with("fn number_"), "{rounded:?}");
    let mut stages = place.brigade("generate --model a");
    stages.args(["--prompt", "fn number_"]).args(format!("{short} --dtype bf16 --pp 2").split(' '));
    assert_eq!(place.succeed(&mut stages).out, rounded);

    let done = place.succeed(&mut place.brigade("generate --model a --tokens 5"));
    assert!(!done.out.contains("endoftext"), "{:?}", done.out);
}

/// A file of prompts in each format, a chat, and pipeline stages: each prompt is continued as it is alone.
#[test]
fn prompts_of_a_file_and_chats_are_continued_as_they_are_alone() {
    let place = Place::new();
    place.succeed(
        &mut place.train("--nproc-per-node 2 --steps 150 --set optimizer.learning_rate=1e-2 --out a"),
    );
    let run = |line: &str| place.succeed(&mut place.brigade(&format!("generate --model a {line}"))).out;
    let how = "--tokens 12 --seed 5 --top-p 0.9 --repetition-penalty 1.1";
    let alone = |prompt: &str| run(&format!("--prompt {prompt} {how}"));
    std::fs::write(place.path("prompts.txt"), "fn\n\nnumber_1()\nusize\n").unwrap();
    let [first, second, third] = ["fn", "number_1()", "usize"].map(alone);
    let expected = [first.as_str(), &second, &third].join("\n");
    assert_eq!(run(&format!("--prompts prompts.txt {how}")), expected);
    assert_eq!(run(&format!("--prompts prompts.txt {how} --pp 2")), expected);
    assert_eq!(run(&format!("--prompts prompts.txt {how} --nproc-per-node 4 --transport tcp")), expected);
    // One prompt more than there are pipelines.
    assert_eq!(run(&format!("--prompts prompts.txt {how} --dp 2")), expected);
    assert_eq!(run(&format!("--prompts prompts.txt {how} --dp 2 --pp 2 --transport tcp")), expected);
    // Texts of different lengths, whose pipelines wait for each other.
    let long = "--tokens 60 --temperature 0 --stop ()";
    let expected = run(&format!("--prompts prompts.txt {long}"));
    assert_eq!(run(&format!("--prompts prompts.txt {long} --dp 2 --step-timeout 60")), expected);

    let template = "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
    std::fs::write(place.path("a/chat_template.jinja"), template).unwrap();
    let messages = r#"{"messages": [{"role": "user", "content": "fn"}]}"#;
    let lines = format!("{}\n{messages}\n", r#"{"id": 7, "prompt": "usize"}"#);
    std::fs::write(place.path("prompts.jsonl"), lines).unwrap();
    let said = run(&format!("--prompts prompts.jsonl --format jsonl {how}"));
    let said: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(said[0]["id"], 7);
    assert_eq!(format!("usize{}\n", said[0]["completion"].as_str().unwrap()), third);
    assert_eq!(said[1]["messages"][0]["content"], "fn");
    for line in &said {
        let (tokens, reason) = (line["completion_tokens"].as_u64().unwrap(), line["finish_reason"].as_str());
        assert!(tokens == 12 && reason == Some("length") || tokens <= 12 && reason == Some("stop"), "{line}");
    }

    // A chat with tools has a template of its own.
    std::fs::create_dir(place.path("a/additional_chat_templates")).unwrap();
    let with_tools = "t:{{ messages[0].content }};a:";
    std::fs::write(place.path("a/additional_chat_templates/tool_use.jinja"), with_tools).unwrap();
    let chat = r#"{"messages": [{"role": "user", "content": "fn"}], "tools": []}"#;
    std::fs::write(place.path("tools.jsonl"), format!("{chat}\n{messages}\n")).unwrap();
    std::fs::write(place.path("tools.txt"), "t:fn;a:").unwrap();
    let answered = run(&format!("--prompts tools.jsonl --format jsonl {how}"));
    let answered: Value = serde_json::from_str(answered.lines().next().unwrap()).unwrap();
    let alone = run(&format!("--prompts tools.txt {how}"));
    assert_eq!(format!("t:fn;a:{}\n", answered["completion"].as_str().unwrap()), alone);

    std::fs::write(place.path("said"), "fn\n\nlet\n").unwrap();
    let how = "--top-p 0.9 --repetition-penalty 1.1 --temperature 0 --tokens 4";
    let mut chat = place.brigade(&format!("generate --model a --chat --system no {how}"));
    let done = place.succeed(chat.stdin(std::fs::File::open(place.path("said")).unwrap()));
    let prompt = "s:no;u:fn;a:";
    std::fs::write(place.path("chat.txt"), prompt).unwrap();
    let answer = run(&format!("--prompts chat.txt {how}"));
    assert!(done.out.starts_with(answer.strip_prefix(prompt).unwrap()), "{:?} after {answer:?}", done.out);
    assert!(
        done.out.len() > answer.len() - prompt.len() && done.err.contains("dropped"),
        "{:?}, {}",
        done.out,
        done.err
    );
    // On stages, whose launcher reads the lines.
    for ranks in ["--pp 2", "--nproc-per-node 3 --transport tcp"] {
        let mut chat = place.brigade(&format!("generate --model a --chat --system no {how} {ranks}"));
        let on_ranks = place.succeed(chat.stdin(std::fs::File::open(place.path("said")).unwrap()));
        assert_eq!(on_ranks.out, done.out, "{ranks}");
        assert_eq!(on_ranks.err.matches("dropped").count(), done.err.matches("dropped").count(), "{ranks}");
    }
    // Rank 0 knows when its results cannot be written, or are not read.
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for line in ["--chat", "--prompt fn"] {
        let mut chat = place.brigade(&format!("generate --model a {line} --tokens 4 --pp 2"));
        let input = std::fs::File::open(place.path("said")).unwrap();
        let failed = chat.stdin(input).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(failed.status.code() == Some(1) && said.contains("No space left"), "{line}: {said}");
    }

    // With a limit that counts the prompt, what leaves no token is found before anything is generated, and dropped from a chat.
    std::fs::write(place.path("a/generation_config.json"), "{\"max_length\": 9}").unwrap();
    std::fs::write(place.path("prompts.txt"), "fn\n123456789\n").unwrap();
    let done = place.run(&mut place.brigade("generate --model a --prompts prompts.txt"));
    assert_eq!((done.code, done.out.as_str()), (Some(2), ""), "{}", done.err);
    let said = ["prompts.txt, line 2", "max_length = 9 in generation_config.json leaves no token"];
    assert!(said.iter().all(|part| done.err.contains(part)), "{}", done.err);
    std::fs::write(place.path("said"), "f\ng\n123456789\nh\n").unwrap();
    for ranks in ["", "--pp 2"] {
        let mut chat = place.brigade(&format!("generate --model a --chat --temperature 0 {ranks}"));
        let done = place.succeed(chat.stdin(std::fs::File::open(place.path("said")).unwrap()));
        assert!(done.err.contains("the message has 14 tokens, but max_length = 9"), "{}", done.err);
        assert_eq!(done.err.matches("dropped").count(), 2, "{}", done.err);
    }
}

#[test]
fn what_is_missing_is_named() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let refused = |line: &str, said: &str| {
        let done = place.run(&mut place.brigade(&format!("generate {line}")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    };
    refused("--model ./nowhere", "nowhere: there is no such folder");
    refused("--out text", "text: it has no config.json; is it the folder of a finished run or of a model?");
    refused("--model a --temperature -1", "it must be a number of at least 0");
    refused("--model a --top-p 2", "it must be a number above 0 and at most 1");
    refused("--model a --repetition-penalty 0", "it must be a number above 0, as in 1.1");
    refused("--model a --stop=", "an empty string would end every text at once");
    refused(
        "--model a --prompt 123456789012345678",
        "--prompt has 18 tokens, but the model has 16 positions",
    );
    refused(
        "--model a --chat",
        "there is no chat template, neither `chat_template` in tokenizer_config.json",
    );
    refused("--model a --chat --pp 2", "there is no chat template");
    refused("--model a --chat --chat-template none.jinja", "--chat-template none.jinja: none.jinja");
    std::fs::write(place.path("own.jinja"), "{% for message in messages %}{{ message.content }}{% endfor %}")
        .unwrap();
    place.succeed(&mut place.brigade("generate --model a --chat --chat-template own.jinja"));
    refused(
        "--model a --chat --dp 2",
        "--dp 2 is not possible with --chat, which answers one line at a time",
    );
    refused("--model a --pp 5", "4 blocks");
    refused("--model a --dp 0", "--dp");
    refused("--model a --dp 2 --step-timeout 0", "it must be from 0.1 to 1000000 seconds");
    refused("--model a --step-timeout 5", "--step-timeout 5 is for ranks that wait for each other");
    std::fs::write(place.path("bad.jsonl"), "{\"prompt\": \"x\"}\n\n{\"text\": 1}").unwrap();
    refused(
        "--model a --prompts bad.jsonl",
        "bad.jsonl, line 3: it has neither `prompt` nor `messages`, but `text`",
    );
    refused("--model a --prompts nowhere", "--prompts nowhere: No such file");
    std::fs::rename(place.path("a/tokenizer.json"), place.path("tokenizer.json")).unwrap();
    refused("--model a", "it has no tokenizer.json");
    std::fs::rename(place.path("tokenizer.json"), place.path("a/tokenizer.json")).unwrap();
    refused("--prompt x", "--model <MODEL>");
    let config = place.text("a/config.json");
    std::fs::write(place.path("a/config.json"), config.replace("\"n_embd\": 16", "\"n_embd\": 32")).unwrap();
    refused("--model a", "`wte.weight` is [257, 16], not [257, 32]");
    std::fs::write(place.path("a/model.safetensors"), "short").unwrap();
    refused("--model a", "is not a complete safetensors file");
    std::fs::remove_file(place.path("a/model.safetensors")).unwrap();
    refused("--model a", "a run writes them when it ends; brigade checkpoint consolidate makes them");
}

/// Burn's default device is the first GPU in a build for GPUs, on every rank, and fails where there is none. It panics where it is
/// asked for while the environment names one that there is not.
#[test]
fn nothing_is_made_on_a_default_device() {
    const DEFAULT: (&str, &str) = ("BURN_DEVICE", "none");
    let place = Place::new();
    let line = "--nproc-per-node 2 --zero 3 --checkpoint-every 2 --out a";
    place.succeed(place.train(&format!("{line} --steps 4")).env(DEFAULT.0, DEFAULT.1));
    place.succeed(place.train(&format!("{line} --steps 6 --resume auto")).env(DEFAULT.0, DEFAULT.1));
    place.succeed(place.brigade("generate --model a --tokens 5").env(DEFAULT.0, DEFAULT.1));
}

#[test]
fn a_tokenizer_of_another_run_is_refused() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --set data.tokenizer=bpe:300 --out b"));
    std::fs::copy(place.path("b/tokenizer.json"), place.path("a/tokenizer.json")).unwrap();
    let done = place.run(&mut place.brigade("generate --model a"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    let told = ["a/tokenizer.json has ", " token ids, but the model of ", "a/config.json has 257"];
    assert!(told.iter().all(|part| done.err.contains(part)), "{}", done.err);
}

/// As the image token of Gemma 3 1B.
#[test]
fn an_added_token_without_an_embedding_is_refused_only_where_a_text_has_it() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let mut tokenizer: Value = serde_json::from_str(&place.text("a/tokenizer.json")).unwrap();
    let mut added = tokenizer["added_tokens"][0].clone();
    (added["id"], added["content"]) = (257.into(), "<image>".into());
    tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    std::fs::write(place.path("a/tokenizer.json"), tokenizer.to_string()).unwrap();
    let note = "the tokenizer has 258 ids, but the model has 257 embeddings";
    let missing = "the text has the token <image> with id 257, but the model has 257 embeddings";

    let done = place.succeed(&mut place.brigade("generate --model a --prompt fn --tokens 5"));
    assert!(done.err.contains(note), "{}", done.err);
    let done = place.run(&mut place.brigade("generate --model a --prompt <image> --tokens 5"));
    assert!(done.code == Some(2) && done.err.contains(missing), "{}", done.err);

    let evaluate = |text: &str| {
        std::fs::write(place.path("new.txt"), text.repeat(50)).unwrap();
        place.run(&mut place.brigade("evaluate --model a --data new.txt --nproc-per-node 1"))
    };
    let done = evaluate("fn main() {}");
    assert!(done.code == Some(0) && done.err.contains(note), "{}", done.err);
    let done = evaluate("an <image> of it");
    assert!(done.code == Some(2) && done.err.contains(missing), "{}", done.err);
}
