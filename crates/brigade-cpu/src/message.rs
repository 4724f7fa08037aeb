//! Messages between stages as bytes.
//!
//! The tensors' bytes stand one after the other; a description of each follows, then its length. The payload comes
//! first so that a message of one tensor becomes that tensor without a copy.

use brigade_core::{Error, Message, Part, Result};
use burn::tensor::{Bytes, DType, Device, Int, Tensor, TensorData};

/// Types that travel, by their number in a description.
const TYPES: [DType; 8] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::I8];

/// The number of a part that does not exist.
const ABSENT: u8 = u8::MAX;

/// Bytes of a length at the end.
const LENGTH: usize = size_of::<u32>();

/// A description's most dimensions.
const MOST_DIMENSIONS: usize = 16;

pub(crate) fn encode(message: Message) -> Result<Vec<u8>> {
    let payload = message.iter().flatten().map(Part::bytes).sum::<usize>();
    let mut bytes = Vec::with_capacity(payload + message.len() * (2 + 8 * MOST_DIMENSIONS) + LENGTH);
    let mut description = Vec::new();
    for part in message {
        let (data, shape) = match part {
            None => {
                description.push(ABSENT);
                continue;
            }
            Some(Part::Float(flat, shape)) => (flat.try_into_data(), shape),
            Some(Part::Int(flat, shape)) => (flat.try_into_data(), shape),
        };
        let data = data.map_err(|error| Error::Device(error.to_string()))?;
        let number = TYPES.iter().position(|dtype| *dtype == data.dtype());
        let number = number.ok_or_else(|| {
            Error::Device(format!("tensors of {:?} do not travel between stages", data.dtype()))
        })?;
        description.extend([number as u8, shape.len() as u8]);
        shape.iter().for_each(|size| description.extend((*size as u64).to_le_bytes()));
        bytes.extend_from_slice(data.as_bytes());
    }
    bytes.extend_from_slice(&description);
    bytes.extend_from_slice(&(description.len() as u32).to_le_bytes());
    Ok(bytes)
}

pub(crate) fn decode(mut bytes: Vec<u8>, device: &Device) -> Result<Message> {
    let descriptions = describe(&bytes).ok_or_else(|| {
        Error::collective(format!("a message of {} bytes between stages is damaged", bytes.len()))
    })?;
    let payload: usize = descriptions.iter().flatten().map(Description::bytes).sum();
    bytes.truncate(payload);
    let mut rest = bytes;
    let mut message = Vec::with_capacity(descriptions.len());
    for description in descriptions {
        message.push(description.map(|description| {
            let after = rest.split_off(description.bytes());
            description.part(std::mem::replace(&mut rest, after), device)
        }));
    }
    Ok(message)
}

struct Description {
    dtype: DType,
    shape: Vec<usize>,
}

impl Description {
    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    fn part(self, bytes: Vec<u8>, device: &Device) -> Part {
        let Self { dtype, shape } = self;
        let length = shape.iter().product::<usize>();
        let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), [length], dtype);
        if matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
            Part::Float(Tensor::from_data(data, (device, dtype)), shape)
        } else {
            Part::Int(Tensor::<1, Int>::from_data(data, (device, dtype)), shape)
        }
    }
}

/// The parts of a message; none if it is damaged.
fn describe(bytes: &[u8]) -> Option<Vec<Option<Description>>> {
    let (before, length) = bytes.split_last_chunk::<LENGTH>()?;
    let start = before.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
    let (payload, mut rest) = before.split_at(start);
    let mut parts = Vec::new();
    let mut total = 0usize;
    while let Some((number, after)) = rest.split_first() {
        rest = after;
        if *number == ABSENT {
            parts.push(None);
            continue;
        }
        let dtype = *TYPES.get(usize::from(*number))?;
        let (dimensions, after) = rest.split_first()?;
        let dimensions = usize::from(*dimensions);
        if dimensions > MOST_DIMENSIONS || after.len() < 8 * dimensions {
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
        let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))?;
        total = total.checked_add(elements.checked_mul(dtype.size())?)?;
        parts.push(Some(Description { dtype, shape }));
    }
    (total == payload.len()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(message: &Message) -> Vec<Option<(Vec<usize>, TensorData)>> {
        let part = |part: &Part| match part {
            Part::Float(flat, shape) => (shape.clone(), flat.clone().into_data()),
            Part::Int(flat, shape) => (shape.clone(), flat.clone().into_data()),
        };
        message.iter().map(|found| found.as_ref().map(part)).collect()
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
        for message in [sample(), vec![], vec![None], sample()[..1].to_vec()] {
            let back = decode(encode(message.clone()).unwrap(), &Device::flex()).unwrap();
            let (back, message) = (shown(&back), shown(&message));
            assert_eq!(back.len(), message.len());
            for (back, sent) in back.iter().zip(&message) {
                let bytes = |part: &Option<(Vec<usize>, TensorData)>| {
                    part.as_ref().map(|(shape, data)| (shape.clone(), data.dtype(), data.as_bytes().to_vec()))
                };
                assert_eq!(bytes(back), bytes(sent));
            }
        }
    }

    proptest! {
        #[test]
        fn damaged_messages_are_refused_not_misread(
            cut in 1usize..100, place in any::<prop::sample::Index>(), value in any::<u8>(),
        ) {
            let whole = encode(sample()).unwrap();
            prop_assert!(decode(whole[cut.min(whole.len())..].to_vec(), &Device::flex()).is_err());
            let mut changed = whole;
            let place = place.index(changed.len());
            changed[place] = value;
            drop(decode(changed, &Device::flex()));
        }

        #[test]
        fn any_bytes_end_in_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            drop(decode(bytes, &Device::flex()));
        }
    }
}
