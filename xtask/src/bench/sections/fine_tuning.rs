//! Fine-tuning a Llama and a BERT, beside `transformers` and `peft`.

use anyhow::{Context, Result};

use crate::bench::page::{Section, Table};
use crate::bench::runner::{FOLDER, Kind, Runner, STEPS, Side, WARM_UP, results};

pub const TITLE: &str = "Fine-tuning a Llama and a BERT";

/// Over `transformers` in its eager mode, and over `peft`.
const GOAL: f64 = 1.6;
/// The run whose folder all others begin from.
const MODEL: &str = "llama";
/// 14 million parameters.
const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024,
  "num_hidden_layers": 7, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 2048,
  "tie_word_embeddings": false
}"#;

/// The run whose folder those of the BERT begin from.
const BERT: &str = "bert";
/// 23 million parameters, half of them in its vocabulary.
const BERT_CONFIG: &str = r#"{
  "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "intermediate_size": 1536,
  "num_hidden_layers": 6, "num_attention_heads": 12, "max_position_embeddings": 512, "pad_token_id": 0
}"#;
const BERT_VOCABULARY: usize = 30522;
/// Of each row.
const LENGTH: usize = 256;

/// The same work on both sides.
struct Pair {
    measure: &'static str,
    brigade: Side,
    peer: Side,
    goal: Option<f64>,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    make_model(runner)?;
    make_bert(runner)?;
    let mut pairs = [
        pair("llama-1", "1 process of one thread", 1, "", "", Some(GOAL)),
        pair("llama-2", "2 ranks of one thread", 2, "", "", Some(GOAL)),
        pair("llama-lora", "2 ranks, LoRA of rank 16", 2, "--lora-rank 16", "--lora-rank 16", Some(GOAL)),
        pair("llama-bf16", "2 ranks, bf16", 2, "--set compute.dtype=bf16", "--bf16", None),
        classifiers("bert-1", "BERT, 1 process of one thread", 1),
        classifiers("bert-2", "BERT, 2 ranks of one thread", 2),
    ];
    let plain = format!("{} --set compute.fused=false", train("llama-plain", MODEL, 1, STEPS));
    let mut plain = Side::brigade("llama-plain", plain);
    let texts = write_texts()?;
    let [mut packed, mut padded] =
        [("llama-packed", "bfd"), ("llama-padded", "documents")].map(|(name, layout)| {
            let line = train(name, MODEL, 1, STEPS);
            Side::brigade(
                name,
                format!("{line} --data {texts} --set data.layout={layout} --set data.pad_to_multiple=8"),
            )
        });
    let mut notes = Vec::new();
    for run in 1..=runner.runs {
        for Pair { brigade, peer, .. } in &mut pairs {
            brigade.run(runner, run, &mut notes)?;
            peer.run(runner, run, &mut notes)?;
        }
        plain.run(runner, run, &mut notes)?;
        packed.run(runner, run, &mut notes)?;
        padded.run(runner, run, &mut notes)?;
    }
    let row = |pair: &Pair| pair.brigade.beside(&pair.peer, runner, pair.measure, pair.goal);
    let [fused, ..] = &pairs;
    let own = fused.brigade.beside(&plain, runner, "1 process of one thread", None);
    let rows = packed.beside(&padded, runner, "1 process of one thread", None);
    let sides = pairs.iter().flat_map(|pair| [&pair.brigade, &pair.peer]).chain([&plain, &packed, &padded]);
    Ok(Section {
        title: TITLE,
        text: "A Llama of 14 million parameters (7 layers, width 384, grouped queries), 8 rows of 256 tokens per step, \
               against `transformers` with PyTorch's DistributedDataParallel, and LoRA of queries and values against \
               `peft`; and a BERT of 23 million parameters (6 layers, width 384) that classifies 8 texts of 256 tokens \
               per step. In bf16 the peer runs under `torch.autocast`. The second table has the same model on Burn's own \
               operations. The third has texts of 20 to 250 tokens, with as many whole texts as fit in a row (`bfd`) \
               against one per row, padded to the longest of a micro-batch. It only counts real tokens: padding is \
               computed but not counted."
            .into(),
        commands: sides.map(|side| side.line.clone()).collect(),
        tables: vec![
            Table::beside("transformers, peft", pairs.iter().map(row).collect()),
            Table::beside("without fused operations", vec![own]),
            Table::beside("padded rows", vec![rows]),
        ],
        notes,
    })
}

