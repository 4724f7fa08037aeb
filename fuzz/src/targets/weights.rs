//! What `brigade generate` reads: the shape of a model, and its weights.

use std::io::Write;

use brigade::models::gpt::{self, GptConfig};
use brigade::models::save_safetensors;
use brigade::{CachedText, LanguageModel};
use tempfile::NamedTempFile;

use crate::target::{Bound, Limit, Target, bare};

/// A shape as JSON on the first line, and a file of weights.
///
/// Counted as parsed: the model can be asked. Bound: a model of a wrong shape has its blocks before it is compared with the
/// file, without their values.
pub const WEIGHTS: Target = Target {
    name: "weights",
    run: |input| {
        asked(input);
    },
    parsed: |input| asked(input).is_some(),
    bound: Bound {
        peak: Limit { fixed: 64 << 20, per_byte: 256 },
        total: Limit { fixed: 256 << 20, per_byte: 4096 },
    },
    payloads: || SHAPES.iter().filter_map(|shape| payload(shape)).collect(),
    envelope: bare,
};

const SHAPES: [&str; 2] = [
    r#"{"vocabulary":5,"sequence_length":3,"width":4,"layers":1,"heads":2,"tied_head":true,"activation":"gelu"}"#,
    r#"{"vocabulary":3,"sequence_length":2,"width":2,"layers":2,"heads":1,"tied_head":false,"activation":"gelu_tanh"}"#,
];

fn payload(shape: &str) -> Option<Vec<u8>> {
    let config: GptConfig = serde_json::from_str(shape).ok()?;
    let mut chain = config.chain(1, &brigade_cpu::device()).ok()?;
    chain.initialize(1).ok()?;
    let file = NamedTempFile::new().ok()?;
    save_safetensors(file.path(), &chain.tensors().ok()?, &gpt::mapping()).ok()?;
    Some([shape.as_bytes(), b"\n", &std::fs::read(file.path()).ok()?].concat())
}

/// The model's scores.
fn asked(input: &[u8]) -> Option<Vec<f32>> {
    let line = input.iter().position(|byte| *byte == b'\n')?;
    let shape: GptConfig = serde_json::from_slice(&input[..line]).ok()?;
    let mut file = NamedTempFile::new().ok()?;
    file.write_all(&input[line + 1..]).ok()?;
    let mut model = LanguageModel::load(&shape.into(), &[file.path()], &gpt::mapping()).ok()?;
    model.next_token(&mut CachedText::default(), &[0, 1, 70_000], |_| Ok(0)).err()?;
    let mut scores = Vec::new();
    let choose = |logits: &[f32]| {
        scores = logits.to_vec();
        Ok(0)
    };
    model.next_token(&mut CachedText::default(), &[0, 1], choose).ok()?;
    Some(scores)
}
