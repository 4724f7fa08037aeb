//! What a configuration must not say.

use serde_json::{Value, json};

use super::read;

/// What a configuration of two fields is refused with.
fn message(family: &str, fields: Value) -> String {
    let mut config = json!({ "model_type": family });
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    match read(&config) {
        Err(error) => error.to_string(),
        Ok(config) => panic!("{fields} was read as {config:?}"),
    }
}

#[test]
fn what_may_change_the_mathematics_is_refused_by_name() {
    for (family, fields, parts) in [
        (
            "llama",
            json!({ "num_experts": 8 }),
            vec!["`llama` does not know `num_experts` = 8", "absent, null, false"],
        ),
        (
            "llama",
            json!({ "quantization_config": { "bits": 4 } }),
            vec!["`quantization_config` = {\"bits\":4}"],
        ),
        ("llama", json!({ "auto_map": { "AutoModel": "own.Model" } }), vec!["`auto_map`"]),
        (
            "llama",
            json!({ "hiden_size": 64, "layer_skip": 2 }),
            vec!["(but `hidden_size`)", ", `layer_skip` = 2", "each of them"],
        ),
        ("llama", json!({ "residual_scale": 0 }), vec!["`residual_scale` = 0"]),
        ("llama", json!({ "sliding_window": 8 }), vec!["`sliding_window`"]),
        (
            "llama",
            json!({ "partial_rotary_factor": 0.5 }),
            vec!["`partial_rotary_factor` is 0.5; it can be only 1.0"],
        ),
        (
            "llama",
            json!({ "rope_scaling": { "rope_type": "dynamic", "factor": 2.0 } }),
            vec![
                "`rope_scaling.rope_type` is \"dynamic\"; it can be \"default\", \"linear\", \"llama3\" or \"yarn\"",
            ],
        ),
        (
            "llama",
            json!({ "rope_scaling": { "type": "longrope" } }),
            vec!["`rope_scaling.type` is \"longrope\""],
        ),
        (
            "llama",
            json!({ "rope_scaling": { "type": "linear", "factor": 2.0, "mscale": 1.0 } }),
            vec!["`linear` does not know `rope_scaling.mscale`"],
        ),
        (
            "llama",
            json!({ "rope_scaling": { "type": "linear" } }),
            vec!["`rope_scaling.factor` is absent; it can be a number above 0"],
        ),
        (
            "llama",
            json!({ "rope_scaling": {}, "rope_parameters": { "rope_type": "linear", "factor": 2.0 } }),
            vec!["`rope_scaling` is {}; it can be absent, since"],
        ),
        (
            "gpt2",
            json!({ "scale_attn_by_inverse_layer_idx": true }),
            vec!["`scale_attn_by_inverse_layer_idx` is true; it can be only false"],
        ),
        (
            "gpt2",
            json!({ "activation_function": "relu" }),
            vec!["`activation_function` is \"relu\"; it can be \"gelu\","],
        ),
        ("qwen2", json!({ "attention_bias": true }), vec!["`qwen2` does not know `attention_bias`"]),
        (
            "gemma2",
            json!({ "hidden_act": "gelu" }),
            vec!["`hidden_act` is \"gelu\"; it can be only \"gelu_pytorch_tanh\""],
        ),
        (
            "gemma2",
            json!({ "sliding_window": 4096, "sliding_window_size": 512 }),
            vec!["`sliding_window_size` is 512; it can be only 4096"],
        ),
        ("gemma3_text", json!({ "sliding_window_size": 4096 }), vec!["`sliding_window_size`"]),
        ("gemma2", json!({ "use_bidirectional_attention": true }), vec!["`use_bidirectional_attention`"]),
        ("qwen2", json!({ "is_causal": false }), vec!["`is_causal` is false; it can be only true"]),
        ("gpt2", json!({ "is_causal": false }), vec!["`is_causal` is false; it can be only true"]),
        (
            "gemma3_text",
            json!({ "attn_logit_softcapping": 50.0 }),
            vec!["`attn_logit_softcapping` is 50.0; it can be only null"],
        ),
        ("bert", json!({ "position_embedding_type": "relative_key" }), vec!["it can be only \"absolute\""]),
        ("bert", json!({ "pruned_heads": { "0": [1] } }), vec!["`pruned_heads`"]),
        ("bert", json!({ "is_decoder": true }), vec!["`is_decoder`"]),
        ("bert", json!({ "tie_word_embeddings": false }), vec!["`tie_word_embeddings`"]),
    ] {
        let message = message(family, fields);
        assert!(message.starts_with("config.json: "), "{message}");
        for part in parts {
            assert!(message.contains(part), "{part}\n{message}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (family, fields, parts) in [
        (
            "llama",
            json!({ "hidden_size": "wide" }),
            vec!["`hidden_size` is \"wide\"; it can be a whole number from 0 to 2147483647"],
        ),
        ("llama", json!({ "hidden_size": null }), vec!["`hidden_size` is null"]),
        (
            "llama",
            json!({ "num_hidden_layers": 0 }),
            vec!["`num_hidden_layers` is 0; it can be a whole number from 1 to 10000"],
        ),
        (
            "llama",
            json!({ "hidden_size": 30 }),
            vec!["`hidden_size` is 30; it can be a multiple of `num_attention_heads`, 32"],
        ),
        ("llama", json!({ "num_key_value_heads": 5 }), vec!["a divisor of `num_attention_heads`, 32"]),
        ("llama", json!({ "head_dim": 7 }), vec!["an even number"]),
        ("llama", json!({ "rms_norm_eps": 0.0 }), vec!["`rms_norm_eps` is 0; it can be a number above 0"]),
        ("llama", json!({ "attention_dropout": 1.0 }), vec!["from 0 to below 1"]),
        ("llama", json!({ "id2label": { "0": "a", "2": "b" } }), vec!["names for \"0\", \"1\" and so on"]),
        (
            "llama",
            json!({ "id2label": { "0": "a" }, "num_labels": 2 }),
            vec!["`num_labels` is 2; it can be the 1 of `id2label`"],
        ),
        (
            "llama",
            json!({ "problem_type": "ranking" }),
            vec!["\"regression\", \"single_label_classification\""],
        ),
        ("gpt2", json!({ "n_head": 5 }), vec!["a multiple of `n_head`, 5"]),
        (
            "qwen2",
            json!({ "num_hidden_layers": 1, "layer_types": ["linear_attention"] }),
            vec!["1 of \"full_attention\" and"],
        ),
        (
            "qwen2",
            json!({ "num_hidden_layers": 1, "layer_types": ["sliding_attention"] }),
            vec!["`use_sliding_window`"],
        ),
        ("gemma2", json!({ "sliding_window": null }), vec!["some layers have a window"]),
        ("roberta", json!({ "pad_token_id": null }), vec!["positions are counted from it"]),
        ("roberta", json!({ "max_position_embeddings": 2 }), vec!["above 2, where positions begin"]),
    ] {
        let message = message(family, fields);
        for part in parts {
            assert!(message.contains(part), "{part}\n{message}");
        }
    }
}

#[test]
fn an_unknown_family_is_told_the_known_ones() {
    for (fields, given) in [
        (json!({ "model_type": "mamba" }), "`model_type` `mamba`"),
        (
            json!({ "architectures": ["MambaForCausalLM"] }),
            "no `model_type`, and `architectures` names `MambaForCausalLM`",
        ),
        (json!({}), "no `model_type` and no `architectures`"),
    ] {
        let message = read(&fields).unwrap_err().to_string();
        assert!(
            message.contains(&format!("the model is of {given}; supported are `gpt2`, `llama`,")),
            "{message}"
        );
    }
}

#[test]
fn what_says_nothing_or_is_harmless_is_left_alone() {
    let plain = read(&json!({ "model_type": "llama" })).unwrap();
    for fields in [
        json!({ "model_type": "llama", "num_experts": null, "quantization_config": null, "sliding_window": null }),
        json!({ "model_type": "llama", "is_causal": true }),
        json!({ "model_type": "llama", "use_mrope": false, "pruned_heads": {}, "modules": [] }),
        json!({ "model_type": "llama", "pad_token_id": -1, "use_return_dict": true, "xla_device": true }),
        json!({ "model_type": "llama", "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity" }),
        json!({ "model_type": "llama", "torch_dtype": "bfloat16", "use_cache": true, "pretraining_tp": 2, "temperature": 0.6 }),
    ] {
        assert_eq!(read(&fields).unwrap(), plain, "{fields}");
    }
}

#[test]
fn a_rotation_may_be_in_fields_of_both_versions_if_they_agree() {
    let scaled = |name: &str| json!({ name: "linear", "factor": 2.0, "rope_theta": 5e5 });
    for (family, newer) in [
        ("llama", scaled("rope_type")),
        ("gemma3_text", json!({ "full_attention": scaled("rope_type"), "sliding_attention": {} })),
    ] {
        let mut fields = json!({ "model_type": family, "rope_parameters": newer });
        let alone = read(&fields).unwrap();
        fields["rope_scaling"] = json!({ "type": "linear", "factor": 2.0 });
        assert_eq!(read(&fields).unwrap(), alone);
        fields["rope_scaling"]["factor"] = json!(4.0);
        assert!(read(&fields).unwrap_err().to_string().contains("`rope_parameters`, or the same"));
    }
}