/// A folder that both sides load: trained for one step from new weights.
fn make_model(runner: &Runner) -> Result<()> {
    let folder = results("llama-config");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let tokenizer = results(WARM_UP).join("tokenizer.json");
    std::fs::write(folder.join("config.json"), CONFIG)
        .and_then(|()| std::fs::copy(&tokenizer, folder.join("tokenizer.json")))
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    let line = format!("{} --set model.pretrained=false", train(MODEL, "llama-config", 1, 1));
    runner.start_training(MODEL, &line)?.finish()?.succeeded()
}

/// The same of a classifier: a vocabulary of characters, filled up to that of BERT, and texts with labels.
fn make_bert(runner: &Runner) -> Result<()> {
    let folder = results("bert-config");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let characters = ('!'..='~').flat_map(|character| [character.to_string(), format!("##{character}")]);
    let unused = (0..).map(|number| format!("[unused{number}]"));
    let names = special.map(str::to_owned).into_iter().chain(characters).chain(unused).take(BERT_VOCABULARY);
    let vocabulary: serde_json::Map<_, _> = names.zip(0..).map(|(name, id)| (name, id.into())).collect();
    let added = special.iter().zip(0..).map(|(name, id)| {
        serde_json::json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true
        })
    });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary
        }
    });
    let settings = serde_json::json!({ "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]" });
    // Longer than a row, so that no side pads.
    let review = |number: usize| {
        let sentences = (0..40).map(|at| format!("The sum of {number} and {at} is {}. ", number + at));
        let label = if number.is_multiple_of(2) { "even" } else { "odd" };
        format!("{}\n", serde_json::json!({ "text": sentences.collect::<String>(), "label": label }))
    };
    let files = [
        (folder.join("config.json"), BERT_CONFIG.to_owned()),
        (folder.join("tokenizer.json"), tokenizer.to_string()),
        (folder.join("tokenizer_config.json"), settings.to_string()),
        (results("reviews.jsonl"), (0..400).map(review).collect()),
    ];
    for (path, content) in files {
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let line = format!("{} --set model.pretrained=false", classify(BERT, "bert-config", 1, 1));
    runner.start_training(BERT, &line)?.finish()?.succeeded()
}

/// Texts of many lengths, one on a line, and where they are, relative to the workspace's root.
fn write_texts() -> Result<String> {
    let text = |number: usize| {
        let sentences =
            (0..1 + number * 7 % 23).map(|at| format!("The sum of {number} and {at} is {}. ", number + at));
        format!("{}\n", serde_json::json!({ "text": sentences.collect::<String>() }))
    };
    let path = results("texts.jsonl");
    std::fs::write(&path, (0..4000).map(text).collect::<String>())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("{FOLDER}/texts.jsonl"))
}

fn pair(
    name: &'static str,
    measure: &'static str,
    ranks: usize,
    flags: &str,
    peer_flags: &str,
    goal: Option<f64>,
) -> Pair {
    let brigade = format!("{} {flags}", train(name, MODEL, ranks, STEPS));
    let peer = peer_line(MODEL, ranks, peer_flags);
    Pair {
        measure,
        brigade: Side::brigade(name, brigade.trim_end().to_owned()),
        peer: Side::peer(Kind::Transformers, format!("transformers-{name}"), peer),
        goal,
    }
}

/// The BERT on both sides.
fn classifiers(name: &'static str, measure: &'static str, ranks: usize) -> Pair {
    let brigade = Side::brigade(name, classify(name, BERT, ranks, STEPS)).in_texts_of(LENGTH);
    let peer = peer_line(BERT, ranks, "--task classification");
    let peer = Side::peer(Kind::Transformers, format!("transformers-{name}"), peer);
    Pair { measure, brigade, peer, goal: Some(GOAL) }
}

fn classify(name: &str, model: &str, ranks: usize, steps: usize) -> String {
    format!("{} --task classification --data {FOLDER}/reviews.jsonl", train(name, model, ranks, steps))
}

/// Training of a model in the folder of results by `transformers`.
fn peer_line(model: &str, ranks: usize, flags: &str) -> String {
    let python = match ranks {
        1 => "python".to_owned(),
        _ => format!("torchrun --standalone --nproc-per-node {ranks}"),
    };
    let line = format!(
        "{python} benches/peers/transformers_bench.py --model {FOLDER}/{model} --steps {STEPS} {flags}"
    );
    line.trim_end().to_owned()
}

/// Training of a model in the folder of results.
fn train(name: &str, model: &str, ranks: usize, steps: usize) -> String {
    format!(
        "brigade train --model {FOLDER}/{model} --standalone --nproc-per-node {ranks} --dp {ranks} --global-batch-size 8 \
         --micro-batch-size {} --steps {steps} --set model.sequence_length={LENGTH} --set train.validation_samples=8 \
         --checkpoint-every 0 --quiet --out {FOLDER}/{name}",
        8 / ranks
    )
}
