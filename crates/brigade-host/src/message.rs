//! Messages between stages as bytes.
//!
//! The tensors' bytes come one after the other, then a description of each tensor, then the description's length. The payload
//! comes first, so that a message of one tensor becomes that tensor without a copy.

use brigade_core::{Error, Message, Part, Result};
use burn::tensor::{DType, Device};

use crate::copies::Copier;

/// The element types that can be sent, by their number in a description.
const TYPES: [DType; 8] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::I8];

/// The number of a part that does not exist.
const ABSENT: u8 = u8::MAX;

/// Bytes of the length at the end.
const LENGTH: usize = size_of::<u32>();

/// The most dimensions that a description can have.
const MAX_DIMENSIONS: usize = 16;

/// A message as bytes.
///
/// # Errors
/// If a tensor cannot be read from its device, or is of a type that cannot be sent.
pub(crate) fn encode(message: Message, copier: &Copier) -> Result<Vec<u8>> {
    let description = describe(&message)?;
    let payload = message.iter().flatten().map(Part::bytes).sum::<usize>();
    let mut bytes = Vec::with_capacity(payload + description.len());
    for part in message.into_iter().flatten() {
        bytes.extend_from_slice(&copier.part_to_host(part)?);
    }
    bytes.extend_from_slice(&description);
    Ok(bytes)
}

/// Decodes what [`encode`] made, into tensors of `device`.
///
/// # Errors
/// If the bytes are not a message.
pub(crate) fn decode(mut bytes: Vec<u8>, device: &Device, copier: &Copier) -> Result<Message> {
    let (descriptions, payload) = read(&bytes)
        .filter(|(parts, payload)| total(parts) == Some(*payload))
        .ok_or_else(|| damaged(&bytes))?;
    bytes.truncate(payload);
    let lengths: Vec<usize> = descriptions.iter().flatten().map(Description::bytes).collect();
    let mut parts = copier.memory_space.parts(bytes, &lengths).into_iter();
    let mut part = |is: Description| parts.next().map(|bytes| copier.part_to_device(bytes, is, device));
    Ok(descriptions.into_iter().map(|found| found.and_then(&mut part)).collect())
}

/// Describes a message's tensors without their values, for tensors whose values are sent by other means.
///
/// # Errors
/// If a tensor is of a type that cannot be sent.
pub fn describe(message: &Message) -> Result<Vec<u8>> {
    let mut description = Vec::with_capacity(message.len() * (2 + 8 * MAX_DIMENSIONS) + LENGTH);
    for part in message {
        let (dtype, shape) = match part {
            None => {
                description.push(ABSENT);
                continue;
            }
            Some(Part::Float(flat, shape)) => (flat.dtype(), shape),
            Some(Part::Int(flat, shape)) => (flat.dtype(), shape),
        };
        let number = TYPES.iter().position(|travels| *travels == dtype);
        let number = number
            .ok_or_else(|| Error::Device(format!("tensors of {dtype:?} cannot be sent between stages")))?;
        description.extend([number as u8, shape.len() as u8]);
        shape.iter().for_each(|size| description.extend((*size as u64).to_le_bytes()));
    }
    description.extend_from_slice(&(description.len() as u32).to_le_bytes());
    Ok(description)
}

/// What [`describe`] wrote.
///
/// # Errors
/// If it did not write these bytes.
pub fn described(bytes: &[u8]) -> Result<Vec<Option<Description>>> {
    read(bytes)
        .filter(|(parts, before)| *before == 0 && total(parts).is_some())
        .map(|(parts, _)| parts)
        .ok_or_else(|| damaged(bytes))
}

fn damaged(bytes: &[u8]) -> Error {
    Error::collective(format!("a message of {} bytes between stages is damaged", bytes.len()))
}

/// The type and shape of a tensor in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl Description {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of its values.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Whether its elements are floats.
    pub fn is_float(&self) -> bool {
        matches!(self.dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }
}

/// Bytes of the values of all parts; none if the number overflows.
fn total(parts: &[Option<Description>]) -> Option<usize> {
    parts.iter().flatten().try_fold(0usize, |total, part| {
        let elements = part.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))?;
        total.checked_add(elements.checked_mul(part.dtype.size())?)
    })
}

