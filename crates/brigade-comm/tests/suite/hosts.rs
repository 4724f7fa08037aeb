//! Ranks on several hosts, each with memory that its ranks share.

use brigade_comm::{
    Algorithm, AlgorithmRow, DType, Group, Join, OpType, ProcessGroup, ReduceOp, Result, join,
};

use crate::worlds::{Kind, PATIENT, joining, listener};

/// Runs `work` on ranks of which rank r says that it is on host `hosts[r]`.
fn on_hosts<T: Send>(
    hosts: &[usize],
    algorithms: &[Algorithm],
    work: impl Fn(&Group) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let (listener, work) = (&listener(), &work);
    std::thread::scope(|scope| {
        let ranks = hosts.iter().enumerate().map(|(rank, host)| {
            let joining = Join {
                host: Some(format!("host {host}")),
                algorithm: algorithms[rank % algorithms.len()],
                ..joining(Kind::Mixed, rank, hosts.len(), listener, PATIENT)
            };
            scope.spawn(move || {
                let world = join(joining)?;
                let outcome = work(world.group())?;
                world.shutdown()?;
                Ok(outcome)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn numbers(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (brigade_random::keyed(rank as u64, i as u64) % 100_003) as f32 * 0.37 - 3e3).collect()
}

/// The bits of an all-reduce, a reduce-scatter and an all-gather, and the bytes that each sent to other hosts.
fn each_collective(group: &Group) -> Result<(Vec<Vec<f32>>, [u64; 3])> {
    let (rank, count) = (group.rank(), 3000 * group.size());
    let slice = rank * 3000..(rank + 1) * 3000;
    let mut crossed = [0; 4];
    let mut reduced = numbers(rank, count);
    group.all_reduce_in_place(&mut reduced, ReduceOp::Sum)?;
    crossed[1] = group.stats().between_hosts();
    let mut scattered = numbers(rank, count);
    group.reduce_scatter_in_place(&mut scattered, ReduceOp::Sum)?;
    crossed[2] = group.stats().between_hosts();
    let mut gathered = vec![0.0; count];
    gathered[slice.clone()].copy_from_slice(&scattered[slice.clone()]);
    group.all_gather_in_place(&mut gathered)?;
    crossed[3] = group.stats().between_hosts();
    assert!(gathered == reduced);
    let bytes = [0, 1, 2].map(|i| crossed[i + 1] - crossed[i]);
    Ok((vec![reduced, scattered[slice].to_vec()], bytes))
}

#[test]
fn a_hierarchy_has_the_bits_of_a_flat_sum_and_sends_each_byte_between_hosts_once_a_host() {
    for (hosts, per_host) in [(2, 2), (3, 2), (2, 4)] {
        let of_ranks: Vec<usize> = (0..hosts * per_host).map(|rank| rank / per_host).collect();
        let run = |algorithm| -> Vec<_> {
            let ranks = on_hosts(&of_ranks, &[algorithm], each_collective);
            ranks.into_iter().map(|rank| rank.unwrap()).collect()
        };
        let (flat, auto) = (run(Algorithm::Flat), run(Algorithm::Auto));
        let buffer = (4 * 3000 * hosts * per_host) as u64;
        let once = buffer * (hosts as u64 - 1) / hosts as u64;
        for (rank, ((flat, flat_bytes), (auto, auto_bytes))) in flat.iter().zip(&auto).enumerate() {
            assert!(flat == auto, "{hosts} x {per_host}, rank {rank}");
            assert_eq!(*flat_bytes, [2 * once, once, once]);
            assert_eq!(*auto_bytes, [2 * once, once, once].map(|bytes| bytes / per_host as u64));
        }
    }
}

/// Of hosts with two and four ranks, each pair sends a byte between hosts once.
#[test]
fn uneven_hosts_have_the_bits_of_a_flat_sum() {
    let hosts = [0, 0, 1, 1, 1, 1];
    let run = |algorithm| -> Vec<_> {
        let ranks = on_hosts(&hosts, &[algorithm], each_collective);
        ranks.into_iter().map(|rank| rank.unwrap()).collect()
    };
    let flat = run(Algorithm::Flat);
    let between = |ranks: &[(_, [u64; 3])]| ranks.iter().map(|(_, bytes)| bytes[0]).sum::<u64>();
    for algorithm in [Algorithm::Auto, Algorithm::Hierarchical] {
        let found = run(algorithm);
        assert!(found.iter().zip(&flat).all(|((found, _), (flat, _))| found == flat), "{algorithm}");
        assert_eq!(2 * between(&found), between(&flat), "{algorithm}");
    }
}

#[test]
fn hosts_of_three_ranks_add_host_by_host_only_when_asked() {
    let hosts = [0, 0, 0, 1, 1, 1];
    let run = |algorithm| -> Vec<f32> {
        let sums = on_hosts(&hosts, &[algorithm], |group| Ok(each_collective(group)?.0.swap_remove(0)));
        let sums: Vec<Vec<f32>> = sums.into_iter().map(|sum| sum.unwrap()).collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]));
        sums[0].clone()
    };
    let (flat, asked) = (run(Algorithm::Flat), run(Algorithm::Hierarchical));
    assert!(run(Algorithm::Auto) == flat);
    assert!(asked != flat);
    let all: Vec<Vec<f32>> = (0..6).map(|rank| numbers(rank, asked.len())).collect();
    let at = |rank: usize, i: usize| all[rank][i];
    let host_by_host = |i| (at(0, i) + at(1, i) + at(2, i)) + (at(3, i) + at(4, i) + at(5, i));
    assert!((0..asked.len()).all(|i| asked[i] == host_by_host(i)));
}

#[test]
fn a_group_says_how_many_neighbours_add_up_first() {
    for (hosts, algorithm, neighbours) in [
        (&[0, 0, 1, 1][..], Algorithm::Auto, Some(2)),
        (&[0, 0, 1, 1], Algorithm::Hierarchical, Some(2)),
        (&[0, 0, 1, 1], Algorithm::Flat, None),
        (&[0, 0, 1, 1], Algorithm::Halving, None),
        (&[0, 1, 0, 1], Algorithm::Auto, None),
        (&[0, 1, 2, 3], Algorithm::Auto, None),
        (&[0, 0], Algorithm::Auto, None),
        (&[0, 0, 1], Algorithm::Hierarchical, None),
        (&[0, 0, 0, 1, 1, 1], Algorithm::Auto, None),
        (&[0, 0, 0, 1, 1, 1], Algorithm::Hierarchical, Some(3)),
        (&[0, 0, 1, 1, 1, 1], Algorithm::Auto, Some(2)),
        (&[0, 0, 1, 1, 1, 1], Algorithm::Hierarchical, Some(2)),
        (&[0, 0, 1, 1, 0, 0], Algorithm::Auto, Some(2)),
        (&[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], Algorithm::Auto, Some(2)),
        (&[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], Algorithm::Hierarchical, Some(6)),
    ] {
        for rank in on_hosts(hosts, &[algorithm], |group| Ok(group.neighbours())) {
            assert_eq!(rank.unwrap(), neighbours, "{hosts:?} {algorithm}");
        }
    }
}

#[test]
fn a_group_of_some_ranks_has_the_levels_of_its_hosts() {
    // Uneven as a world, even as two groups.
    for rank in on_hosts(&[0, 0, 1, 1, 2], &[Algorithm::Auto], |group| {
        let hosts: Vec<usize> = (0..group.size()).map(|rank| group.locality(rank).host).collect();
        assert_eq!(hosts, [0, 0, 1, 1, 2]);
        let even = group.split("even", (group.rank() == 4).into(), 0)?;
        each_collective(&even)?;
        let crossed = even.stats().between_hosts();
        let flat = even.with_algorithm(Algorithm::Flat)?;
        each_collective(&flat)?;
        Ok((flat.size(), crossed, flat.stats().between_hosts()))
    }) {
        let (size, even, flat) = rank.unwrap();
        assert!(if size == 4 { even > 0 && flat == 2 * even } else { even + flat == 0 });
    }
}

#[test]
fn collectives_that_are_queued_have_the_bits_of_one_after_the_other() {
    // Tiny ones and large ones of several kinds; some are waited for out of order.
    let counts = [1, 70_001, 3, 4096, 120_000, 0, 17, 250_000, 5, 9_999];
    for hosts in [&[0, 1][..], &[0, 0, 1, 1], &[0, 1, 2, 3]] {
        for rank in on_hosts(hosts, &[Algorithm::Auto], |group| {
            let own = |count: usize, i: usize| numbers(group.rank() + 31 * i, count * group.size());
            let mut expected = Vec::new();
            for (i, count) in counts.into_iter().enumerate() {
                let mut sum = own(count, i);
                match i % 3 {
                    0 => group.all_gather_in_place(&mut sum)?,
                    _ => group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?,
                }
                expected.push(sum);
            }
            for turn in 0..3 {
                let begin = |(i, count): (usize, usize)| {
                    let buffer = own(count, i);
                    let work = match i % 3 {
                        0 => group.all_gather(buffer, DType::F32),
                        _ => group.all_reduce(buffer, DType::F32, ReduceOp::Sum),
                    };
                    (i, work)
                };
                let mut works: Vec<_> = counts.into_iter().enumerate().map(begin).collect();
                if turn > 0 {
                    works.reverse();
                }
                for (i, work) in works {
                    assert!(work.wait()? == expected[i], "{hosts:?}, {i}");
                }
                // One at a time, between those that are queued.
                let mut sum = own(3, turn);
                group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            }
            Ok(())
        }) {
            rank.unwrap();
        }
    }
}

#[test]
fn a_call_that_differs_is_found_among_those_that_are_queued() {
    for rank in on_hosts(&[0, 1], &[Algorithm::Auto], |group| {
        let lengths = if group.rank() == 0 { [40_000, 8, 16] } else { [40_000, 16, 8] };
        let works = lengths.map(|count| group.all_reduce(numbers(0, count), DType::F32, ReduceOp::Sum));
        works.into_iter().try_for_each(|work| work.wait().map(drop))
    }) {
        let said = rank.unwrap_err().to_string();
        assert_eq!(said.matches("called all_reduce #1").count(), 2, "{said}");
    }
}

#[test]
fn a_table_sends_what_its_algorithms_send_with_the_same_bits() {
    let row = |collective, algorithm| AlgorithmRow { collective, up_to: None, algorithm };
    let table = [row(OpType::AllReduce, Algorithm::Flat), row(OpType::AllGather, Algorithm::Halving)];
    for rank in on_hosts(&[0, 0, 1, 1], &[Algorithm::Auto], |group| {
        let by_table = group.with_table(&table)?.split("again", 0, 0)?;
        let crossed = |group: &Group, numbers: &mut [f32]| {
            let before = group.stats().between_hosts();
            group.all_reduce_in_place(numbers, ReduceOp::Sum)?;
            Ok(group.stats().between_hosts() - before)
        };
        let own = || numbers(group.rank(), 4096);
        let (mut a, mut b) = (own(), own());
        let (usual, flat) = (crossed(group, &mut a)?, crossed(&by_table, &mut b)?);
        assert!(each_collective(&by_table)?.0 == each_collective(group)?.0);
        Ok((a == b, usual, flat))
    }) {
        let (same, usual, flat) = rank.unwrap();
        assert!(same && flat == 2 * usual && usual > 0, "{usual} {flat}");
    }
    for rank in on_hosts(&[0, 0], &[Algorithm::Auto], |group| {
        let algorithm = if group.rank() == 0 { Algorithm::Flat } else { Algorithm::Halving };
        group.with_table(&[row(OpType::AllReduce, algorithm)]).map(|_| ())
    }) {
        assert!(rank.is_err());
    }
}

#[test]
fn ranks_with_different_algorithms_do_not_form_a_world() {
    let ranks = on_hosts(&[0, 0], &[Algorithm::Auto, Algorithm::Flat], |_| Ok(()));
    for rank in ranks {
        let said = rank.unwrap_err().to_string();
        assert!(said.contains("rank 1 uses flat collectives, but rank 0 uses auto"), "{said}");
    }
    for rank in on_hosts(&[0, 0], &[Algorithm::Auto], |group| {
        let algorithm = if group.rank() == 0 { Algorithm::Flat } else { Algorithm::Halving };
        group.with_algorithm(algorithm).map(|_| ())
    }) {
        assert!(rank.is_err());
    }
}
