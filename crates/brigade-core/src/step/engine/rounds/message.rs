//! What workers and servers tell each other in a round.
//!
//! A message begins with a part of numbers, and the shards of parameters or gradients follow, one part for each unit. A number is
//! four parts of 16 bits, each of which is exact in fp32, so that it travels like any tensor, from and to any device.

use std::time::Duration;

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::dist::{Message, Traffic};
use crate::error::{Error, Result};
use crate::metrics::{Clock, Memory};
use crate::model::activation::Part;
use crate::step::report::StepReport;
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

/// A share that a server gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Given {
    /// Its number: in the round, or in the whole run where workers are worlds of their own.
    pub number: u64,
    /// See [`Share::ahead`](super::Share::ahead).
    pub ahead: u64,
}

/// The answer of a server: the share, if the worker asked for one and there is one, and parameters behind.
pub(super) fn answer(
    share: Option<Given>,
    parts: impl IntoIterator<Item = Option<Part>>,
    device: &Device,
) -> Message {
    let numbers = share.map_or([0; 3], |share| [1, share.number, share.ahead]);
    message(&numbers, parts, device)
}

/// What a server answered.
pub(super) fn read_answer(message: Message, from: usize) -> Result<(Option<Given>, Message)> {
    let ([is_there, number, ahead], parts) = read::<3>(message, from)?;
    Ok(((is_there != 0).then_some(Given { number, ahead }), parts))
}

/// What a worker found in a share, as a part of a message.
pub(super) fn found(report: &StepReport, device: &Device) -> Option<Part> {
    let numbers = [report.loss, report.target_weight, report.targets as f64, report.grad_norm];
    let numbers: Vec<u64> =
        numbers.iter().chain(report.metrics.values()).map(|number| number.to_bits()).collect();
    numbers_part(&numbers, device)
}

/// What a worker found in a share of a step, with the metrics of these names.
pub(super) fn read_found(
    part: Option<Part>,
    (step, skipped): (u64, bool),
    names: &[String],
    from: usize,
) -> Result<StepReport> {
    let numbers: Vec<f64> = read_numbers(part, from)?.into_iter().map(f64::from_bits).collect();
    let mut names = names.to_vec();
    names.sort();
    let [loss, target_weight, targets, grad_norm, ref metrics @ ..] = numbers[..] else {
        return Err(damaged(from));
    };
    if metrics.len() != names.len() {
        return Err(damaged(from));
    }
    Ok(StepReport {
        step,
        loss,
        metrics: names.into_iter().zip(metrics.iter().copied()).collect(),
        grad_norm,
        targets: targets as u64,
        target_weight,
        skipped,
        outer: None,
        round: None,
        bubble: Duration::ZERO,
        in_flight: 0,
        memory: Memory::default(),
        clock: Clock::default(),
        traffic: Traffic::new(),
    })
}

/// What the first server tells the others of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RoundState {
    pub is_over: bool,
    /// How many pushes it has counted of each worker's connection, by its identity.
    pub pushes: Vec<(u64, u64)>,
}

impl RoundState {
    pub(super) fn message(&self, device: &Device) -> Message {
        let pushes = self.pushes.iter().flat_map(|(connection, count)| [*connection, *count]);
        let numbers: Vec<u64> = std::iter::once(u64::from(self.is_over)).chain(pushes).collect();
        vec![numbers_part(&numbers, device)]
    }

    pub(super) fn read(message: Message, from: usize) -> Result<Self> {
        let numbers = read_numbers(message.into_iter().next().flatten(), from)?;
        match numbers[..] {
            [is_over @ (0 | 1), ref pushes @ ..] if pushes.len() % 2 == 0 => Ok(Self {
                is_over: is_over == 1,
                pushes: pushes.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
            }),
            _ => Err(damaged(from)),
        }
    }
}

fn message(numbers: &[u64], parts: impl IntoIterator<Item = Option<Part>>, device: &Device) -> Message {
    std::iter::once(numbers_part(numbers, device)).chain(parts).collect()
}

fn read<const N: usize>(mut message: Message, from: usize) -> Result<([u64; N], Message)> {
    if message.is_empty() {
        return Err(damaged(from));
    }
    let parts = message.split_off(1);
    let numbers = read_numbers(message.pop().flatten(), from)?;
    Ok((numbers.try_into().map_err(|_| damaged(from))?, parts))
}

/// Numbers as a part of a message.
fn numbers_part(numbers: &[u64], device: &Device) -> Option<Part> {
    let parts_of = |number: &u64| [48, 32, 16, 0].map(|shift| f32::from((number >> shift) as u16));
    let numbers: Vec<f32> = numbers.iter().flat_map(parts_of).collect();
    let length = numbers.len();
    Some(flat(Tensor::from_data(TensorData::new(numbers, [length]), (device, DType::F32))))
}

fn read_numbers(part: Option<Part>, from: usize) -> Result<Vec<u64>> {
    let Some(Part::Float(parts, _)) = part else { return Err(damaged(from)) };
    let parts = parts.try_into_vec_as::<f32>().map_err(|error| Error::Device(error.to_string()))?;
    if !parts.len().is_multiple_of(PARTS) {
        return Err(damaged(from));
    }
    let number = |parts: &[f32]| parts.iter().fold(0, |before, part| before << 16 | u64::from(*part as u16));
    Ok(parts.chunks_exact(PARTS).map(number).collect())
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
        let given = |number| Some(Given { number, ahead: 7 });
        for share in [None, given(0), given(u64::MAX)] {
            assert_eq!(read_answer(answer(share, [], &device), 1).unwrap().0, share);
        }
        for pushes in [vec![], vec![(u64::MAX, 3), (5, 0)]] {
            for is_over in [false, true] {
                let state = RoundState { is_over, pushes: pushes.clone() };
                assert_eq!(RoundState::read(state.message(&device), 0).unwrap(), state);
            }
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
