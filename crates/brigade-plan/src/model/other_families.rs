//! Families of `config.json` that can be planned, but not trained by that file: a model of one's own may have their form.

use serde_json::{Map, Value};

use super::experts::Experts;
use super::{ModelError, ModelShape, wrong};

/// The `model_type`s.
pub const OTHER_FAMILIES: [&str; 17] = [
    "bloom",
    "cohere",
    "falcon",
    "gemma",
    "gpt_bigcode",
    "gpt_neox",
    "gptj",
    "mixtral",
    "mpt",
    "olmo",
    "opt",
    "phi",
    "phi3",
    "qwen2_moe",
    "qwen3_moe",
    "stablelm",
    "starcoder2",
];

/// Fields with the number of experts: releases of `transformers` write one or the other for the same family.
const EXPERTS: [&str; 2] = ["num_local_experts", "num_experts"];

/// What the layers of a family have beside their matrices.
struct Form {
    gated: bool,
    tied: bool,
    /// Norms of a layer, and the parameters of each for a number of a token: 2 with a bias, 1 without.
    norms: u64,
    norm: u64,
    /// Biases of queries, keys and values.
    query_biases: bool,
    /// Biases of the projection after attention.
    output_biases: bool,
    mlp_biases: bool,
    head_biases: bool,
    /// Rows of learned positions.
    positions: usize,
}

impl Form {
    /// Llama's, with a head of its own.
    const LLAMA: Self = Self {
        gated: true,
        tied: false,
        norms: 2,
        norm: 1,
        query_biases: false,
        output_biases: false,
        mlp_biases: false,
        head_biases: false,
        positions: 0,
    };

    /// GPT-2's, with biases everywhere.
    const GPT: Self = Self {
        gated: false,
        tied: true,
        norm: 2,
        query_biases: true,
        output_biases: true,
        mlp_biases: true,
        ..Self::LLAMA
    };
}

/// The fields of a `config.json`.
struct Fields<'a> {
    file: &'a str,
    fields: &'a Map<String, Value>,
}

impl Fields<'_> {
    /// The first of these fields that is there.
    fn get(&self, names: &[&str]) -> Result<Option<usize>, ModelError> {
        let Some((name, value)) = names.iter().find_map(|name| Some((name, self.fields.get(*name)?))) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|value| usize::try_from(value).ok()).filter(|value| *value < 1 << 31) {
            Some(value) => Ok(Some(value)),
            None if value.is_null() => Ok(None),
            None => Err(wrong(self.file, name, value, "a whole number from 0 to 2147483647")),
        }
    }

    fn needed(&self, names: &[&str]) -> Result<usize, ModelError> {
        self.get(names)?
            .ok_or_else(|| wrong(self.file, names.first().unwrap_or(&""), "(absent)", "planning needs it"))
    }

    fn is_set(&self, name: &str, default: bool) -> bool {
        self.fields.get(name).and_then(Value::as_bool).unwrap_or(default)
    }
}

