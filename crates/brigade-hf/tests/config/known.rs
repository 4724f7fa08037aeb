//! Known models: how many parameters they have, by the sizes that their configurations state.

use brigade_hf::Task;
use serde_json::json;

use super::read;

#[test]
fn known_models_have_as_many_parameters_as_is_said_of_them() {
    use Task::{Base, CausalLanguageModel};

    for (name, task, fields, parameters) in [
        ("GPT-2", CausalLanguageModel, json!({ "model_type": "gpt2" }), 124_439_808),
        (
            "TinyLlama 1.1B",
            CausalLanguageModel,
            json!({
                "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
                "num_key_value_heads": 4,
            }),
            1_100_048_384,
        ),
        (
            "Llama 3.2 1B",
            CausalLanguageModel,
            json!({
                "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
                "num_hidden_layers": 16, "num_key_value_heads": 8, "tie_word_embeddings": true,
            }),
            1_235_814_400,
        ),
        (
            "Llama 3.1 8B",
            CausalLanguageModel,
            json!({
                "model_type": "llama", "vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8,
            }),
            8_030_261_248,
        ),
        (
            "Llama 3.1 70B",
            CausalLanguageModel,
            json!({
                "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
                "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
            }),
            70_553_706_496,
        ),
        ("Mistral 7B", CausalLanguageModel, json!({ "model_type": "mistral" }), 7_241_732_096),
        (
            "Qwen 2 7B",
            CausalLanguageModel,
            json!({
                "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
                "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            }),
            7_615_616_512,
        ),
        (
            "Qwen 3 8B",
            CausalLanguageModel,
            json!({
                "model_type": "qwen3", "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8,
            }),
            8_190_735_360,
        ),
        ("Gemma 2 2B", CausalLanguageModel, json!({ "model_type": "gemma2" }), 2_614_341_888),
        (
            "Gemma 2 9B",
            CausalLanguageModel,
            json!({
                "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
                "num_hidden_layers": 42, "num_key_value_heads": 8, "sliding_window": 4096, "sliding_window_size": 4096,
            }),
            9_241_705_984,
        ),
        (
            "Gemma 3 1B",
            CausalLanguageModel,
            json!({
                "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
                "num_attention_heads": 4, "num_key_value_heads": 1,
            }),
            999_885_952,
        ),
        ("BERT base", Base, json!({ "model_type": "bert" }), 109_482_240),
        (
            "RoBERTa base",
            Base,
            json!({
                "model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1,
            }),
            124_645_632,
        ),
    ] {
        assert_eq!(read(&fields).unwrap().parameters(task), parameters, "{name}");
    }
}
