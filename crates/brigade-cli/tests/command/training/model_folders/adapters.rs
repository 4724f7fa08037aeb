//! Training of adapters (LoRA) for the model in a folder.

use std::os::unix::fs::MetadataExt;

use serde_json::json;

use super::folders::{BYTES, with_llama};
use crate::place::Place;

const FILE: &str = "adapter_model.safetensors";

/// A trained Llama in `base/`.
fn with_base() -> Place {
    let place = with_llama();
    let begun = "--model llama --set model.pretrained=false --nproc-per-node 2 --steps 20 --out base";
    place.succeed(&mut place.train(&format!("{begun} {BYTES}")));
    place
}

const LORA: &str = "--model base --lora-rank 4 --set lora.dropout=0.1 --set lora.alpha=16 --set lora.targets=[\"q_proj\",\"v_proj\",\"mlp.*_proj\"] \
                    --set schedule.name=constant --checkpoint-every 5";

#[test]
fn adapters_are_planned_as_they_are_trained() {
    let place = with_llama();
    let plan = |flags: &str| -> serde_json::Value {
        let line = format!(
            "plan --model llama --cluster 1x1xL4 --global-batch-size 8 --sequence-length 32 --json {flags}"
        );
        serde_json::from_str(&place.succeed(&mut place.brigade(&line)).out).unwrap()
    };
    let (whole, adapters) = (plan(""), plan("--lora-rank 4"));
    let counts = adapters["model"]["counts"].as_array().unwrap();
    let sum = |name: &str| counts.iter().map(|count| count[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("frozen"), whole["parameters"].as_u64().unwrap());
    assert!(counts[0]["trained"] == 0 && counts[1]["trained"].as_u64() > Some(0), "{adapters}");
    // Masters and two moments.
    assert_eq!(adapters["plan"]["best"][0]["memory"]["optimizer"].as_u64().unwrap(), 12 * sum("trained"));
    assert!(adapters["commands"][0].as_str().unwrap().contains(" --lora-rank 4 "), "{adapters}");
}

#[test]
fn adapters_are_those_of_one_process_on_a_mesh_and_after_a_resume() {
    let place = with_base();
    let train = |name: &str, line: &str| {
        place.succeed(&mut place.train(&format!("{BYTES} {LORA} {line} --out {name}")));
        place.read(&format!("{name}/{FILE}"))
    };
    let alone = train("alone", "--nproc-per-node 1");
    assert!(train("mesh", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all") == alone);
    train("halves", "--nproc-per-node 2 --zero 1 --steps 5");
    assert!(train("halves", "--nproc-per-node 2 --dp 1 --pp 2 --resume auto") == alone);
    assert!(train("certain", "--nproc-per-node 1 --set lora.dropout=0") != alone);
    // The model's own weights are written once, and linked into each checkpoint.
    let saved =
        std::fs::read_dir(place.path("alone/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let links = |folder: std::path::PathBuf| {
        Some(std::fs::metadata(folder.join("frozen-00000.safetensors")).ok()?.nlink())
    };
    let links: Vec<u64> = saved.filter_map(links).collect();
    assert!(links.len() > 1 && links.iter().all(|count| *count == links.len() as u64), "{links:?}");

    // `transformers` takes a folder with a configuration for that of a whole model.
    assert!(!place.path("alone/model.safetensors").exists() && !place.path("alone/config.json").exists());
    let config: serde_json::Value = serde_json::from_str(&place.text("alone/adapter_config.json")).unwrap();
    assert_eq!(
        (&config["r"], &config["lora_alpha"], &config["lora_dropout"]),
        (&json!(4), &json!(16), &json!(0.1))
    );
    assert_eq!(config["base_model_name_or_path"], json!(place.path("base")));
    assert_eq!(config["target_modules"].as_array().unwrap().len(), 2 * 5);
    place.succeed(&mut place.brigade("checkpoint consolidate alone --overwrite"));
    assert!(place.read(&format!("alone/{FILE}")) == alone);

    let validation = |run: &str| {
        place.metrics(run).iter().rev().find_map(|record| record["validation_loss"].as_f64()).unwrap()
    };
    assert!(validation("alone") < validation("base"), "{} to {}", validation("base"), validation("alone"));

    // They go on from where they were: steps too small for fp32 change nothing.
    let line = format!(
        "--model alone {BYTES} --set optimizer.learning_rate=1e-30 --set lora.dropout=0 --nproc-per-node 2 --steps 1"
    );
    place.succeed(&mut place.train(&format!("{line} --out more")));
    assert!(place.read(&format!("more/{FILE}")) == alone);
    assert_eq!(validation("more"), validation("alone"));
    let again: serde_json::Value = serde_json::from_str(&place.text("more/adapter_config.json")).unwrap();
    assert_eq!(again["base_model_name_or_path"], config["base_model_name_or_path"]);
    assert_eq!((&again["r"], &again["lora_dropout"]), (&json!(4), &json!(0.0)), "what is given counts");

    // `peft` also takes a regular expression of modules, and chooses among layers: the file says which have adapters.
    let mut by_expression = again;
    by_expression["target_modules"] = json!(r"model\.layers\.\d+\.(self_attn|mlp)\..*");
    by_expression["layers_to_transform"] = json!([0, 1]);
    std::fs::write(place.path("more/adapter_config.json"), by_expression.to_string()).unwrap();
    place.succeed(&mut place.train(&format!("{} --out third", line.replace("alone", "more"))));
    assert!(place.read(&format!("third/{FILE}")) == alone);
    let text = |model: &str| {
        let line = format!("generate --model {model} --prompt fn --tokens 20 --temperature 0");
        place.succeed(&mut place.brigade(&line)).out
    };
    assert!(text("alone").starts_with("fn"));
    assert_eq!(text("alone --pp 2"), text("alone"));
    let evaluated = |line: &str| {
        place.succeed(&mut place.brigade(&format!("evaluate --data text --json --model {line}"))).out
    };
    let of_adapters = evaluated("alone --nproc-per-node 1");
    assert_eq!(evaluated("alone --nproc-per-node 4 --pp 2 --zero 3"), of_adapters);
    assert_ne!(evaluated("base"), of_adapters);
    place.succeed(&mut place.brigade("export alone --out merged --merge-lora"));
    assert!(!place.path("merged/adapter_config.json").exists());
    assert_eq!(text("merged"), text("alone"));
    let done = place.succeed(&mut place.brigade("export alone --out copied"));
    assert!(done.out.starts_with("copied: ") && done.out.contains(" files, "), "{}", done.out);
    assert!(place.read(&format!("copied/{FILE}")) == alone);
    place.succeed(&mut place.brigade("export base --out whole"));
    assert!(place.read("whole/model.safetensors") == place.read("base/model.safetensors"));
    for (line, said) in [
        ("base --out new --merge-lora", "base has no adapter_config.json, so there are no adapters to merge"),
        ("alone --out whole", "--out whole has files in it"),
        ("text --out new", "text: it has no config.json; is it the folder of a finished run?"),
    ] {
        let done = place.run(&mut place.brigade(&format!("export {line}")));
        assert!(done.code == Some(2) && done.err.contains(said), "{line}: {}", done.err);
        assert!(!place.path("new").exists());
    }
    // Weights of the model itself replace adapters.
    let line =
        format!("--model base {BYTES} --nproc-per-node 1 --steps 1 --set output.overwrite=true --out more");
    place.succeed(&mut place.train(&line.replace("--set output.overwrite=true", "--overwrite")));
    assert!(place.path("more/model.safetensors").exists());
    assert!(!place.path("more/adapter_config.json").exists() && !place.path("more").join(FILE).exists());
}

/// Its weights lie the other way round in files.
#[test]
fn adapters_of_a_gpt2_are_merged() {
    let place = with_llama();
    let lora = "--model gpt --lora-rank 4 --set schedule.name=constant";
    let line = format!("{BYTES} {lora} --set lora.targets=[\"*\"] --steps 10 --out adapted");
    place.succeed(&mut place.train(&format!("{line} --nproc-per-node 4 --pp 2 --dp 2 --zero 3")));
    let config: serde_json::Value = serde_json::from_str(&place.text("adapted/adapter_config.json")).unwrap();
    assert_eq!(config["fan_in_fan_out"], json!(true));
    place.succeed(&mut place.brigade("export adapted --out merged --merge-lora"));
    let evaluated = |model: &str| -> f64 {
        let line = format!("evaluate --data text --json --model {model} --nproc-per-node 1");
        let found: serde_json::Value =
            serde_json::from_str(&place.succeed(&mut place.brigade(&line)).out).unwrap();
        found["loss"].as_f64().unwrap()
    };
    let (base, adapted, merged) = (evaluated("gpt"), evaluated("adapted"), evaluated("merged"));
    assert!((adapted - merged).abs() < 1e-5 && adapted < base, "{base}, {adapted}, {merged}");
}

#[test]
fn what_cannot_be_adapted_is_said() {
    let place = with_base();
    let refused = |line: &str, said: &[&str]| {
        let done = place.run(&mut place.train(&format!("{line} {BYTES} --nproc-per-node 1 --out a")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(said.iter().all(|part| done.err.contains(part)), "{line}: {}", done.err);
        assert!(!place.path("a").exists(), "{line}");
    };
    let needs = "adapters need a trained model; give one with --model";
    let without = |line: &str| line.replace(BYTES, "");
    let done = place.run(&mut place.train(&without("--lora-rank 4 --nproc-per-node 1 --out a")));
    assert!(done.code == Some(2) && done.err.contains(needs), "{}", done.err);
    refused(
        "--model llama --set model.pretrained=false --lora-rank 4",
        &["lora.rank (--lora-rank) = 4", "adapters need a trained model, but model.pretrained = false"],
    );
    refused(
        "--model base --lora-rank 4 --set lora.targets=[\"q_poj\"]",
        &["lora.targets = [\"q_poj\"] is not possible: it is not a linear layer of the model; there is \
            `q_proj`, "],
    );
    refused("--model base --lora-rank 4 --set lora.dropout=1", &["lora.dropout = 1 is not possible"]);
    refused("--model gpt --lora-rank 4 --set lora.targets=[\"q_proj\"]", &["there is `c_proj`, "]);
    place.succeed(
        &mut place
            .train(&format!("--model base --lora-rank 2 {BYTES} --nproc-per-node 1 --steps 1 --out two")),
    );
    refused(
        "--model two --lora-rank 4",
        &["[lora] with rank = 4", "two have rank = 2", "leave it out to continue"],
    );
    refused("--model two --lora-rank 0", &["[lora] with rank = 0", "two have rank = 2"]);
    let config = place.text("two/adapter_config.json");
    let change = |from: &str, to: &str| {
        std::fs::write(place.path("two/adapter_config.json"), config.replace(from, to)).unwrap();
    };
    change("\"r\": 2", "\"r\": 2, \"use_dora\": true");
    refused("--model two", &["two/adapter_config.json", "`use_dora` = true is not supported"]);
    change("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa_niter_4\"");
    refused("--model two", &["`init_lora_weights` = \"pissa_niter_4\" is not supported"]);
    change("\"r\": 2", "\"r\": 3");
    refused(
        "--model two",
        &[
            "two/adapter_model.safetensors: 8 have shapes that differ from the configuration: `base_model.",
            "lora_A.weight` is [2, 16], not [3, 16]",
        ],
    );
    change("\"v_proj\"", "\"k_proj\"");
    refused("--model two", &["4 of the model's tensors are missing: ", "the model does not use 4: "]);
}
