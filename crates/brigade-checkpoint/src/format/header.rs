//! The header of a safetensors file: 8 bytes with the length of a JSON object, then the object.
//!
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::fmt;

use brigade_sorted::SortedSet;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::manifest::ItemMetadata;

/// Bytes of the length in front of the JSON object.
pub(crate) const PREFIX: usize = 8;

/// Largest JSON object, in bytes: what readers of the format accept.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The key that holds free text instead of a tensor.
const METADATA: &str = "__metadata__";

/// A tensor as a header describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    /// Name.
    pub name: String,
    /// Element type, such as `F32`.
    pub dtype: String,
    /// Size of each dimension.
    pub shape: Vec<u64>,
    /// First byte, and one past the last, counted from the end of the header.
    pub data_offsets: [u64; 2],
}

impl TensorInfo {
    /// The entry of an item in the header of a file whose data begin at byte `data`.
    pub fn of(item: &ItemMetadata, data: u64) -> Self {
        let begin = item.offset.saturating_sub(data);
        let elements = item.elements as u64;
        let data_offsets = [begin, begin.saturating_add(elements.saturating_mul(4))];
        let name = format!("{}/{}/{}", item.unit, item.slot, item.start);
        Self { name, dtype: "F32".into(), shape: vec![elements], data_offsets }
    }
}

/// The header of a file that contains `items` one after the other. Sets their offsets, counted from the start of the file.
///
/// The JSON object is padded with spaces, so that the data start at a multiple of 8.
pub(crate) fn write(items: &mut [ItemMetadata]) -> Vec<u8> {
    let mut header = vec![0; PREFIX];
    header.push(b'{');
    let mut begin = 0;
    for item in &mut *items {
        item.offset = begin;
        let TensorInfo { name, dtype, shape, data_offsets } = TensorInfo::of(item, 0);
        let comma = if begin == 0 { "" } else { "," };
        let name = serde_json::Value::String(name);
        let tensor = format!(
            "{comma}{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{},{}]}}",
            data_offsets[0], data_offsets[1]
        );
        header.extend_from_slice(tensor.as_bytes());
        begin = data_offsets[1];
    }
    header.push(b'}');
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() - PREFIX) as u64;
    header[..PREFIX].copy_from_slice(&length.to_le_bytes());
    for item in items {
        item.offset += header.len() as u64;
    }
    header
}

/// Length of the JSON object, from the file's first 8 bytes and its size.
pub(crate) fn length(prefix: [u8; PREFIX], file_bytes: u64) -> Result<usize, String> {
    let length = u64::from_le_bytes(prefix);
    let most = MAX_HEADER_BYTES.min(file_bytes.saturating_sub(PREFIX as u64));
    if length > most {
        return Err(format!("the header claims {length} bytes, but at most {most} are possible"));
    }
    usize::try_from(length).map_err(|_| format!("a header of {length} bytes does not fit into memory"))
}

/// The tensors of a header's JSON object, by their offset; `data_bytes` is the size of the data after it.
pub(crate) fn parse(json: &[u8], data_bytes: u64) -> Result<Vec<TensorInfo>, String> {
    let TensorInfos(mut tensors) =
        serde_json::from_slice(json).map_err(|error| format!("header: {error}"))?;
    tensors.sort_by_key(|tensor| tensor.data_offsets);
    let mut next = 0;
    for TensorInfo { name, dtype, shape, data_offsets } in &tensors {
        let size = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let bytes =
            size.and_then(|size| size.checked_mul(4)).and_then(|bytes| bytes.checked_add(data_offsets[0]));
        if dtype != "F32" || bytes != Some(data_offsets[1]) || data_offsets[0] != next {
            return Err(format!(
                "header: {name:?} ({dtype}, shape {shape:?}) cannot be at bytes {}..{} after byte {next}",
                data_offsets[0], data_offsets[1]
            ));
        }
        next = data_offsets[1];
    }
    if next != data_bytes {
        return Err(format!("header: its tensors take {next} bytes, but the file holds {data_bytes}"));
    }
    Ok(tensors)
}

/// A header's JSON object; a duplicate name is an error.
struct TensorInfos(Vec<TensorInfo>);

impl<'de> Deserialize<'de> for TensorInfos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TensorInfosVisitor)
    }
}

struct TensorInfosVisitor;

impl<'de> Visitor<'de> for TensorInfosVisitor {
    type Value = TensorInfos;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorInfos, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            dtype: String,
            shape: Vec<u64>,
            data_offsets: [u64; 2],
        }
        let mut names = SortedSet::new();
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("{name:?} appears twice")));
            }
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
            } else {
                let Entry { dtype, shape, data_offsets } = map.next_value()?;
                tensors.push(TensorInfo { name, dtype, shape, data_offsets });
            }
        }
        Ok(TensorInfos(tensors))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(unit: &str, start: usize, elements: usize) -> ItemMetadata {
        ItemMetadata { unit: unit.into(), slot: "parameters".into(), start, elements, offset: 0 }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(names in prop::collection::vec("\\PC{1,12}", 0..6), sizes: [u8; 6]) {
            let mut items: Vec<_> = names
                .iter()
                .zip(sizes)
                .enumerate()
                .map(|(start, (name, size))| item(name, start, usize::from(size) + 1))
                .collect();
            let header = write(&mut items);
            let data: usize = items.iter().map(|item| item.elements * 4).sum();
            let file = header.len() + data;
            let prefix = header[..PREFIX].try_into().unwrap();
            prop_assert_eq!(length(prefix, file as u64), Ok(header.len() - PREFIX));
            let expected: Vec<_> =
                items.iter().map(|item| TensorInfo::of(item, header.len() as u64)).collect();
            prop_assert_eq!(parse(&header[PREFIX..], data as u64), Ok(expected));
            prop_assert_eq!(header.len() % 8, 0);
        }
    }

    #[test]
    fn contradictions_are_errors() {
        assert!(length(u64::MAX.to_le_bytes(), 1 << 40).is_err());
        assert!(length(9u64.to_le_bytes(), 16).is_err());
        let tensor = |dtype: &str, shape: &str, begin: u64, end: u64| {
            format!("{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}}}")
        };
        assert!(parse(tensor("F32", "[2]", 0, 8).as_bytes(), 8).is_ok());
        for (json, bytes) in [
            (tensor("F16", "[2]", 0, 8), 8),
            (tensor("F32", "[3]", 0, 8), 8),
            (tensor("F32", "[18446744073709551615,2]", 0, 8), 8),
            (tensor("F32", "[2]", 4, 12), 12),
            (tensor("F32", "[2]", 0, 8), 12),
            (r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#.into(), 0),
            ("[]".into(), 0),
        ] {
            assert!(parse(json.as_bytes(), bytes).is_err(), "{json}");
        }
    }
}
