//! Files of weights, taken apart and put together again.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// A tensor's type, shape and bytes.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Without values.
    pub fn empty() -> Self {
        Self { dtype: "F32".into(), shape: vec![0], bytes: Vec::new() }
    }

    /// With the first rows alone.
    pub fn first_rows(&self, rows: usize) -> Self {
        let bytes = self.bytes[..self.bytes.len() / self.shape[0] * rows].to_vec();
        Self { shape: [&[rows], &self.shape[1..]].concat(), bytes, ..self.clone() }
    }

    pub fn floats(&self) -> Vec<f32> {
        self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

pub type Tensors = BTreeMap<String, Tensor>;

pub fn read(path: &Path) -> Tensors {
    let all = std::fs::read(path).unwrap();
    let (length, rest) = all.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let tensor = |about: Value| Tensor {
        dtype: about["dtype"].as_str().unwrap().to_owned(),
        shape: about["shape"].as_array().unwrap().iter().map(number).collect(),
        bytes: data[number(&about["data_offsets"][0])..number(&about["data_offsets"][1])].to_vec(),
    };
    tensors.map(|(name, about)| (name, tensor(about))).collect()
}

pub fn write(path: &Path, tensors: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, Tensor { dtype, shape, bytes }) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend_from_slice(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes(), &header[..], &data].concat()).unwrap();
}
