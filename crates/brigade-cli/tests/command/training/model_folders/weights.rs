//! Weights of a folder that are those of its model, and others.

use serde_json::{Value, json};

use super::folders::{BYTES, with_llama};
use crate::place::Place;
use crate::safetensors::{Tensor, Tensors, read, write};

/// A trained Llama in `base/`, with its weights.
fn with_base() -> (Place, Tensors) {
    let place = with_llama();
    let begun = "--model llama --set model.pretrained=false --nproc-per-node 1 --steps 2 --out base";
    place.succeed(&mut place.train(&format!("{begun} {BYTES}")));
    let tensors = read(&place.path("base/model.safetensors"));
    (place, tensors)
}

#[test]
fn weights_that_are_not_the_models_are_found_before_there_is_a_folder() {
    let (place, tensors) = with_base();
    let file = place.path("base/model.safetensors");
    let refused = |said: &[&str]| {
        let done = place.run(&mut place.train(&format!("--model base {BYTES} --nproc-per-node 2 --out a")));
        assert_eq!(done.code, Some(2), "{}", done.err);
        for part in said.iter().chain(&["model.path (--model) "]) {
            assert!(done.err.contains(part), "{part}: {}", done.err);
        }
        assert!(!place.path("a").exists());
    };
    let with = |change: &dyn Fn(&mut Tensors)| {
        let mut other = tensors.clone();
        change(&mut other);
        write(&file, &other);
    };
    with(&|tensors| {
        for expert in 0..12 {
            tensors.insert(format!("model.layers.0.mlp.experts.{expert:02}.weight"), Tensor::empty());
        }
        tensors.remove("model.norm.weight");
        let wide = &tensors["model.layers.1.mlp.up_proj.weight"];
        tensors.insert("model.layers.1.mlp.up_proj.weight".into(), wide.first_rows(39));
    });
    refused(&[
        "1 of the model's tensors are missing: `model.norm.weight`; ",
        "the model does not use 12: `model.layers.0.mlp.experts.00.weight`, ",
        "experts.09.weight`, and 2 more; ",
        "`model.layers.1.mlp.up_proj.weight` is [39, 16], not [40, 16]",
    ]);
    with(&|tensors| tensors.get_mut("lm_head.weight").unwrap().dtype = "I32".into());
    refused(&["`lm_head.weight` is I32; weights must be F32, F16 or BF16"]);
    // Weights of another family.
    std::fs::copy(place.path("gpt/model.safetensors"), &file).unwrap();
    refused(&[
        "21 of the model's tensors are missing: `model.embed_tokens.weight`, ",
        "and 11 more; the model does not use 28: `h.0.attn.c_attn.bias`, ",
    ]);
    with(&|_| {});
    let whole = place.read("base/model.safetensors");
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    refused(&["model.safetensors is not a complete safetensors file"]);

    // Shards, of which one is damaged or missing.
    std::fs::remove_file(&file).unwrap();
    std::fs::write(place.path("base/pytorch_model.bin"), "").unwrap();
    refused(&[
        "pytorch_model.bin is a Python pickle",
        "python -c 'from transformers import LlamaForCausalLM",
    ]);
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let (first, second): (Tensors, Tensors) =
        tensors.clone().into_iter().partition(|(name, _)| name.contains("layers.0"));
    let of = |tensors: &Tensors, file: &str| -> Vec<_> {
        tensors.keys().map(|name| (name.clone(), json!(file))).collect()
    };
    let map: serde_json::Map<String, Value> =
        of(&first, names[0]).into_iter().chain(of(&second, names[1])).collect();
    let index = json!({ "metadata": {}, "weight_map": map });
    std::fs::write(place.path("base/model.safetensors.index.json"), index.to_string()).unwrap();
    let shard = |index: usize| place.path("base").join(names[index]);
    write(&shard(0), &first);
    refused(&["model-00002-of-00002.safetensors: No such file"]);
    std::fs::write(shard(1), "{}").unwrap();
    refused(&["model-00002-of-00002.safetensors is not a complete safetensors file"]);

    // What older versions wrote besides is no parameter.
    let mut second = second;
    second.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), Tensor::empty());
    write(&shard(1), &second);
    let line = format!("--model base {BYTES} --nproc-per-node 2 --pp 2 --steps 1");
    place.succeed(&mut place.train(&format!("{line} --out a")));
    write(&file, &tensors);
    place.succeed(&mut place.train(&format!("{line} --out b")));
    assert!(place.read("a/model.safetensors") == place.read("b/model.safetensors"));
}

#[test]
fn a_tied_head_with_other_values_is_refused_and_a_copy_is_not() {
    let (place, mut tensors) = with_base();
    let mut config: Value = serde_json::from_str(&place.text("base/config.json")).unwrap();
    config["tie_word_embeddings"] = json!(true);
    std::fs::write(place.path("base/config.json"), config.to_string()).unwrap();
    let line = format!("--model base {BYTES} --nproc-per-node 1 --steps 1 --out a");
    let done = place.run(&mut place.train(&line));
    assert_eq!(done.code, Some(2), "{}", done.err);
    for part in [
        "`lm_head.weight` is tied to `model.embed_tokens.weight`",
        "but their values differ; `tie_word_embeddings` = false in config.json keeps both",
    ] {
        assert!(done.err.contains(part), "{part}: {}", done.err);
    }
    assert!(!place.path("a").exists());
    tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].clone());
    write(&place.path("base/model.safetensors"), &tensors);
    place.succeed(&mut place.train(&line));
}

