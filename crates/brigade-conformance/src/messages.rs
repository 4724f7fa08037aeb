//! Messages from one rank to another.

use brigade_core::{CollectiveKind, Collectives, Message, Part};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};

use crate::Suite;
use crate::data_movement::STRANGE;
use crate::values::{contribution, given, same, tensor, values};

/// Whole numbers that a rank sends.
fn numbers(rank: usize, length: usize) -> Vec<i32> {
    (0..length as i32).map(|i| (i + 1 - 2 * (rank as i32 % 2) * i).wrapping_mul(1_000_003)).collect()
}

/// What a rank sends: every type, absent and empty parts, a scalar, a view.
fn message(suite: &Suite, rank: usize, length: usize) -> Message {
    let float = |length: usize, shape: &[usize], dtype| {
        Some(Part::Float(contribution(suite, rank, length, dtype), shape.to_vec()))
    };
    let ints = numbers(rank, length);
    let data = TensorData::new(ints, [length]);
    let device = &suite.device;
    let mut message = vec![
        None,
        float(6 * length, &[2, length, 3], FloatDType::F32),
        Some(Part::Int(Tensor::<1, Int>::from_data(data, device), vec![length])),
        None,
        float(0, &[0, 4], FloatDType::F32),
        float(1, &[], FloatDType::F32),
        Some(Part::Float(contribution(suite, rank, 20, FloatDType::F32).slice(4..10), vec![3, 2])),
        Some(Part::Float(tensor(&STRANGE, FloatDType::F32, device), vec![STRANGE.len()])),
    ];
    message.extend(suite.floats.iter().map(|dtype| float(length, &[length, 1], *dtype)));
    message
}

fn is_message(suite: &Suite, found: Message, rank: usize, length: usize) {
    assert_eq!(found.len(), 8 + suite.floats.len(), "number of parts");
    let float = |part: &Option<Part>, expected: &[f32], shape: &[usize], dtype| {
        let Some(Part::Float(flat, found)) = part else { panic!("{part:?} is no float tensor") };
        assert_eq!(found, shape);
        same(&values(flat.clone(), dtype), expected, &format!("part of shape {shape:?} from rank {rank}"));
    };
    let f32 = FloatDType::F32;
    assert!(found[0].is_none() && found[3].is_none(), "absent parts stay absent");
    float(&found[1], &given(rank, 6 * length, f32), &[2, length, 3], f32);
    let Some(Part::Int(ints, shape)) = &found[2] else { panic!("{:?} is no int tensor", found[2]) };
    assert_eq!(
        (ints.clone().try_into_vec_as::<i32>().unwrap(), shape),
        (numbers(rank, length), &vec![length])
    );
    float(&found[4], &[], &[0, 4], f32);
    float(&found[5], &given(rank, 1, f32), &[], f32);
    float(&found[6], &given(rank, 20, f32)[4..10], &[3, 2], f32);
    float(&found[7], &STRANGE, &[STRANGE.len()], f32);
    for (part, dtype) in found[8..].iter().zip(&suite.floats) {
        float(part, &given(rank, length, *dtype), &[length, 1], *dtype);
    }
}

/// Every rank sends to the next, then receives from the one before; each message has its own size.
pub fn messages_go_around_a_ring(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    if size == 1 {
        return;
    }
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    for length in [1, 6, 3000] {
        let sent = ranks.send(message(suite, rank, length + rank), next);
        let received = ranks.receive(before, &suite.device).wait().unwrap();
        is_message(suite, received, before, length + before);
        sent.wait().unwrap();
    }
    let sent = ranks.send(vec![], next);
    assert!(ranks.receive(before, &suite.device).wait().unwrap().is_empty());
    sent.wait().unwrap();
    assert_eq!(ranks.traffic()[&CollectiveKind::Send].0, 4);
}

/// A receive that was started before the other side sends gets that message, and the next receive the next one.
pub fn receives_may_be_first(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    if size == 1 {
        return;
    }
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let receives: Vec<_> = (0..3).map(|_| ranks.receive(before, &suite.device)).collect();
    ranks.barrier().unwrap();
    let sends: Vec<_> = (0..3).map(|number| ranks.send(message(suite, rank, 10 + number), next)).collect();
    for (number, received) in receives.into_iter().enumerate() {
        is_message(suite, received.wait().unwrap(), before, 10 + number);
    }
    sends.into_iter().for_each(|sent| sent.wait().unwrap());
}

/// Neighbours send each other two large messages before either receives, as stages of a pipeline do.
pub fn two_messages_each_way(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    let peer = rank ^ 1;
    // With an odd number of ranks, the last one has no partner.
    if peer >= size {
        return;
    }
    let length = |from: usize, number: usize| 100_000 + 7 * from + number;
    let large = |from: usize, number: usize| {
        let flat = contribution(suite, from, length(from, number), FloatDType::F32);
        vec![Some(Part::Float(flat, vec![length(from, number)]))]
    };
    let sends: Vec<_> = (0..2).map(|number| ranks.send(large(rank, number), peer)).collect();
    let receives: Vec<_> = (0..2).map(|_| ranks.receive(peer, &suite.device)).collect();
    for (number, received) in receives.into_iter().enumerate() {
        let received = received.wait().unwrap();
        let [Some(Part::Float(flat, shape))] = &received[..] else { panic!("{received:?}") };
        assert_eq!(shape, &[length(peer, number)]);
        let expected = given(peer, length(peer, number), FloatDType::F32);
        same(&values(flat.clone(), FloatDType::F32), &expected, &format!("message {number} of rank {peer}"));
    }
    sends.into_iter().for_each(|sent| sent.wait().unwrap());
}