/// The parts that the end of `bytes` describes, and the number of bytes before it; none if it is damaged.
fn read(bytes: &[u8]) -> Option<(Vec<Option<Description>>, usize)> {
    let (before, length) = bytes.split_last_chunk::<LENGTH>()?;
    let start = before.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
    let mut rest = &before[start..];
    let mut parts = Vec::new();
    while let Some((number, after)) = rest.split_first() {
        rest = after;
        if *number == ABSENT {
            parts.push(None);
            continue;
        }
        let dtype = *TYPES.get(usize::from(*number))?;
        let (dimensions, after) = rest.split_first()?;
        let dimensions = usize::from(*dimensions);
        if dimensions > MAX_DIMENSIONS || after.len() < 8 * dimensions {
            return None;
        }
        let (sizes, after) = after.split_at(8 * dimensions);
        rest = after;
        let shape: Vec<usize> = sizes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|size| usize::try_from(u64::from_le_bytes(*size)).ok())
            .collect::<Option<_>>()?;
        parts.push(Some(Description { dtype, shape }));
    }
    Some((parts, start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemorySpace;
    use burn::tensor::{Tensor, TensorData};
    use proptest::prelude::*;

    fn shown(message: &Message) -> Vec<Option<(Vec<usize>, TensorData)>> {
        let part = |part: &Part| match part {
            Part::Float(flat, shape) => (shape.clone(), flat.clone().into_data()),
            Part::Int(flat, shape) => (shape.clone(), flat.clone().into_data()),
        };
        message.iter().map(|found| found.as_ref().map(part)).collect()
    }

    fn encode(message: Message) -> Result<Vec<u8>> {
        super::encode(message, &Copier::new(MemorySpace::Host))
    }

    fn decode(bytes: Vec<u8>, memory_space: MemorySpace) -> Result<Message> {
        super::decode(bytes, &Device::flex(), &Copier::new(memory_space))
    }

    fn sample() -> Message {
        let device = Device::flex();
        vec![
            Some(Part::Float(Tensor::from_floats([1.0, -0.0, f32::NAN, 4.0, 5.0, 6.0], &device), vec![2, 3])),
            None,
            Some(Part::Int(Tensor::from_ints([7, 8], &device), vec![2])),
            Some(Part::Float(
                Tensor::from_floats([0.5], &device).cast(burn::tensor::FloatDType::BF16),
                vec![1, 1],
            )),
            Some(Part::Float(Tensor::zeros([0], &device), vec![0, 4])),
        ]
    }

    #[test]
    fn a_message_comes_back_bit_by_bit() {
        let messages = [sample(), vec![], vec![None], sample()[..1].to_vec()];
        let memory_spaces = [MemorySpace::Host, MemorySpace::DEVICE];
        for (message, memory_space) in
            messages.iter().flat_map(|message| memory_spaces.map(|to| (message, to)))
        {
            let back = decode(encode(message.clone()).unwrap(), memory_space).unwrap();
            let (back, message) = (shown(&back), shown(message));
            assert_eq!(back.len(), message.len());
            for (back, sent) in back.iter().zip(&message) {
                let bytes = |part: &Option<(Vec<usize>, TensorData)>| {
                    part.as_ref().map(|(shape, data)| (shape.clone(), data.dtype(), data.as_bytes().to_vec()))
                };
                assert_eq!(bytes(back), bytes(sent));
            }
        }
    }

    #[test]
    fn a_description_alone_says_what_is_to_come() {
        let message = sample();
        let parts = described(&describe(&message).unwrap()).unwrap();
        let shapes: Vec<_> = parts.iter().map(|part| part.as_ref().map(|part| part.shape.clone())).collect();
        assert_eq!(shapes, [Some(vec![2, 3]), None, Some(vec![2]), Some(vec![1, 1]), Some(vec![0, 4])]);
        assert_eq!(parts[3].as_ref().map(Description::bytes), Some(2));
        assert!(described(&encode(message).unwrap()).is_err(), "values stand before it");
    }

    proptest! {
        #[test]
        fn damaged_messages_are_refused_not_misread(
            cut in 1usize..100, place in any::<prop::sample::Index>(), value in any::<u8>(),
        ) {
            let whole = encode(sample()).unwrap();
            prop_assert!(decode(whole[cut.min(whole.len())..].to_vec(), MemorySpace::Host).is_err());
            let mut changed = whole;
            let place = place.index(changed.len());
            changed[place] = value;
            // What is not refused is what stands there: no value, shape or type but those of the changed byte's own.
            if let Ok(message) = decode(changed.clone(), MemorySpace::Host) {
                prop_assert_eq!(encode(message).unwrap(), changed);
            }
        }

        #[test]
        fn any_bytes_end_in_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            drop(described(&bytes));
            drop(decode(bytes, MemorySpace::Host));
        }
    }
}