#[test]
fn buffers_of_an_older_gpt2_are_no_leftovers() {
    let place = with_llama();
    let mut tensors = read(&place.path("gpt/model.safetensors"));
    for layer in 0..2 {
        tensors.insert(format!("h.{layer}.attn.bias"), Tensor::empty());
        tensors.insert(format!("h.{layer}.attn.masked_bias"), Tensor::empty());
    }
    write(&place.path("gpt/model.safetensors"), &tensors);
    place.succeed(&mut place.train(&format!("--model gpt {BYTES} --nproc-per-node 1 --steps 1 --out more")));
    place.succeed(&mut place.brigade("generate --model gpt --tokens 1"));

    tensors.insert("h.2.attn.c_attn.bias".into(), Tensor::empty());
    write(&place.path("gpt/model.safetensors"), &tensors);
    let done = place.run(&mut place.brigade("generate --model gpt --tokens 1"));
    assert!(done.code == Some(2) && done.err.contains("h.2.attn.c_attn.bias"), "{}", done.err);
}

#[test]
fn a_table_of_embeddings_grows_to_its_tokenizer() {
    let (place, mut tensors) = with_base();
    const ROWS: usize = 200;
    for table in ["model.embed_tokens.weight", "lm_head.weight"] {
        tensors.insert(table.into(), tensors[table].first_rows(ROWS));
    }
    write(&place.path("base/model.safetensors"), &tensors);
    let config = place.text("base/config.json");
    std::fs::write(place.path("base/config.json"), config.replace("260", "200")).unwrap();
    let line = format!(
        "--model base {BYTES} --set optimizer.learning_rate=1e-30 --set optimizer.weight_decay=0 --steps 2"
    );
    let refused = |line: &str, said: &str| {
        let done = place.run(&mut place.train(&format!("{line} --nproc-per-node 1 --out a")));
        assert!(done.code == Some(2) && done.err.contains(said), "{}", done.err);
        assert!(!place.path("a").exists());
    };
    refused(&line, "more than the 200 embeddings of the model of model.path (--model)");
    refused(&line, "model.resize_embeddings = true adds the missing ones");
    let line = format!("{line} --set model.resize_embeddings=true");
    refused(&format!("{line} --lora-rank 2"), "cannot add them with adapters");

    let train = |name: &str, flags: &str| {
        place.succeed(&mut place.train(&format!("{line} {flags} --out {name}")));
        place.read(&format!("{name}/model.safetensors"))
    };
    let alone = train("alone", "--nproc-per-node 1 --checkpoint-every 1");
    assert!(train("mesh", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3") == alone);
    let config: Value = serde_json::from_str(&place.text("alone/config.json")).unwrap();
    assert_eq!(config["vocab_size"], json!(257));
    let grown = read(&place.path("alone/model.safetensors"));
    for table in ["model.embed_tokens.weight", "lm_head.weight"] {
        let (before, after) = (tensors[table].floats(), grown[table].floats());
        assert_eq!((grown[table].shape[0], &after[..before.len()]), (257, &before[..]), "{table}");
        for row in after[before.len()..].chunks(16) {
            for (column, value) in row.iter().enumerate() {
                let sum: f64 = before.iter().skip(column).step_by(16).map(|value| f64::from(*value)).sum();
                assert_eq!(*value, (sum / ROWS as f64) as f32, "{table}");
            }
        }
    }
    // A classifier's as well.
    let texts = [("fn a", "code"), ("so it goes", "prose"), ("let b", "code"), ("a b c", "prose")];
    let records =
        texts.map(|(text, label)| format!("{}\n", json!({ "text": text, "label": label }))).concat();
    std::fs::write(place.path("kinds.jsonl"), records).unwrap();
    let kinds = format!("{line} --task classification --data kinds.jsonl --nproc-per-node 2 --zero 3");
    let kinds = format!("train --config tiny.toml {kinds} --set data.validation_fraction=0 --out kinds");
    place.succeed(&mut place.brigade(&kinds));
    let kinds = read(&place.path("kinds/model.safetensors"));
    assert_eq!(
        kinds["model.embed_tokens.weight"].floats(),
        grown["model.embed_tokens.weight"].floats(),
        "the same rows"
    );
    let config: Value = serde_json::from_str(&place.text("kinds/config.json")).unwrap();
    assert_eq!((&config["vocab_size"], &config["id2label"]["1"]), (&json!(257), &json!("prose")));
    // It goes on, and is a model like any other.
    place.succeed(&mut place.train(&format!(
        "{} --nproc-per-node 2 --resume auto --out alone",
        line.replace("--steps 2", "--steps 3")
    )));
    place.succeed(&mut place.brigade("generate --model alone --prompt fn --tokens 2"));
}
