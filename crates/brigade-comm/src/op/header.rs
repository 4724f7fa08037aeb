//! The header that starts an operation's bytes on each link, so that the ranks can compare their calls.

use crate::op::call::{Call, OpType};
use crate::op::dtype::{DType, ReduceOp};

/// Version of the messages between ranks. Ranks of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 10;

/// Bytes of a header on the wire. Also the unit to which the messages of one operation are padded.
pub const HEADER_BYTES: usize = 64;

const MAGIC: u32 = 0x4252_4744;
const NO_ROOT: u32 = u32::MAX;

/// Encodes the header that starts an operation's bytes on each link.
pub fn encode(group: u64, call: &Call) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..8].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    header[8..16].copy_from_slice(&group.to_le_bytes());
    header[16..24].copy_from_slice(&call.sequence.to_le_bytes());
    header[24..32].copy_from_slice(&call.bytes.to_le_bytes());
    header[32..36].copy_from_slice(&call.root.map_or(NO_ROOT, |root| root as u32).to_le_bytes());
    header[36] = call.operation as u8;
    header[37] = call.dtype as u8;
    header[38] = call.reduce.map_or(0, |reduce| reduce as u8);
    header
}

/// Decodes a header into its group and call.
///
/// # Errors
/// What is wrong with it, in words.
pub fn decode(header: &[u8; HEADER_BYTES]) -> Result<(u64, Call), String> {
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if word(0) != MAGIC {
        return Err(format!("a header starts with {:#010x} instead of {MAGIC:#010x}", word(0)));
    }
    if word(4) != PROTOCOL_VERSION {
        return Err(format!(
            "a header has protocol version {}, but this rank speaks {PROTOCOL_VERSION}",
            word(4)
        ));
    }
    let operation = OpType::ALL.into_iter().find(|operation| *operation as u8 == header[36]);
    let operation =
        operation.ok_or_else(|| format!("a header names the unknown operation {}", header[36]))?;
    let dtype = DType::from_wire(header[37])
        .ok_or_else(|| format!("a header names the unknown element type {}", header[37]))?;
    let reduce = match header[38] {
        0 => None,
        code => Some(
            ReduceOp::from_wire(code)
                .ok_or_else(|| format!("a header names the unknown reduction {code}"))?,
        ),
    };
    let root = (word(32) != NO_ROOT).then_some(word(32) as usize);
    Ok((long(8), Call { operation, sequence: long(16), dtype, reduce, root, bytes: long(24) }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let call = Call {
            operation: OpType::Broadcast,
            sequence: 1 << 40,
            dtype: DType::Bf16,
            reduce: None,
            root: Some(3),
            bytes: 12,
        };
        assert_eq!(decode(&encode(77, &call)), Ok((77, call)));
        let call = Call { reduce: Some(ReduceOp::Max), root: None, ..call };
        assert_eq!(decode(&encode(u64::MAX, &call)), Ok((u64::MAX, call)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_an_error_or_a_call(
            mut bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES),
            genuine in any::<bool>(),
        ) {
            if genuine {
                bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[4..8].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
            }
            let header: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
            if let Ok((group, call)) = decode(&header) {
                prop_assert_eq!(&encode(group, &call)[..39], &header[..39]);
            }
        }
    }
}
