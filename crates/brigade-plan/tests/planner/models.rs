//! Descriptions of models.

use std::path::Path;

use brigade_hf::{Config, Task};
use brigade_plan::model::{ModelShape, is_only_for_plans};
use brigade_plan::report::render;
use brigade_plan::search::{Axes, Workload, plan};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn parameters_of_config_json_are_those_of_its_tensors() {
    let folder = root().join("crates/brigade-hf/tests/fixtures/configs");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let cases: serde_json::Value = serde_json::from_str(&text).unwrap();
        let config = Config::from_fields("config.json", cases["defaults"].as_object().unwrap()).unwrap();
        let task = match &config {
            Config::Decoder(_) => Task::CausalLanguageModel,
            Config::Encoder(_) => Task::MaskedLanguageModel,
        };
        let shape = ModelShape::of_config("", &config);
        assert_eq!(shape.parameters(), config.parameters(task), "{}", path.display());
        assert!(shape.layer_parameters > 0 && shape.embedding_parameters > 0);
        // A classifier has another head, and logits of texts alone.
        let task = Task::SequenceClassification;
        let classifier = ModelShape::of_task("", &config, task);
        assert_eq!(classifier.parameters(), config.parameters(task), "{}", path.display());
        assert_eq!(classifier.layer_parameters, shape.layer_parameters);
        assert_eq!(classifier.logits(3, 128), 3 * classifier.labels.unwrap() as u64);
        assert_eq!(shape.logits(3, 128), 3 * 128 * shape.vocabulary as u64);
        count += 1;
    }
    let llama = serde_json::json!({ "model_type": "llama", "num_hidden_layers": 2 });
    let config = Config::from_fields("", llama.as_object().unwrap()).unwrap();
    let shape = ModelShape::of_config("", &config);
    assert_eq!(
        shape,
        ModelShape { most_positions: 2048, ..ModelShape::llama("", 2, 4096, 32, 32, 11008, 32000, false) }
    );
    assert_eq!(shape.parameters(), config.parameters(Task::CausalLanguageModel));
    assert!(count >= 9, "{count} families");
}

