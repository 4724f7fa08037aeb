//! Units: named flat buffers of `f32`, with their arrays and scalars.

use std::fmt;

use brigade_sorted::SortedMap;
use serde::de::{Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// The slot that holds a unit's parameters (or their fp32 masters).
pub const PARAMETERS: &str = "parameters";

/// One parameter inside a unit's flat buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterMetadata {
    /// Full path in the model, unique in the checkpoint.
    pub name: String,
    /// Size of each dimension; empty for one value.
    pub shape: Vec<usize>,
    /// Offset of its first element in the flat buffer.
    pub start: usize,
}

impl ParameterMetadata {
    /// Number of elements; `None` when it exceeds `usize`.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
    }
}

/// A named flat buffer, its arrays of that length, and its scalars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitMetadata {
    /// Name, unique in the checkpoint; not empty, no control characters.
    pub name: String,
    /// Length of each of its slots, in elements. Elements that belong to no parameter are stored, too.
    pub elements: usize,
    /// Whether training changes it.
    pub trainable: bool,
    /// The parameters by `start`; they do not overlap.
    pub parameters: Vec<ParameterMetadata>,
    /// Names of its arrays: [`PARAMETERS`], and those of the optimizer's state. No name contains `/`.
    pub slots: Vec<String>,
    /// Numbers of the optimizer's state, such as its step count.
    #[serde(default)]
    pub scalars: SortedMap<String, Scalar>,
}

/// A number that is read back with the same bits.
///
/// In JSON a float has a point or an exponent, and an integer has neither. NaN and infinities, for which JSON has no number, are
/// written as their 64 bits: `"0x7ff8000000000000"`.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
}

impl PartialEq for Scalar {
    /// Floats are equal when their bits are.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::Float(value) if value.is_finite() => serializer.serialize_f64(*value),
            Self::Float(value) => serializer.collect_str(&format_args!("{:#018x}", value.to_bits())),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of 64 bits")
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Int(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Scalar, E> {
        i64::try_from(value)
            .map(Scalar::Int)
            .map_err(|_| E::custom(format_args!("{value} does not fit 64 bits")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Scalar, E> {
        let bits = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        bits.map(|bits| Scalar::Float(f64::from_bits(bits)))
            .ok_or_else(|| E::custom(format_args!("{text:?} is not the bits of a float")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round(scalar: Scalar) -> Scalar {
        serde_json::from_str(&serde_json::to_string(&scalar).unwrap()).unwrap()
    }

    #[test]
    fn special_numbers_keep_their_kind_and_bits() {
        for value in [0.0, -0.0, 1.0, 1e300, -1e16, f64::MIN_POSITIVE / 3.0, f64::NAN, f64::INFINITY] {
            assert_eq!(round(Scalar::Float(value)), Scalar::Float(value));
        }
        for value in [0, -1, i64::MIN, i64::MAX] {
            assert_eq!(round(Scalar::Int(value)), Scalar::Int(value));
        }
        assert!(serde_json::from_str::<Scalar>("18446744073709551615").is_err());
    }

    proptest! {
        #[test]
        fn every_float_keeps_its_bits(bits: u64) {
            let scalar = Scalar::Float(f64::from_bits(bits));
            prop_assert_eq!(round(scalar), scalar);
        }
    }
}
