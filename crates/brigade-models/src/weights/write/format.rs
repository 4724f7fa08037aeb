//! In which form weights are written.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

/// The number type of written weights, and the size of files that they are cut into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightsFormat {
    /// The type of all numbers.
    pub dtype: WeightsDtype,
    /// The most bytes of tensors in a file.
    pub max_shard_size: ShardSize,
}

impl WeightsFormat {
    /// One file in fp32, however large.
    pub const ONE_FILE: Self = Self { dtype: WeightsDtype::Fp32, max_shard_size: ShardSize(u64::MAX) };
}

/// The type of the numbers in a file of weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WeightsDtype {
    /// 32 bits, as training has them.
    #[default]
    Fp32,
    /// 16 bits with the range of fp32; rounded to the nearest, ties to even.
    Bf16,
    /// 16 bits up to 65504; rounded to the nearest, ties to even.
    Fp16,
}

impl WeightsDtype {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        if self == Self::Fp32 { 4 } else { 2 }
    }

    /// The name of the type in `torch` and in `config.json`.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::Fp32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::Fp16 => "float16",
        }
    }

    pub(crate) fn in_safetensors(self) -> Dtype {
        match self {
            Self::Fp32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
            Self::Fp16 => Dtype::F16,
        }
    }

    /// The bytes of numbers, little-endian.
    pub(crate) fn encoded(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::Fp32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
            Self::Fp16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        }
    }

    /// A number that the type has no value for, if there is one.
    pub(crate) fn not_held(self, values: &[f32]) -> Option<f32> {
        let is_lost = |value: &&f32| value.is_finite() && f16::from_f32(**value).is_infinite();
        values.iter().find(|value| self == Self::Fp16 && is_lost(value)).copied()
    }
}

impl fmt::Display for WeightsDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

impl FromStr for WeightsDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Fp32, Self::Bf16, Self::Fp16];
        let name = if text == "f32" { "fp32" } else { text };
        let found = all.into_iter().find(|number| number.to_string() == name);
        found.ok_or_else(|| "it must be fp32, bf16 or fp16".into())
    }
}

/// Units of sizes: powers of 1000 as `transformers` has them, and of 1024.
const UNITS: [(&str, u64); 6] = [
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

/// The most bytes of tensors in a file; a larger tensor has a file of its own. As text: `5GB`, `500MB`, `2GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShardSize(pub u64);

impl Default for ShardSize {
    fn default() -> Self {
        Self(5_000_000_000)
    }
}

impl fmt::Display for ShardSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.into_iter().find(|(_, size)| self.0.is_multiple_of(*size)) {
            Some((unit, size)) => write!(f, "{}{unit}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for ShardSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
        let unit = text[digits.len()..].trim();
        let size = match unit {
            "" => Some(1),
            unit => UNITS.into_iter().find(|(name, _)| *name == unit).map(|(_, size)| size),
        };
        let bytes = digits.parse::<u64>().ok().zip(size).and_then(|(number, size)| number.checked_mul(size));
        let bytes = bytes.filter(|bytes| *bytes > 0);
        bytes
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a file size: give one like 5GB, 500MB or 2GiB"))
    }
}

impl TryFrom<String> for ShardSize {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ShardSize> for String {
    fn from(size: ShardSize) -> Self {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sizes_are_texts_with_units() {
        for (text, bytes) in [("5GB", 5_000_000_000), ("3MiB", 3 << 20), ("60KB", 60_000), ("17", 17)] {
            let size: ShardSize = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, text));
        }
        assert_eq!("1000 MB".parse::<ShardSize>().unwrap().to_string(), "1GB");
        assert_eq!(ShardSize::default().to_string(), "5GB");
        for wrong in ["", "GB", "0", "0MB", "5 TB", "1.5GB", "-1GB", "99999999999999GB"] {
            assert!(wrong.parse::<ShardSize>().unwrap_err().contains("like 5GB"), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        let values = [1.0, 1.0 + 1.0 / 256.0, -65519.0, f32::INFINITY];
        let bf16: Vec<u8> =
            [0x3f80u16, 0x3f80, 0xc780, 0x7f80].into_iter().flat_map(u16::to_le_bytes).collect();
        let fp16: Vec<u8> =
            [0x3c00u16, 0x3c04, 0xfbff, 0x7c00].into_iter().flat_map(u16::to_le_bytes).collect();
        assert_eq!(WeightsDtype::Bf16.encoded(&values), bf16);
        assert_eq!(WeightsDtype::Fp16.encoded(&values), fp16);
        assert_eq!(WeightsDtype::Fp16.not_held(&values), None);
        assert_eq!(WeightsDtype::Fp16.not_held(&[1.0, 65520.0]), Some(65520.0));
        assert_eq!(WeightsDtype::Bf16.not_held(&[65520.0]), None);
        assert_eq!("bf16".parse(), Ok(WeightsDtype::Bf16));
        assert!("int8".parse::<WeightsDtype>().is_err());
    }
}