/// The shape of a model of one of [`OTHER_FAMILIES`]; of another family, that of a Llama of these sizes.
pub fn shape(file: &str, family: &str, fields: &Map<String, Value>) -> Result<ModelShape, ModelError> {
    let fields = Fields { file, fields };
    let hidden = fields.needed(&["hidden_size", "n_embd", "n_embed", "d_model"])?;
    let layers = fields.needed(&["num_hidden_layers", "n_layer", "n_layers"])?;
    let heads = fields.needed(&["num_attention_heads", "n_head", "n_heads"])?;
    let vocabulary = fields.needed(&["vocab_size"])?;
    let inner = fields.get(&["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"])?;
    let most_positions =
        fields.get(&["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"])?;
    let most_positions = most_positions.unwrap_or(0);
    let kv_heads = fields.get(&["num_key_value_heads"])?.unwrap_or(heads);
    let window = fields.get(&["sliding_window"])?.filter(|_| fields.is_set("use_sliding_window", true));
    let tied = |default| fields.is_set("tie_word_embeddings", default);
    let biases = |name| fields.is_set(name, false);
    // Of a family that is not known, it may be that of some layers alone.
    let layer_types = fields.fields.get("layer_types").and_then(Value::as_array);
    let is_windowed = |layer: usize| match layer_types {
        _ if family == "mistral" || OTHER_FAMILIES.contains(&family) => true,
        Some(types) => types.get(layer).is_some_and(|kind| kind == "sliding_attention"),
        None => false,
    };
    // The experts of a layer, and the size of one that every token passes.
    let (mut experts, mut shared) = (None, 0);
    let mut kv_heads = kv_heads;
    let mut intermediate = inner.unwrap_or(4 * hidden);
    let form = match family {
        // Its embedding has a norm, too.
        "bloom" => Form { tied: tied(true), ..Form::GPT },
        "cohere" => {
            Form { tied: tied(true), norms: 1, query_biases: biases("attention_bias"), ..Form::LLAMA }
        }
        "falcon" => {
            let new = biases("new_decoder_architecture");
            kv_heads = match (new, fields.is_set("multi_query", true)) {
                (true, _) => fields.get(&["num_kv_heads"])?.unwrap_or(heads),
                (false, true) => 1,
                (false, false) => heads,
            };
            let bias = biases("bias");
            let alone = fields.get(&["num_ln_in_parallel_attn"])?.unwrap_or(if new { 2 } else { 1 });
            let norms = if fields.is_set("parallel_attn", true) { alone as u64 } else { 2 };
            let tied = tied(true);
            Form { tied, norms, query_biases: bias, output_biases: bias, mlp_biases: bias, ..Form::GPT }
        }
        "gemma" => Form { tied: tied(true), ..Form::LLAMA },
        "gpt_bigcode" => {
            kv_heads = if fields.is_set("multi_query", true) { 1 } else { heads };
            Form { positions: most_positions, tied: tied(true), ..Form::GPT }
        }
        "gpt_neox" => {
            let bias = fields.is_set("attention_bias", true);
            Form { tied: tied(false), query_biases: bias, output_biases: bias, ..Form::GPT }
        }
        "gptj" => {
            let alone = Form { norms: 1, query_biases: false, output_biases: false, ..Form::GPT };
            Form { tied: tied(false), head_biases: true, ..alone }
        }
        "mixtral" => {
            let count = fields.needed(&EXPERTS)?;
            experts = Some(Experts { count, per_token: fields.needed(&["num_experts_per_tok"])? });
            Form { tied: tied(false), ..Form::LLAMA }
        }
        "mpt" => {
            intermediate = fields.get(&["expansion_ratio"])?.unwrap_or(4) * hidden;
            let bias = !fields.is_set("no_bias", true);
            let norm = if bias { 2 } else { 1 };
            Form { norm, query_biases: bias, output_biases: bias, mlp_biases: bias, ..Form::GPT }
        }
        "olmo" => Form { tied: tied(false), norms: 0, query_biases: biases("attention_bias"), ..Form::LLAMA },
        // Its positions begin at 2.
        "opt" => Form { positions: most_positions + 2, tied: tied(true), ..Form::GPT },
        "phi" => Form { tied: tied(false), norms: 1, head_biases: true, ..Form::GPT },
        "stablelm" => {
            Form { tied: tied(false), norm: 2, query_biases: biases("use_qkv_bias"), ..Form::LLAMA }
        }
        "starcoder2" => {
            let bias = fields.is_set("use_bias", true);
            Form { tied: tied(true), query_biases: bias, output_biases: bias, mlp_biases: bias, ..Form::GPT }
        }
        "qwen2_moe" | "qwen3_moe" => {
            let sparse = fields.get(&["decoder_sparse_step"])?.unwrap_or(1);
            let dense = fields.fields.get("mlp_only_layers").and_then(Value::as_array).map_or(0, Vec::len);
            if sparse != 1 || dense > 0 {
                let allowed = "a plan assumes that all layers are alike, each with experts";
                return Err(wrong(file, "decoder_sparse_step, mlp_only_layers", sparse, allowed));
            }
            let count = fields.needed(&EXPERTS)?;
            experts = Some(Experts { count, per_token: fields.needed(&["num_experts_per_tok"])? });
            intermediate = fields.needed(&["moe_intermediate_size"])?;
            shared = fields.get(&["shared_expert_intermediate_size"])?.unwrap_or(0);
            let query_biases = family == "qwen2_moe";
            Form { tied: tied(false), query_biases, ..Form::LLAMA }
        }
        "phi3" => Form { tied: tied(false), ..Form::LLAMA },
        // One that is not known.
        _ => {
            inner.map_or_else(|| fields.needed(&["intermediate_size"]), Ok)?;
            let (query_biases, mlp_biases) = (biases("attention_bias"), biases("mlp_bias"));
            // What `transformers` leaves out of a file is as the family's class and its base class have it: tied.
            let is_tied = !["llama", "mistral", "qwen2", "qwen3"].contains(&family);
            Form { tied: tied(is_tied), query_biases, mlp_biases, ..Form::LLAMA }
        }
    };
    let head_dim = fields.get(&["head_dim"])?.unwrap_or(hidden / heads.max(1));
    let mut shape =
        ModelShape::llama(file, layers, hidden, heads, kv_heads, intermediate, vocabulary, form.tied);
    (shape.gated, shape.head_dim, shape.most_positions) = (form.gated, head_dim, most_positions);
    for (layer, own) in shape.windows.iter_mut().enumerate() {
        *own = window.filter(|_| is_windowed(layer));
    }
    let [h, v, positions, q, kv] = [
        hidden,
        vocabulary,
        form.positions,
        heads.saturating_mul(head_dim),
        kv_heads.saturating_mul(head_dim),
    ]
    .map(|size| size as u64);
    let if_set = |is_set: bool, parameters: u64| if is_set { parameters } else { 0 };
    let mlp = |inner: usize| {
        let (inner, matrices) = (inner as u64, if form.gated { 3 } else { 2 });
        matrices * h * inner + if_set(form.mlp_biases, (matrices - 1) * inner + h)
    };
    let attention = 2 * h * (q + kv) + if_set(form.query_biases, q + 2 * kv) + if_set(form.output_biases, h);
    // Norms of queries and keys.
    let of_heads = if_set(family == "qwen3_moe", 2 * head_dim as u64);
    let norms = form.norms * form.norm * h + of_heads;
    shape.layer_parameters = attention + norms + mlp(intermediate);
    if shared > 0 {
        shape.layer_parameters += mlp(shared) + h;
    }
    if let Some(experts) = experts {
        experts
            .widen(&mut shape, mlp(intermediate))
            .map_err(|allowed| wrong(file, "num_experts_per_tok", experts.per_token, &allowed))?;
        shape.intermediate = shape.intermediate.saturating_add(shared);
    }
    // Of OPT, the smallest but one has narrower embeddings, projected to its width and back, and no norm before the head.
    let is_opt = family == "opt";
    let width = match is_opt {
        true => fields.get(&["word_embed_proj_dim"])?.unwrap_or(hidden) as u64,
        false => h,
    };
    let has_norm = form.norms > 0 && (!is_opt || fields.is_set("do_layer_norm_before", true));
    shape.embedding_parameters =
        v * width + positions * h + if_set(width != h, 2 * width * h) + if_set(family == "bloom", 2 * h);
    shape.head_parameters =
        if_set(has_norm, form.norm * h) + if_set(!form.tied, v * h) + if_set(form.head_biases, v);
    shape.check(file)
}
