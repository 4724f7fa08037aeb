//! Models from `config.json`.

use brigade_hf::{Config, DecoderConfig, EncoderConfig, Task};

use super::ModelShape;

impl ModelShape {
    /// The sizes of a model as `config.json` describes it: a decoder with the head that gives logits, or an encoder with that of masked
    /// language models. Parameters are counted from the tensors that its file of weights has.
    pub fn of_config(name: &str, config: &Config) -> Self {
        let task = match config {
            Config::Decoder(_) => Task::CausalLanguageModel,
            Config::Encoder(_) => Task::MaskedLanguageModel,
        };
        Self::of_task(name, config, task)
    }

    /// The same with the head of a task.
    pub fn of_task(name: &str, config: &Config, task: Task) -> Self {
        let shape = match config {
            Config::Decoder(decoder) => decoder_shape(name, decoder),
            Config::Encoder(encoder) => encoder_shape(name, encoder),
        };
        let [mut before, mut first, mut after] = [0u64; 3];
        let mut in_layers = false;
        for (tensor, sizes) in config.tensors(task) {
            let elements = sizes.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
            match layer_of(&tensor) {
                Some(layer) => {
                    in_layers = true;
                    first = if layer == 0 { first.saturating_add(elements) } else { first };
                }
                None if in_layers => after = after.saturating_add(elements),
                None => before = before.saturating_add(elements),
            }
        }
        let names = match config {
            Config::Decoder(decoder) => &decoder.labels.names,
            Config::Encoder(encoder) => &encoder.labels.names,
        };
        let labels = (task == Task::SequenceClassification).then_some(names.len());
        Self {
            embedding_parameters: before,
            layer_parameters: first,
            head_parameters: after,
            tied: shape.tied && labels.is_none(),
            labels,
            ..shape
        }
    }
}

/// The number of the layer in a tensor's name.
fn layer_of(tensor: &str) -> Option<usize> {
    tensor.split('.').find_map(|part| part.parse().ok())
}

fn decoder_shape(name: &str, config: &DecoderConfig) -> ModelShape {
    ModelShape {
        name: name.to_owned(),
        vocabulary: config.vocab_size,
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        windows: config.layers.iter().map(|layer| layer.window).collect(),
        gated: config.gated_mlp,
        causal: true,
        tied: config.tied_embeddings,
        embedding_parameters: 0,
        layer_parameters: 0,
        idle_parameters: 0,
        head_parameters: 0,
        most_positions: config.max_positions,
        labels: None,
        counts: Vec::new(),
        note: None,
    }
}

fn encoder_shape(name: &str, config: &EncoderConfig) -> ModelShape {
    ModelShape {
        name: name.to_owned(),
        vocabulary: config.vocab_size,
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        heads: config.heads,
        kv_heads: config.heads,
        head_dim: config.hidden_size / config.heads.max(1),
        windows: vec![None; config.layers],
        gated: false,
        causal: false,
        tied: true,
        embedding_parameters: 0,
        layer_parameters: 0,
        idle_parameters: 0,
        head_parameters: 0,
        most_positions: config.max_positions,
        labels: None,
        counts: Vec::new(),
        note: None,
    }
}
