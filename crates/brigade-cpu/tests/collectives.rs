//! Every collective over tensors, on ranks that are threads.

#![allow(clippy::unwrap_used)]

use std::thread;

use brigade_comm::{Timeouts, threads};
use brigade_core::{Collectives, Operation, PairwiseSum, Part};
use brigade_cpu::{HostCollectives, device};
use burn::tensor::{FloatDType, Tensor};

const RANKS: usize = 3;

fn on_ranks(run: impl Fn(&HostCollectives) + Sync) {
    thread::scope(|scope| {
        for group in threads(RANKS, Timeouts::default()) {
            let run = &run;
            scope.spawn(move || run(&HostCollectives::new(group)));
        }
    });
}

/// What rank `rank` brings: values whose sum depends on the order of addition.
fn given(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|i| ((i * 31 + rank * 17) as f32 * 0.37).sin() * 10f32.powi(rank as i32 * 3)).collect()
}

fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &device())
}

fn values(tensor: Tensor<1>) -> Vec<f32> {
    tensor.try_into_vec_as().unwrap()
}

/// The ranks' sum in the order that one process adds micro-batches.
fn sums(length: usize) -> Vec<f32> {
    let given: Vec<_> = (0..RANKS).map(|rank| given(rank, length)).collect();
    let sum = |i: usize| {
        let mut sum = PairwiseSum::new();
        given.iter().for_each(|values| sum.push(values[i], |a, b| a + b));
        sum.finish(|a, b| a + b).unwrap()
    };
    (0..length).map(sum).collect()
}

#[test]
fn sums_have_the_bits_of_one_process() {
    on_ranks(|ranks| {
        for length in [0, 1, 2, 3, 1000, 100_001] {
            assert_eq!(
                values(ranks.all_reduce(tensor(&given(ranks.rank(), length))).wait().unwrap()),
                sums(length)
            );
        }
        // A view of a larger tensor is read as what it shows.
        let view = tensor(&given(ranks.rank(), 50)).slice(10..40);
        assert_eq!(values(ranks.all_reduce(view).wait().unwrap()), sums(50)[10..40]);
        let shard = values(ranks.reduce_scatter(tensor(&given(ranks.rank(), 30))).wait().unwrap());
        assert_eq!(shard, sums(30)[ranks.rank() * 10..(ranks.rank() + 1) * 10]);
        assert_eq!(ranks.traffic()[&Operation::AllReduce].0, 7);
    });
}

#[test]
fn tensors_reach_whom_they_are_for() {
    on_ranks(|ranks| {
        let (rank, all) = (ranks.rank(), (0..RANKS).flat_map(|rank| given(rank, 5)).collect::<Vec<_>>());
        assert_eq!(values(ranks.all_gather(tensor(&given(rank, 5))).wait().unwrap()), all);
        assert_eq!(values(ranks.broadcast(tensor(&given(rank, 7)), 1).wait().unwrap()), given(1, 7));
        let exchanged = ranks.exchange(vec![rank as f64, 0.5]).wait().unwrap();
        assert_eq!(exchanged, [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]);
        // Around the ring: every rank sends before it receives.
        let message = vec![None, Some(Part::Float(tensor(&given(rank, 6 + rank)), vec![1, 6 + rank]))];
        let sent = ranks.send(message, (rank + 1) % RANKS);
        let before = (rank + RANKS - 1) % RANKS;
        let mut received = ranks.receive(before, &device()).wait().unwrap();
        let Some(Some(Part::Float(flat, shape))) = received.pop() else { panic!("no tensor came") };
        assert_eq!((values(flat), shape), (given(before, 6 + before), vec![1, 6 + before]));
        assert!(matches!(received[..], [None]));
        sent.wait().unwrap();
        ranks.barrier().unwrap();
        let traffic = ranks.traffic();
        assert_eq!(traffic[&Operation::AllGather], (1, 40), "the exchange is counted apart");
        assert_eq!(traffic[&Operation::Exchange], (1, 32));
    });
}

#[test]
fn a_buffer_is_emptied_and_filled_under_its_views() {
    on_ranks(|ranks| {
        let all = |salt: usize| (0..RANKS).flat_map(move |rank| given(rank + salt, 2048)).collect::<Vec<_>>();
        let mut buffer = ranks.refillable(2048, FloatDType::F32, &device()).unwrap();
        let view = buffer.tensor().slice(2000..2100);
        for salt in [0, 3, 6] {
            buffer.fill(tensor(&given(ranks.rank() + salt, 2048))).wait().unwrap();
            assert_eq!(values(buffer.tensor()), all(salt));
            assert_eq!(values(view.clone()), all(salt)[2000..2100]);
            buffer.release();
        }
        assert!(buffer.fill(tensor(&[1.0; 4000])).wait().unwrap_err().to_string().contains("do not fill"));
    });
}

#[test]
fn another_length_is_an_error_on_every_rank() {
    on_ranks(|ranks| {
        let error = ranks.all_reduce(tensor(&given(0, 4 + ranks.rank() / 2))).wait().unwrap_err().to_string();
        assert!(error.contains("all_reduce"), "{error}");
    });
}
