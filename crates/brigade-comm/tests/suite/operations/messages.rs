//! Receives whose size comes with the message.

use brigade_comm::{Count, DType, Element, OpType, ReduceOp};

use crate::worlds::{Kind, on_every_world, run_well};

on_every_world!(
    messages_of_any_size_arrive_in_order,
    messages_are_awaited_before_they_are_sent,
    messages_and_sized_transfers_share_one_order,
    messages_are_counted,
);

const MIB: usize = 1 << 20;

fn content(from: usize, size: usize) -> Vec<u8> {
    (0..size).map(|i| brigade_random::keyed((from << 32 | size) as u64, i as u64) as u8).collect()
}

fn messages_of_any_size_arrive_in_order(kind: Kind) {
    run_well(kind, 3, |group| {
        let (rank, n) = (group.rank(), group.size());
        let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
        let sizes = [0, 1, 5 * MIB, 63, 0, 64, 65, 300_000];
        // Exactly as much as arrives, and as much as there can be.
        for limit in [0, usize::MAX] {
            let sent = sizes.map(|size| group.send(content(rank, size), DType::U8, next));
            for size in sizes {
                assert!(group.recv_message(previous, limit.max(size)).wait()? == content(previous, size));
            }
            sent.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
        }
        group.barrier()
    });
}

fn messages_are_awaited_before_they_are_sent(kind: Kind) {
    run_well(kind, 2, |group| {
        let peer = 1 - group.rank();
        let sizes = [0, 5 * MIB, 1];
        let messages: Vec<_> = sizes.iter().map(|_| group.recv_message(peer, 5 * MIB)).collect();
        // Nobody has sent; collectives do not wait for the receives.
        group.all_reduce_in_place(&mut vec![1.0f32; 100_000], ReduceOp::Sum)?;
        assert!(messages.iter().all(|message| !message.is_completed()));
        group.barrier()?;
        let sent: Vec<_> =
            sizes.iter().map(|size| group.send(content(group.rank(), *size), DType::U8, peer)).collect();
        for (message, size) in messages.into_iter().zip(sizes) {
            assert!(message.wait()? == content(peer, size));
        }
        sent.into_iter().try_for_each(|sent| sent.wait().map(drop))
    });
}

fn messages_and_sized_transfers_share_one_order(kind: Kind) {
    run_well(kind, 2, |group| {
        let (rank, peer) = (group.rank(), 1 - group.rank());
        for turn in 0..3 {
            let floats = |rank: usize| vec![rank as f32 + turn as f32; 70_000];
            let received = (
                group.recv_message(peer, 4 * MIB),
                group.recv(vec![0.0f32; 70_000], f32::DTYPE, peer),
                group.recv_message(peer, 10),
                group.recv(vec![0u8; 9], DType::U8, peer),
            );
            let sent = [
                group.send(content(rank, turn * 2 * MIB), DType::U8, peer),
                group.send(bytemuck::cast_slice(&floats(rank)).to_vec(), f32::DTYPE, peer),
                group.send(content(rank, 7), DType::U8, peer),
                group.send(content(rank, 9), DType::U8, peer),
            ];
            assert!(received.0.wait()? == content(peer, turn * 2 * MIB));
            assert!(received.1.wait()? == floats(peer));
            assert_eq!(received.2.wait()?, content(peer, 7));
            assert_eq!(received.3.wait()?, content(peer, 9));
            sent.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
        }
        group.barrier()
    });
}

fn messages_are_counted(kind: Kind) {
    run_well(kind, 2, |group| {
        let peer = 1 - group.rank();
        let sent = group.send(content(0, 1000), DType::U8, peer);
        group.recv_message(peer, 2000).wait()?;
        sent.wait()?;
        assert_eq!(group.stats().of(OpType::RecvMessage), Count { calls: 1, bytes: 0 });
        assert_eq!(group.stats().of(OpType::Send), Count { calls: 1, bytes: 1000 });
        assert_eq!(group.stats().of(OpType::Recv), Count::default());
        Ok(())
    });
}
