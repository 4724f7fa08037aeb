//! What a family's files of weights hold.

use crate::config::{Config, DecoderConfig, EncoderConfig, Family, NormKind, Task};

/// A tensor of a file of weights: its name, and its shape.
pub type TensorShape = (String, Vec<usize>);

impl Config {
    /// The tensors that `transformers` writes for this model, in the order in which the model computes with them. Linear layers are
    /// `[outputs, inputs]`, but those of GPT-2 `[inputs, outputs]`. A head that is tied to the embeddings is not there.
    pub fn tensors(&self, task: Task) -> Vec<TensorShape> {
        let mut list = List::default();
        match self {
            Self::Decoder(config) if config.family == Family::Gpt2 => gpt2(&mut list, config, task),
            Self::Decoder(config) => llama(&mut list, config, task),
            Self::Encoder(config) => encoder(&mut list, config, task),
        }
        list.tensors
    }

    /// How many numbers all tensors have, or the most that there can be.
    pub fn parameters(&self, task: Task) -> u64 {
        let elements =
            |shape: &[usize]| shape.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
        self.tensors(task).iter().fold(0, |sum, (_, shape)| sum.saturating_add(elements(shape)))
    }
}

#[derive(Default)]
struct List {
    prefix: String,
    tensors: Vec<TensorShape>,
}

impl List {
    fn add(&mut self, name: &str, shape: &[usize]) {
        self.tensors.push((format!("{}{name}", self.prefix), shape.to_vec()));
    }

    /// A weight and, if it has one, a bias of as many elements as it has outputs.
    fn linear(&mut self, name: &str, shape: [usize; 2], outputs: usize, bias: bool) {
        self.add(&format!("{name}.weight"), &shape);
        if bias {
            self.add(&format!("{name}.bias"), &[outputs]);
        }
    }

    fn norm(&mut self, name: &str, size: usize, bias: bool) {
        self.add(&format!("{name}.weight"), &[size]);
        if bias {
            self.add(&format!("{name}.bias"), &[size]);
        }
    }
}

fn gpt2(list: &mut List, config: &DecoderConfig, task: Task) {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let base = if task == Task::Base { "" } else { "transformer." };
    list.prefix = base.to_owned();
    list.add("wte.weight", &[config.vocab_size, hidden]);
    list.add("wpe.weight", &[config.max_positions, hidden]);
    for layer in 0..config.layers.len() {
        list.prefix = format!("{base}h.{layer}.");
        list.norm("ln_1", hidden, true);
        let qkv = config.query_size() + 2 * config.key_size();
        list.linear("attn.c_attn", [hidden, qkv], qkv, config.biases.qkv);
        list.linear("attn.c_proj", [config.query_size(), hidden], hidden, config.biases.attention_output);
        list.norm("ln_2", hidden, true);
        list.linear("mlp.c_fc", [hidden, inner], inner, config.biases.mlp);
        list.linear("mlp.c_proj", [inner, hidden], hidden, config.biases.mlp);
    }
    list.prefix = base.to_owned();
    list.norm("ln_f", hidden, true);
    decoder_head(list, config, task);
}

