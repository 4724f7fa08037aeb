//! Weights cut into several files.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{FILE, INDEX};
use crate::config::write_object;
use crate::error::HfError;
use crate::tensors::TensorShape;

/// A file of weights, and what is to be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its name in the folder.
    pub file: String,
    /// Its tensors.
    pub tensors: Vec<TensorShape>,
}

/// `model.safetensors.index.json`: in which file each tensor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    fields: Map<String, Value>,
}

/// Cuts tensors into files of at most `max_bytes` each, in their order; a larger tensor gets a file of its own. One file is
/// `model.safetensors`; several have numbers and an index, as `transformers` writes them. `element_bytes` is the size of a number.
pub fn shards(
    tensors: &[TensorShape],
    element_bytes: u64,
    max_bytes: u64,
) -> (Vec<Shard>, Option<ShardIndex>) {
    let elements =
        |shape: &[usize]| shape.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
    let (mut parts, mut bytes): (Vec<Vec<TensorShape>>, u64) = (vec![Vec::new()], 0);
    for tensor in tensors {
        let size = elements(&tensor.1).saturating_mul(element_bytes);
        let last = parts.len() - 1;
        if !parts[last].is_empty() && bytes.saturating_add(size) > max_bytes {
            parts.push(vec![tensor.clone()]);
            bytes = size;
        } else {
            parts[last].push(tensor.clone());
            bytes = bytes.saturating_add(size);
        }
    }
    let count = parts.len();
    let file = |index: usize| match count {
        1 => FILE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    };
    let parts = parts.into_iter().enumerate();
    let shards: Vec<_> = parts.map(|(index, tensors)| Shard { file: file(index), tensors }).collect();
    if count == 1 {
        return (shards, None);
    }
    let parameters = tensors.iter().fold(0u64, |sum, (_, shape)| sum.saturating_add(elements(shape)));
    let files = shards
        .iter()
        .flat_map(|shard| shard.tensors.iter().map(|(name, _)| (name.clone(), json!(shard.file))));
    let mut fields = Map::new();
    let total = parameters.saturating_mul(element_bytes);
    fields.insert("metadata".into(), json!({ "total_parameters": parameters, "total_size": total }));
    fields.insert("weight_map".into(), Value::Object(files.collect()));
    (shards, Some(ShardIndex { fields }))
}

impl ShardIndex {
    /// Its fields.
    pub fn to_fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// Writes it beside the files, which should be there before: what finds it looks for them.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), HfError> {
        write_object(&folder.join(INDEX), self.fields.clone())
    }
}
