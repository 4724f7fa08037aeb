//! What workers and servers tell each other in a round.
//!
//! A message begins with a part of numbers, and the shards of parameters or gradients follow, one part for each unit. A number is
//! four parts of 16 bits, each of which is exact in fp32, so that it travels like any tensor, from and to any device.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::dist::Message;
use crate::error::{Error, Result};
use crate::model::activation::Part;
use crate::step::strategy::async_server::flat;

/// Parts of a number.
const PARTS: usize = 4;

/// What a worker wants of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Request {
    /// A share, and the server's parameters; of the first server.
    Share,
    /// The server's parameters.
    Parameters,
    /// An update by the gradients behind: its learning rate, which factor clips them, and whether it is to be left out.
    Update { learning_rate: f64, scale: f64, is_skipped: bool },
    /// Nothing any more in this round.
    Leave,
}

impl Request {
    /// The message, with parts behind.
    pub(super) fn with(self, parts: impl IntoIterator<Item = Option<Part>>, device: &Device) -> Message {
        let numbers = match self {
            Self::Share => [0, 0, 0, 0],
            Self::Parameters => [1, 0, 0, 0],
            Self::Update { learning_rate, scale, is_skipped } => {
                [2, learning_rate.to_bits(), scale.to_bits(), u64::from(is_skipped)]
            }
            Self::Leave => [3, 0, 0, 0],
        };
        message(&numbers, parts, device)
    }

    /// What a worker asked for, and the parts behind.
    pub(super) fn read(message: Message, from: usize) -> Result<(Self, Message)> {
        let (numbers, parts) = read::<4>(message, from)?;
        let request = match numbers {
            [0, ..] => Self::Share,
            [1, ..] => Self::Parameters,
            [2, learning_rate, scale, skipped] => Self::Update {
                learning_rate: f64::from_bits(learning_rate),
                scale: f64::from_bits(scale),
                is_skipped: skipped != 0,
            },
            [3, ..] => Self::Leave,
            _ => return Err(damaged(from)),
        };
        Ok((request, parts))
    }
}

/// The answer of a server: the share, if the worker asked for one and there is one, and parameters behind.
pub(super) fn answer(
    share: Option<u64>,
    parts: impl IntoIterator<Item = Option<Part>>,
    device: &Device,
) -> Message {
    message(&[u64::from(share.is_some()), share.unwrap_or(0)], parts, device)
}

/// What a server answered.
pub(super) fn read_answer(message: Message, from: usize) -> Result<(Option<u64>, Message)> {
    let ([is_there, share], parts) = read::<2>(message, from)?;
    Ok(((is_there != 0).then_some(share), parts))
}

fn message(numbers: &[u64], parts: impl IntoIterator<Item = Option<Part>>, device: &Device) -> Message {
    let parts_of = |number: &u64| [48, 32, 16, 0].map(|shift| f32::from((number >> shift) as u16));
    let numbers: Vec<f32> = numbers.iter().flat_map(parts_of).collect();
    let length = numbers.len();
    let head = Tensor::from_data(TensorData::new(numbers, [length]), (device, DType::F32));
    std::iter::once(Some(flat(head))).chain(parts).collect()
}

fn read<const N: usize>(mut message: Message, from: usize) -> Result<([u64; N], Message)> {
    if message.is_empty() {
        return Err(damaged(from));
    }
    let parts = message.split_off(1);
    let Some(Some(Part::Float(head, _))) = message.pop() else { return Err(damaged(from)) };
    let head = head.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))?;
    if head.len() != PARTS * N {
        return Err(damaged(from));
    }
    let number = |index: usize| {
        let parts = head[PARTS * index..][..PARTS].iter();
        parts.fold(0, |before, part| before << 16 | u64::from(*part as u16))
    };
    Ok((std::array::from_fn(number), parts))
}

fn damaged(from: usize) -> Error {
    Error::Model(format!("rank {from} sent something that is not a message of a worker or a server"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn numbers_come_back_with_every_bit() {
        let device = Device::default();
        for (learning_rate, scale) in [(1e-3, 1.0), (0.1 / 3.0, f64::MIN_POSITIVE), (0.0, -1e300)] {
            for is_skipped in [false, true] {
                let request = Request::Update { learning_rate, scale, is_skipped };
                let (back, parts) = Request::read(request.with([None], &device), 3).unwrap();
                assert_eq!((back, parts.len()), (request, 1));
            }
        }
        for request in [Request::Share, Request::Parameters, Request::Leave] {
            assert_eq!(Request::read(request.with([], &device), 3).unwrap().0, request);
        }
        for share in [None, Some(0), Some(u64::MAX)] {
            assert_eq!(read_answer(answer(share, [], &device), 1).unwrap().0, share);
        }
    }

    #[test]
    fn other_messages_are_refused_with_the_rank_that_sent_them() {
        let device = Device::default();
        let other = message(&[9, 0, 0, 0], [], &device);
        for message in [Vec::new(), vec![None], answer(None, [], &device), other] {
            let told = Request::read(message, 3).unwrap_err().to_string();
            assert!(told.contains("rank 3"), "{told}");
        }
    }
}