fn llama(list: &mut List, config: &DecoderConfig, task: Task) {
    let (hidden, inner, biases) = (config.hidden_size, config.intermediate_size, config.biases);
    let norm_bias = config.norm.kind == NormKind::Layer;
    let base = if task == Task::Base { "" } else { "model." };
    list.prefix = base.to_owned();
    list.add("embed_tokens.weight", &[config.vocab_size, hidden]);
    for layer in 0..config.layers.len() {
        list.prefix = format!("{base}layers.{layer}.");
        list.norm("input_layernorm", hidden, norm_bias);
        for (name, outputs) in
            [("q", config.query_size()), ("k", config.key_size()), ("v", config.key_size())]
        {
            list.linear(&format!("self_attn.{name}_proj"), [outputs, hidden], outputs, biases.qkv);
        }
        if config.qk_norm {
            list.norm("self_attn.q_norm", config.head_dim, norm_bias);
            list.norm("self_attn.k_norm", config.head_dim, norm_bias);
        }
        list.linear("self_attn.o_proj", [hidden, config.query_size()], hidden, biases.attention_output);
        list.norm("post_attention_layernorm", hidden, norm_bias);
        if config.post_norms {
            list.norm("pre_feedforward_layernorm", hidden, norm_bias);
        }
        if config.gated_mlp {
            list.linear("mlp.gate_proj", [inner, hidden], inner, biases.mlp);
        }
        list.linear("mlp.up_proj", [inner, hidden], inner, biases.mlp);
        list.linear("mlp.down_proj", [hidden, inner], hidden, biases.mlp);
        if config.post_norms {
            list.norm("post_feedforward_layernorm", hidden, norm_bias);
        }
    }
    list.prefix = base.to_owned();
    list.norm("norm", hidden, norm_bias);
    decoder_head(list, config, task);
}

fn decoder_head(list: &mut List, config: &DecoderConfig, task: Task) {
    list.prefix.clear();
    match task {
        Task::CausalLanguageModel if !config.tied_embeddings => {
            list.add("lm_head.weight", &[config.vocab_size, config.hidden_size]);
        }
        Task::SequenceClassification => {
            list.add("score.weight", &[config.labels.names.len(), config.hidden_size]);
        }
        _ => {}
    }
}

fn encoder(list: &mut List, config: &EncoderConfig, task: Task) {
    let (hidden, inner, labels) = (config.hidden_size, config.intermediate_size, config.labels.names.len());
    let roberta = config.family == Family::Roberta;
    let base = match task {
        Task::Base => "",
        _ if roberta => "roberta.",
        _ => "bert.",
    };
    list.prefix = base.to_owned();
    list.add("embeddings.word_embeddings.weight", &[config.vocab_size, hidden]);
    let positions = config.position_offset + config.max_positions;
    list.add("embeddings.position_embeddings.weight", &[positions, hidden]);
    list.add("embeddings.token_type_embeddings.weight", &[config.token_types, hidden]);
    list.norm("embeddings.LayerNorm", hidden, true);
    for layer in 0..config.layers {
        list.prefix = format!("{base}encoder.layer.{layer}.");
        for name in ["query", "key", "value"] {
            list.linear(&format!("attention.self.{name}"), [hidden, hidden], hidden, true);
        }
        list.linear("attention.output.dense", [hidden, hidden], hidden, true);
        list.norm("attention.output.LayerNorm", hidden, true);
        list.linear("intermediate.dense", [inner, hidden], inner, true);
        list.linear("output.dense", [hidden, inner], hidden, true);
        list.norm("output.LayerNorm", hidden, true);
    }
    list.prefix = base.to_owned();
    if task == Task::Base || task == Task::SequenceClassification && !roberta {
        list.linear("pooler.dense", [hidden, hidden], hidden, true);
    }
    list.prefix.clear();
    match (task, roberta) {
        (Task::MaskedLanguageModel, false) => {
            list.linear("cls.predictions.transform.dense", [hidden, hidden], hidden, true);
            list.norm("cls.predictions.transform.LayerNorm", hidden, true);
            list.add("cls.predictions.bias", &[config.vocab_size]);
        }
        (Task::MaskedLanguageModel, true) => {
            list.linear("lm_head.dense", [hidden, hidden], hidden, true);
            list.norm("lm_head.layer_norm", hidden, true);
            list.add("lm_head.bias", &[config.vocab_size]);
        }
        (Task::SequenceClassification, false) => list.linear("classifier", [labels, hidden], labels, true),
        (Task::SequenceClassification, true) => {
            list.linear("classifier.dense", [hidden, hidden], hidden, true);
            list.linear("classifier.out_proj", [labels, hidden], labels, true);
        }
        _ => {}
    }
}
