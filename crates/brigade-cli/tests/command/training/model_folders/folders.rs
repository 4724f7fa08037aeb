//! Training that goes on from the folder of a model.

use serde_json::json;

use crate::place::Place;
use crate::processes::limited;

/// A small Llama without weights in `llama/`, with a tokenizer whose tokens are bytes.
pub(super) fn with_llama() -> Place {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out gpt"));
    std::fs::create_dir(place.path("llama")).unwrap();
    std::fs::copy(place.path("gpt/tokenizer.json"), place.path("llama/tokenizer.json")).unwrap();
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 260, "hidden_size": 16,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 32, "torch_dtype": "float32",
    });
    std::fs::write(place.path("llama/config.json"), config.to_string()).unwrap();
    std::fs::write(place.path("llama/tokenizer_config.json"), "{\"eos_token\": \"<|endoftext|>\"}").unwrap();
    place
}

pub(super) const BYTES: &str = "--set data.tokenizer=llama/tokenizer.json --set optimizer.learning_rate=1e-2";

#[test]
fn a_folder_of_a_model_goes_in_and_one_comes_out() {
    let place = with_llama();
    let begun = format!(
        "--model llama --set model.pretrained=false {BYTES} --nproc-per-node 2 --steps 20 --out begun"
    );
    std::fs::write(place.path("llama/tokenizer.model"), "for llama.cpp").unwrap();
    place.succeed(&mut place.train(&begun));
    assert_eq!(place.text("begun/tokenizer.model"), "for llama.cpp");
    let config: serde_json::Value = serde_json::from_str(&place.text("begun/config.json")).unwrap();
    assert_eq!((&config["model_type"], &config["num_key_value_heads"]), (&json!("llama"), &json!(2)));
    assert_eq!(place.text("begun/tokenizer_config.json"), place.text("llama/tokenizer_config.json"));

    let train = |name: &str, line: &str| {
        place.succeed(&mut place.train(&format!("--model begun {BYTES} {line} --out {name}")));
        place.read(&format!("{name}/model.safetensors"))
    };
    let alone = train("alone", "--nproc-per-node 1");
    assert!(train("mesh", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all") == alone);
    let over = place
        .run(&mut place.train(&format!("--model begun {BYTES} --nproc-per-node 1 --overwrite --out begun")));
    assert_eq!(over.code, Some(2), "{}", over.err);
    assert!(over.err.contains("has the model of model.path (--model)"), "{}", over.err);
    let loss = |run: &str, step: usize| place.metrics(run)[step]["loss"].as_f64().unwrap();
    let (new, last, next) = (loss("begun", 0), loss("begun", 19), loss("alone", 0));
    assert!(next < last + 0.3 && next < new - 1.0, "from {new} to {last}, then {next}");

    let said =
        place.succeed(&mut place.brigade("generate --model alone --prompt fn --tokens 5 --temperature 0"));
    assert!(said.out.starts_with("fn"), "{:?}", said.out);
    // A run of the built-in model is such a folder, too.
    place.succeed(&mut place.train(&format!("--model gpt {BYTES} --nproc-per-node 1 --steps 1 --out more")));
}

/// A Llama from nothing, as a setting of `[model]`.
const NEW_LLAMA: &str = "config = { model_type = 'llama', hidden_size = 16, intermediate_size = 40, num_hidden_layers = 2, num_attention_heads = 4, \
                         num_key_value_heads = 2, max_position_embeddings = 32, rope_theta = 500000.0 }";

#[test]
fn a_family_in_the_configuration_begins_from_nothing() {
    let (place, usual) = (Place::new(), Place::new());
    let settings = place.text("tiny.toml").replace("heads = 2 }", &format!("heads = 2, {NEW_LLAMA} }}"));
    std::fs::write(place.path("tiny.toml"), settings).unwrap();
    let json = |file: &str| serde_json::from_str::<serde_json::Value>(&place.text(file)).unwrap();
    let train = |name: &str, line: &str| {
        place.succeed(&mut place.train(&format!("{line} --out {name}")));
        place.read(&format!("{name}/model.safetensors"))
    };
    let alone = train("alone", "--nproc-per-node 1");
    assert!(train("mesh", "--nproc-per-node 4 --pp 2 --dp 2 --zero 3 --recompute all") == alone);
    let config = json("alone/config.json");
    assert_eq!((&config["model_type"], &config["rope_theta"]), (&json!("llama"), &json!(500_000.0)));
    // What follows from the tokenizer: 256 bytes, and the end of a text.
    assert_eq!((&config["vocab_size"], &config["eos_token_id"]), (&json!(257), &json!(256)));
    let generation = json("alone/generation_config.json");
    assert_eq!((&generation["bos_token_id"], &generation["eos_token_id"]), (&json!(256), &json!(256)));
    let tokenizer = json("alone/tokenizer_config.json");
    assert_eq!(tokenizer["eos_token"], "<|endoftext|>");
    assert_eq!(tokenizer["tokenizer_class"], "PreTrainedTokenizerFast");

    place.succeed(&mut place.brigade("generate --model alone --prompt fn --tokens 5"));
    let small = "--set model.sequence_length=16 --micro-batch-size 2 --global-batch-size 8 --set train.validation_samples=6";
    let on = format!("train --model alone --data text {small} --steps 2 --nproc-per-node 1 --out on");
    place.succeed(&mut place.brigade(&on));
    let plan = "plan --model alone/config.toml --cluster 1x2xL4 --global-batch-size 8 --sequence-length 16";
    assert!(place.succeed(&mut place.brigade(plan)).out.contains("which fit"));
    // What is planned can be trained from a file.
    let plan = "plan --model alone --cluster 1x2xCPU --global-batch-size 8 --sequence-length 16 --toml";
    let planned = place.succeed(&mut place.brigade(plan)).out;
    std::fs::write(place.path("planned.toml"), planned).unwrap();
    let line = "train --model alone --data text --config planned.toml --set train.validation_samples=6 --steps 1 --nproc-per-node 2 --out planned";
    place.succeed(&mut place.brigade(line));
    let refused = |place: &Place, line: &str, says: &str| {
        let done = place.run(&mut place.train(line));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(says), "{line}: {}", done.err);
    };
    for (line, says) in [
        ("--model alone", "model.config describes a new model, but model.path (--model)"),
        ("--task classification", "for existing models"),
        ("--lora-rank 2", "adapters need a trained model"),
        ("--set model.config.vocab_size=9", "more than model.config.vocab_size = 9"),
        ("--set model.config.heads=2", "heads"),
    ] {
        refused(&place, line, says);
    }
    refused(&usual, "--set model.config.hidden_size=16", "model_type");
}

#[test]
fn what_is_wrong_with_a_folder_is_said() {
    let place = with_llama();
    let refused = |line: &str, said: &[&str]| {
        let done = place.run(&mut place.train(&format!("{line} --nproc-per-node 1 --out a")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(said.iter().all(|part| done.err.contains(part)), "{line}: {}", done.err);
        assert!(!place.path("a").exists(), "{line}");
    };
    refused(
        "--model nowhere",
        &[
            "model.path (--model) ",
            "nowhere: there is no such folder, and a model on the hub is given as organization/name",
        ],
    );
    refused(
        "--model bert-base-uncased",
        &["there is no such folder", "such as google-bert/bert-base-uncased"],
    );
    refused(
        "--model some/model@v1",
        &["--model some/model@v1: it is neither a folder", "HF_HUB_OFFLINE forbids"],
    );
    refused("--model llama", &["data.tokenizer = bytes does not match", "tokenizer.json"]);
    refused(
        &format!("--model llama {BYTES}"),
        &["model.path (--model) ", "model.safetensors", "model.pretrained = false starts without them"],
    );
    let line = format!("--model llama {BYTES} --set model.pretrained=false");
    refused(
        &format!("{line} --set model.sequence_length=64"),
        &["model.sequence_length = 64", "32 positions"],
    );
    let config = place.text("llama/config.json");
    let change = |to: &str| {
        std::fs::write(place.path("llama/config.json"), config.replacen('{', &format!("{{{to},"), 1))
            .unwrap();
    };
    change("\"num_experts\": 8");
    refused(&line, &["`num_experts` = 8", "llama/config.json"]);
    std::fs::write(place.path("llama/config.json"), config.replace("260", "200")).unwrap();
    for line in [line.clone(), format!("{line} --dry-run")] {
        refused(&line, &["257 ids, more than the 200 embeddings"]);
    }
    std::fs::write(place.path("llama/config.json"), config.replace("\"llama\"", "\"mamba\"")).unwrap();
    refused(&line, &["`mamba`", "supported are `gpt2`, `llama`"]);
}

/// Its configuration and tokenizer are in the cache; its weights are not, and the hub must not be asked.
#[test]
fn a_dry_run_takes_a_model_of_the_hub_without_its_weights() {
    let place = with_llama();
    let commit = "a".repeat(40);
    for name in ["models--org--model", "models--openai-community--gpt2"] {
        let model = place.path(&format!("hub/hub/{name}"));
        let snapshot = model.join("snapshots").join(&commit);
        std::fs::create_dir_all(model.join("refs")).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::write(model.join("refs/main"), &commit).unwrap();
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(place.path(&format!("llama/{name}")), snapshot.join(name)).unwrap();
        }
    }
    let small = "--set model.sequence_length=16 --micro-batch-size 2 --global-batch-size 8";
    let line = format!("train --model org/model --data text {small} --nproc-per-node 1 --out a");
    place.succeed(&mut place.brigade(&format!("{line} --dry-run")));
    let done = place.run(&mut place.brigade(&line));
    assert!(done.code == Some(2) && done.err.contains("`model.safetensors`"), "{}", done.err);
    // Of adapters for it as well, which may know it by its name of old.
    std::fs::create_dir(place.path("adapted")).unwrap();
    for base in ["gpt2", "org/model"] {
        let adapters = json!({
            "peft_type": "LORA", "base_model_name_or_path": base, "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        });
        std::fs::write(place.path("adapted/adapter_config.json"), adapters.to_string()).unwrap();
        let adapted = line.replace("org/model", "adapted");
        place.succeed(&mut place.brigade(&format!("{adapted} --dry-run")));
    }
    // Which are on the hub themselves.
    let adapters = place.path("hub/hub/models--org--adapted");
    let snapshot = adapters.join("snapshots").join(&commit);
    std::fs::create_dir_all(adapters.join("refs")).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(adapters.join("refs/main"), &commit).unwrap();
    std::fs::copy(place.path("adapted/adapter_config.json"), snapshot.join("adapter_config.json")).unwrap();
    let adapted = line.replace("org/model", "org/adapted");
    let done = place.succeed(&mut place.brigade(&format!("{adapted} --dry-run")));
    for setting in ["rank = 2", "alpha = 4.0", "learning_rate = 0.0002"] {
        assert!(done.out.contains(setting), "{setting} in {}", done.out);
    }
    let done = place.run(&mut place.brigade(&adapted));
    assert!(done.code == Some(2) && done.err.contains("`adapter_model.safetensors`"), "{}", done.err);
}

/// A Llama of 8 and one of 70 billion parameters, in 1.5 GiB of addresses. Shapes: the `config.json` of Llama 3.1.
#[cfg(target_os = "linux")]
#[test]
fn a_dry_run_needs_no_weights_and_none_of_the_models_memory() {
    let place = Place::new();
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    for (ranks, [width, inner, layers, heads], parameters) in
        [(8, [4096, 14_336, 32, 32], "8030261248"), (64, [8192, 28_672, 80, 64], "70553706496")]
    {
        let config = json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": width,
            "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rope_theta": 500_000.0,
            "rope_scaling": scaling, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        });
        std::fs::create_dir(place.path(parameters)).unwrap();
        std::fs::write(place.path(&format!("{parameters}/config.json")), config.to_string()).unwrap();
        let line = format!(
            "train --model {parameters} --zero 3 --nproc-per-node {ranks} --micro-batch-size 1 --global-batch-size {ranks} \
             --set model.sequence_length=2048 --dry-run"
        );
        let done = place.succeed(&mut limited(&place.brigade(&line), 1_500_000));
        let all = done.out.lines().find(|line| line.starts_with("# all ")).unwrap_or_default();
        assert!(all.contains(&format!(" {parameters} parameters")), "{all}");
        assert!(!done.out.contains("unknown") && done.out.contains("saved activations "), "{}", done.out);
        assert!(done.out.contains(&format!("on {ranks} ranks of up to ")), "{}", done.out);
    }
}
