//! Descriptions of models.

use std::path::Path;

use brigade_hf::{Config, Task};
use brigade_plan::model::ModelShape;

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
        ("[model]\nwidth = 64\nlayers = 2\nheads = 4\nkv_heads = 3\nvocabulary = 9", "kv_heads"),
        ("width = 3", "missing field `model`"),
    ] {
        let error = ModelShape::read(&tempfile(text)).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
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