/// Sizes as the models' own `config.json` have them, and the parameters of their published files of weights.
#[test]
fn families_that_can_only_be_planned_have_the_parameters_of_published_models() {
    let sizes = |hidden: u64, layers: u64, heads: u64, vocabulary: u64| {
        serde_json::json!({
            "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocabulary,
        })
    };
    let cases = [
        ("gpt_neox", sizes(6144, 44, 64, 50432), r#"{"intermediate_size": 24576}"#, 20_554_567_680),
        (
            "opt",
            sizes(4096, 32, 32, 50272),
            r#"{"ffn_dim": 16384, "max_position_embeddings": 2048}"#,
            6_658_473_984,
        ),
        // 350m, whose embeddings are narrower than its layers.
        (
            "opt",
            sizes(1024, 24, 16, 50272),
            r#"{"ffn_dim": 4096, "max_position_embeddings": 2048, "word_embed_proj_dim": 512, "do_layer_norm_before": false}"#,
            331_196_416,
        ),
        ("bloom", sizes(1024, 24, 16, 250_880), "{}", 559_214_592),
        (
            "falcon",
            sizes(4544, 32, 71, 65024),
            r#"{"multi_query": true, "parallel_attn": true}"#,
            6_921_720_704,
        ),
        ("mpt", sizes(4096, 32, 32, 50432), r#"{"expansion_ratio": 4, "no_bias": true}"#, 6_649_286_656),
        (
            "gemma",
            sizes(2048, 18, 8, 256_000),
            r#"{"num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384}"#,
            2_506_172_416,
        ),
        ("phi", sizes(2560, 32, 32, 51200), r#"{"intermediate_size": 10240}"#, 2_779_683_840),
        ("phi3", sizes(3072, 32, 32, 32064), r#"{"intermediate_size": 8192}"#, 3_821_079_552),
        ("gptj", sizes(4096, 28, 16, 50400), "{}", 6_050_882_784),
        ("gpt_bigcode", sizes(6144, 40, 48, 49152), r#"{"n_positions": 8192}"#, 15_517_456_384),
        (
            "starcoder2",
            sizes(3072, 30, 24, 49152),
            r#"{"num_key_value_heads": 2, "intermediate_size": 12288}"#,
            3_030_371_328,
        ),
        ("stablelm", sizes(2560, 32, 32, 50304), r#"{"intermediate_size": 6912}"#, 2_795_443_200),
        ("olmo", sizes(4096, 32, 32, 50304), r#"{"intermediate_size": 11008}"#, 6_888_095_744),
        (
            "mixtral",
            sizes(4096, 32, 32, 32000),
            r#"{"num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}"#,
            46_702_792_704,
        ),
        (
            "qwen3_moe",
            sizes(2048, 48, 32, 151_936),
            r#"{"num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}"#,
            30_532_122_624,
        ),
        (
            "qwen2_moe",
            sizes(2048, 24, 16, 151_936),
            r#"{"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4}"#,
            14_315_784_192,
        ),
        ("cohere", sizes(8192, 40, 64, 256_000), r#"{"intermediate_size": 22528}"#, 34_980_831_232),
    ];
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-other", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (family, sizes, more, parameters) in cases {
        let more: serde_json::Map<String, serde_json::Value> = serde_json::from_str(more).unwrap();
        let mut fields = sizes.as_object().unwrap().clone();
        fields.extend(more);
        fields.insert("model_type".into(), family.into());
        let file = folder.join("config.json");
        std::fs::write(&file, serde_json::to_vec(&fields).unwrap()).unwrap();
        let shape = ModelShape::read(&folder).unwrap();
        assert_eq!(shape.parameters(), parameters, "{family}");
        assert!(is_only_for_plans(&folder) && is_only_for_plans(&file), "{family}");
        // Of 46.7 billion, a token passes 12.9.
        if family == "mixtral" {
            let passed = shape.multiplying_parameters() + shape.embedding_parameters;
            assert_eq!((passed / 100_000_000, shape.intermediate), (128, 2 * 14336));
        }
        // Releases of transformers differ in the name of the number of experts.
        for (before, after) in [("num_experts", "num_local_experts"), ("num_local_experts", "num_experts")] {
            if let Some(count) = fields.get(before).cloned() {
                let mut renamed = fields.clone();
                renamed.remove(before);
                renamed.insert(after.into(), count);
                std::fs::write(&file, serde_json::to_vec(&renamed).unwrap()).unwrap();
                assert_eq!(ModelShape::read(&folder).unwrap().parameters(), parameters, "{family}: {after}");
            }
        }
        fields.insert("num_attention_heads".into(), 0.into());
        std::fs::write(&file, serde_json::to_vec(&fields).unwrap()).unwrap();
        let wrong = ModelShape::read(&folder).unwrap_err().to_string();
        assert!(wrong.contains("heads = 0 is not possible"), "{family}: {wrong}");
    }
    let dense = |more: &str| {
        let text = format!(
            "[model]\nwidth = 64\nlayers = 2\nheads = 4\nintermediate = 96\nvocabulary = 100\ngated = true\n{more}"
        );
        ModelShape::read(&tempfile(&text))
    };
    let (one, eight) = (dense("").unwrap(), dense("experts = 8\nexperts_per_token = 2").unwrap());
    let mlp = 3 * 64 * 96;
    assert_eq!(eight.layer_parameters, one.layer_parameters + 7 * mlp + 8 * 64);
    assert_eq!((eight.intermediate, eight.idle_parameters), (192, 6 * mlp));
    let wrong = dense("experts = 8\nexperts_per_token = 9").unwrap_err().to_string();
    assert!(
        wrong.contains(
            "model.experts_per_token of model.experts = 9 of 8 is not possible: from 1 to the 8 experts"
        ),
        "{wrong}"
    );
}

#[test]
fn what_training_does_not_know_is_counted_by_its_sizes() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-unknown", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let read = |text: &str| {
        std::fs::write(folder.join("config.json"), text).unwrap();
        (ModelShape::read(&folder), is_only_for_plans(&folder))
    };
    let sizes = r#""hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100"#;
    let llama = ModelShape::llama("", 2, 64, 4, 2, 96, 100, false);
    for (text, tied, said) in [
        (
            format!(r#"{{"model_type": "olmo2", "tie_word_embeddings": false, {sizes}}}"#),
            false,
            "the family `olmo2`: it is counted as a Llama",
        ),
        (format!(r#"{{"model_type": "granite", "tie_word_embeddings": true, {sizes}}}"#), true, "`granite`"),
        (
            format!(r#"{{"model_type": "gemma3", "text_config": {{{sizes}}}}}"#),
            true,
            "the text part is counted",
        ),
        (
            format!(
                r#"{{"model_type": "llama", "quantization_config": {{"bits": 4}}, "other": 1, {sizes}}}"#
            ),
            false,
            "leaves out what training does not support: other, quantization_config",
        ),
    ] {
        let (shape, is_for_plans) = read(&text);
        let shape = shape.unwrap();
        assert!(is_for_plans && shape.note.as_ref().is_some_and(|note| note.contains(said)), "{shape:?}");
        let expected = llama.parameters() - if tied { 100 * 64 } else { 0 };
        assert_eq!((shape.parameters(), shape.tied), (expected, tied), "{text}");
        let workload = Workload::new(shape, "1x1xL4".parse().unwrap(), 32, 8);
        let text = render(&workload, &plan(&workload, &Axes::default(), 1).unwrap(), &"FOLDER".into());
        assert!(text.contains(said), "{text}");
    }
    assert_eq!(read(&format!(r#"{{"model_type": "llama", {sizes}}}"#)).0.unwrap().note, None);
    for (text, said) in [
        (
            format!(r#"{{"model_type": "gpt_oss", "num_local_experts": 32, {sizes}}}"#),
            "num_local_experts = 32 is not possible: of mixtures of experts, plans know mixtral",
        ),
        (
            format!(r#"{{"model_type": "llama", "num_experts": 8, {sizes}}}"#),
            "num_experts = 8 is not possible",
        ),
        (
            r#"{"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2}"#.to_owned(),
            "further ones that can only be planned are",
        ),
    ] {
        let error = read(&text).0.unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn our_own_configurations() {
    let tiny = ModelShape::read(&root().join("configs/gpt-tiny.toml")).unwrap();
    // As the run of the README counts them, with positions for 128 tokens.
    assert_eq!((tiny.parameters(), tiny.blocks()), (1_334_016, 6));
    let folder = tempfile(
        "[model]\nwidth = 64\nlayers = 2\nheads = 4\nkv_heads = 2\nintermediate = 96\nvocabulary = 100\ngated = true\ntied_head = false",
    );
    let shape = ModelShape::read(&folder).unwrap();
    assert_eq!(
        shape,
        ModelShape { name: shape.name.clone(), ..ModelShape::llama("", 2, 64, 4, 2, 96, 100, false) }
    );
    for (text, said) in [
        ("[model]\nlayers = 2\nheads = 4", "model.width"),
        ("[model]\nwidth = 64\nlayers = 0\nheads = 4\nvocabulary = 9", "layers"),
        ("[model]\nwidth = 64\nlayers = 2\nheads = 4", "model.vocabulary"),
        (
            "[model]\nwidth = 64\nlayers = 2\nheads = 4\nkv_heads = 3\nvocabulary = 9",
            "model.kv_heads = 3 is not possible: it must divide model.heads = 4",
        ),
        (
            "[model]\nwidth = 100\nlayers = 2\nheads = 7\nvocabulary = 9",
            "model.heads = 7 is not possible: it must divide model.width = 100",
        ),
        ("[model]\nwidth = 64\nlayers = 2\nheads = 0\nvocabulary = 9", "model.heads = 0"),
        ("width = 3", "missing field `model`"),
    ] {
        let error = ModelShape::read(&tempfile(text)).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    // Sizes that nothing has, and the largest that are taken.
    let sizes = [
        ("width", 1 << 20),
        ("layers", 512),
        ("heads", 1 << 20),
        ("kv_heads", 1 << 20),
        ("intermediate", (1 << 31) - 1),
        ("vocabulary", (1 << 31) - 1),
        ("sequence_length", (1 << 31) - 1),
    ];
    let text = |size: &dyn Fn(&str, i64) -> i64| {
        let fields = sizes.map(|(field, most)| format!("{field} = {}\n", size(field, most)));
        format!("[model]\n{}", fields.concat())
    };
    let error = |text: &str| ModelShape::read(&tempfile(text)).unwrap_err().to_string();
    for (field, _) in sizes {
        let own = text(&|other, _| match other {
            _ if other == field => i64::MAX,
            "sequence_length" => 0,
            _ => 1,
        });
        let said = format!("model.{field} = {} is not possible: it must", i64::MAX);
        assert!(error(&own).contains(&said), "{own}: {}", error(&own));
    }
    assert!(error(&text(&|_, most| most)).contains("parameters"));
    assert!(ModelShape::read(Path::new("nowhere.json")).unwrap_err().to_string().contains("nowhere.json"));
}

/// A file of this process's own with this text.
fn tempfile(text: &str) -> std::path::PathBuf {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn flops_and_contexts() {
    let model = ModelShape::llama("", 32, 4096, 32, 8, 14336, 128_256, false);
    assert_eq!(model.parameters(), 8_030_261_248);
    // 6 N without the embedding, and attention as if every token saw all others.
    let expected = 6.0 * (8_030_261_248u64 - 128_256 * 4096) as f64 + 12.0 * 32.0 * 4096.0 * 8192.0;
    assert_eq!(model.flops_per_token(8192), expected);
    assert_eq!(model.context(0, 8192), 4096.5);
    let windowed = ModelShape { windows: vec![Some(4); 32], ..model };
    // 1, 2, 3 and then 4 tokens.
    assert_eq!(windowed.context(0, 8), (1.0 + 2.0 + 3.0 + 4.0 * 5.0) / 8.0);
}
