//! Messages between two ranks.

use brigade_comm::{DType, OpType, ReduceOp};

use crate::ranks::{run, run_by_mpiexec};

#[test]
fn messages_keep_their_order_and_wait_for_no_collective() {
    run("messages::messages_keep_their_order_and_wait_for_no_collective", &[2, 3], |rank| {
        let group = &rank.tree;
        let (this, size) = (group.rank(), group.size());
        let (next, before) = ((this + 1) % size, (this + size - 1) % size);
        let length = |from: usize, number: usize| [0, 1, 5000, 3 << 20][number % 4] + from;
        let ahead: Vec<_> = (0..4).map(|_| group.recv_message(before, 4 << 20)).collect();
        // Not complete before all ranks have called it, which rank 0 does last.
        let sum = || group.all_reduce(vec![1.0f32; 1000], DType::F32, ReduceOp::Sum);
        let early = (this != 0).then(sum);
        let sends: Vec<_> = (0..8)
            .map(|number| group.send(vec![number as u8; length(this, number)], DType::U8, next))
            .collect();
        for (number, message) in ahead.into_iter().enumerate() {
            assert!(message.wait().unwrap() == vec![number as u8; length(before, number)]);
        }
        for number in 4..8 {
            let room = vec![255u8; length(before, number)];
            let message = group.recv(room, DType::U8, before).wait().unwrap();
            assert!(message == vec![number as u8; length(before, number)]);
        }
        let late = early.unwrap_or_else(sum);
        assert_eq!(late.wait().unwrap(), vec![size as f32; 1000]);
        sends.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
        let counts = group.stats();
        let sent: usize = (0..8).map(|number| length(this, number)).sum();
        assert_eq!((counts.of(OpType::Send).calls, counts.of(OpType::Send).bytes), (8, sent as u64));
        assert_eq!((counts.of(OpType::RecvMessage).calls, counts.of(OpType::Recv).calls), (4, 4));
    });
}

#[test]
fn mpiexec_starts_ranks_as_well() {
    run_by_mpiexec("messages::mpiexec_starts_ranks_as_well", 3, |rank| {
        let sum = rank.tree.all_reduce(vec![rank.tree.rank() as f32 + 1.0; 5], DType::F32, ReduceOp::Sum);
        assert_eq!(sum.wait().unwrap(), vec![6.0f32; 5]);
    });
}

#[test]
fn neighbours_send_before_either_receives() {
    run("messages::neighbours_send_before_either_receives", &[2], |rank| {
        let group = &rank.tree;
        let peer = 1 - group.rank();
        for _ in 0..3 {
            let sends: Vec<_> =
                (0..2).map(|i| group.send(vec![i as f64; 1 << 20], DType::F64, peer)).collect();
            for i in 0..2 {
                let got = group.recv(vec![0.0; 1 << 20], DType::F64, peer).wait().unwrap();
                assert!(got == vec![f64::from(i); 1 << 20]);
            }
            sends.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
        }
    });
}

#[test]
fn what_rank_0_knows_is_shared() {
    run("messages::what_rank_0_knows_is_shared", &[1, 3], |rank| {
        let own = vec![rank.tree.rank() as u8; 40];
        assert_eq!(rank.mpi.share(own).unwrap(), [0; 40]);
    });
}
