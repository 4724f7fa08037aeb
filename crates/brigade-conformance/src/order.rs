//! What runs when, and on which thread.

use std::thread;

use brigade_core::{Collectives, Part};
use burn::tensor::{FloatDType, Tensor};

use crate::Suite;
use crate::values::{contribution, given, is_sum, same, tensor, values};

const F32: FloatDType = FloatDType::F32;

/// Many operations are started before any is waited for, and each rank waits in another order.
pub fn operations_are_waited_for_in_any_order(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    let given_by = |length: usize| contribution(suite, rank, length, F32);
    for round in 0..3 {
        let reduced = ranks.all_reduce(given_by(10_000));
        let exchanged = ranks.all_gather_scalars(vec![rank as f64]);
        let gathered = ranks.all_gather(given_by(777));
        let scattered = ranks.reduce_scatter(given_by(50 * size));
        let last = ranks.broadcast(given_by(3000), size - 1);
        let again = ranks.all_reduce(given_by(3));
        type Wait<'a> = Box<dyn FnOnce() + 'a>;
        let mut waits: Vec<Wait<'_>> = vec![
            Box::new(|| is_sum(suite, ranks, &values(reduced.wait().unwrap(), F32), 0..10_000, 10_000, F32)),
            Box::new(|| {
                let all: Vec<_> = (0..size).map(|rank| vec![rank as f64]).collect();
                assert_eq!(exchanged.wait().unwrap(), all);
            }),
            Box::new(|| {
                let all: Vec<_> = (0..size).flat_map(|rank| given(rank, 777, F32)).collect();
                same(&values(gathered.wait().unwrap(), F32), &all, "gathered");
            }),
            Box::new(|| {
                let own = values(scattered.wait().unwrap(), F32);
                is_sum(suite, ranks, &own, rank * 50..(rank + 1) * 50, 50 * size, F32);
            }),
            Box::new(|| same(&values(last.wait().unwrap(), F32), &given(size - 1, 3000, F32), "broadcast")),
            Box::new(|| is_sum(suite, ranks, &values(again.wait().unwrap(), F32), 0..3, 3, F32)),
        ];
        let turn = (rank + round) % waits.len();
        waits.rotate_left(turn);
        if round == 2 {
            waits.reverse();
        }
        waits.into_iter().for_each(|wait| wait());
    }
}

/// An operation that one rank, or no rank, waits for still takes place, and what follows is correct.
pub fn what_is_dropped_still_happens(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    let given_by = |length: usize| contribution(suite, rank, length, F32);
    for round in 0..3 {
        drop(ranks.all_reduce(given_by(5000)));
        drop(ranks.all_gather_scalars(vec![0.0; 4]));
        let pending = ranks.all_reduce(given_by(2000));
        if rank % 2 == round % 2 {
            is_sum(suite, ranks, &values(pending.wait().unwrap(), F32), 0..2000, 2000, F32);
        }
        drop(ranks.all_gather(given_by(10)));
        if size > 1 {
            let flat = given_by(4000);
            drop(ranks.send(vec![Some(Part::Float(flat, vec![4000]))], (rank + 1) % size));
            let before = (rank + size - 1) % size;
            let received = ranks.receive(before, &suite.device).wait().unwrap();
            let [Some(Part::Float(flat, _))] = &received[..] else { panic!("{received:?}") };
            same(&values(flat.clone(), F32), &given(before, 4000, F32), "a message whose send was dropped");
        }
        is_sum(suite, ranks, &values(ranks.all_reduce(given_by(9)).wait().unwrap(), F32), 0..9, 9, F32);
    }
}

/// Results of work that the device may not have done yet are summed, and sums are used at once.
pub fn work_and_collectives_take_turns(suite: &Suite, ranks: &dyn Collectives) {
    const SIDE: usize = 128;
    const MODULUS: f32 = 97.0;
    let (rank, size) = (ranks.rank(), ranks.size());
    let start = |rank: usize| -> Vec<f32> { (0..SIDE * SIDE).map(|i| ((i + rank) % 89) as f32).collect() };
    // Whole numbers this small are exact in any order and in any format of matrix units.
    let one = Tensor::<2>::eye(SIDE, &suite.device);
    let mut value = tensor(&start(rank), F32, &suite.device);
    let mut expected: Vec<Vec<f32>> = (0..size).map(start).collect();
    for round in 0..8 {
        let worked = value.reshape([SIDE, SIDE]).matmul(one.clone()).matmul(one.clone());
        let sum = ranks.all_reduce(worked.reshape([SIDE * SIDE])).wait().unwrap();
        value = (sum + rank as f32).remainder_scalar(MODULUS);
        let sums: Vec<f32> =
            (0..SIDE * SIDE).map(|i| expected.iter().map(|values| values[i]).sum()).collect();
        for (rank, values) in expected.iter_mut().enumerate() {
            *values = sums.iter().map(|sum| (sum + rank as f32) % MODULUS).collect();
        }
        if round % 4 == 3 {
            same(&values(value.clone(), F32), &expected[rank], &format!("after round {round}"));
        }
    }
}

/// Tensors are made on one thread, summed on a second, waited for on a third and read on a fourth.
pub fn other_threads_make_and_take_tensors(suite: &Suite, ranks: &dyn Collectives) {
    let rank = ranks.rank();
    for _ in 0..3 {
        let given = thread::scope(|scope| {
            let make = || {
                contribution(suite, rank, 20_000, F32) * 3.0 - contribution(suite, rank, 20_000, F32) * 2.0
            };
            scope.spawn(make).join().unwrap()
        });
        let exact = values(given.clone(), F32);
        let (sum, all) = (ranks.all_reduce(given.clone()), ranks.all_gather(given));
        let (sum, all) = thread::scope(|scope| {
            scope.spawn(|| (sum.wait().unwrap() * 2.0, all.wait().unwrap())).join().unwrap()
        });
        let (sum, all) =
            thread::scope(|scope| scope.spawn(|| (values(sum * 0.5, F32), values(all, F32))).join().unwrap());
        same(&all[rank * 20_000..(rank + 1) * 20_000], &exact, "this rank's part");
        let mut terms = all.chunks(20_000).collect::<Vec<_>>();
        let last = terms.pop().unwrap();
        // Powers of two change no bit, so the sum is that of what was gathered.
        for i in 0..20_000 {
            let total: f64 =
                terms.iter().map(|values| f64::from(values[i])).sum::<f64>() + f64::from(last[i]);
            let most = terms.iter().chain([&last]).map(|values| f64::from(values[i]).abs()).sum::<f64>();
            let difference = (f64::from(sum[i]) - total).abs();
            assert!(difference <= 1e-6 * most, "element {i}: {difference:e} from {total:e}");
        }
    }
}
