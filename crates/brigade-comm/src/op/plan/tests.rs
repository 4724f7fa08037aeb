use super::*;
use crate::op::algorithm::{Algorithm, AlgorithmRow};
use crate::op::dtype::{DType, ReduceOp};
use crate::op::plan::segment::Next;

const COLLECTIVES: [OpType; 6] = [
    OpType::AllReduce,
    OpType::ReduceScatter,
    OpType::AllGather,
    OpType::Gather,
    OpType::Broadcast,
    OpType::AllToAll,
];

fn call(operation: OpType, elements: usize) -> Call {
    let reduces = matches!(operation, OpType::AllReduce | OpType::ReduceScatter);
    let reduce = reduces.then_some(ReduceOp::Sum);
    Call { operation, sequence: 0, dtype: DType::F32, reduce, root: None, bytes: 4 * elements as u64 }
}

/// The layouts that this many ranks can have: on one host in each way, and on hosts of 2, 3, 4 and 8 ranks.
fn layouts(ranks: usize) -> Vec<Layout> {
    let hosts = |per_host: usize| (0..ranks).map(|rank| rank / per_host).collect::<Vec<_>>();
    let on_one_host =
        [Algorithm::Auto, Algorithm::Halving].map(|algorithm| Layout::new(&vec![0; ranks], algorithm));
    let on_hosts = [2, 3, 4, 8].map(|per_host| Layout::new(&hosts(per_host), Algorithm::Hierarchical));
    on_one_host.into_iter().chain(on_hosts).collect()
}

fn plans(operation: OpType, layout: &Layout, ranks: usize, root: usize, elements: usize) -> Vec<Plan> {
    (0..ranks).map(|me| Plan::new(&call(operation, elements), layout, me, root)).collect()
}

/// The lengths of the segments of a link's direction, whatever their phases.
fn lengths<T>(
    phases: usize,
    segment: impl Fn(usize, usize) -> Next<T>,
    length: impl Fn(&T) -> usize,
) -> Vec<usize> {
    let mut lengths = Vec::new();
    for phase in 0..phases {
        for index in 0.. {
            match segment(phase, index) {
                Next::Segment(segment) => lengths.push(length(&segment)),
                Next::Later => break,
                Next::End => return lengths,
            }
        }
    }
    panic!("a link has no end")
}

fn sent(plan: &Plan, peer: usize) -> Vec<usize> {
    lengths(plan.phases(), |phase, index| plan.outbound(phase, peer, index), |out| out.range.len())
}

#[test]
fn both_ends_of_a_link_expect_the_same_bytes() {
    for operation in COLLECTIVES {
        for ranks in [2, 3, 4, 5, 34, 48] {
            for elements in [0, 1, ranks, 60 * ranks, 100_003 * ranks + 1, 163_840 * ranks] {
                if elements % ranks != 0 && !matches!(operation, OpType::AllReduce | OpType::Broadcast) {
                    continue;
                }
                for layout in layouts(ranks) {
                    let plans = plans(operation, &layout, ranks, ranks - 1, elements);
                    check_links(operation, &plans);
                }
            }
        }
    }
}

fn check_links(operation: OpType, plans: &[Plan]) {
    for (from, to) in (0..plans.len()).flat_map(|f| plans[f].peers().into_iter().map(move |t| (f, t))) {
        let expected = lengths(
            plans[to].phases(),
            |phase, index| plans[to].inbound(phase, from, index),
            |inbound| inbound.range.len(),
        );
        assert_eq!(sent(&plans[from], to), expected, "{operation} {from} -> {to}");
        assert!(plans[to].peers().contains(&from), "{operation} {from} -> {to}");
    }
}

#[test]
fn an_all_reduce_sends_two_parts_in_n_of_the_buffer() {
    for ranks in [2, 3, 4, 5, 6, 34, 40, 64] {
        let elements = 7_000 * ranks;
        for layout in layouts(ranks) {
            for plan in plans(OpType::AllReduce, &layout, ranks, 0, elements) {
                let sent: usize = plan.peers().into_iter().flat_map(|peer| sent(&plan, peer)).sum();
                assert_eq!(sent, 2 * elements * 4 * (ranks - 1) / ranks);
                assert_eq!(sent as u64, plan.payload());
            }
        }
    }
}

#[test]
fn each_byte_crosses_the_network_once_a_host() {
    for (hosts, per_host) in [(2, 2), (2, 4), (3, 2), (4, 8), (40, 2), (3, 64)] {
        let ranks = hosts * per_host;
        let (elements, host) = (60 * ranks, |rank: usize| rank / per_host);
        let bytes = 4 * elements;
        let of_ranks: Vec<usize> = (0..ranks).map(host).collect();
        for (operation, expected) in [
            (OpType::AllReduce, 2 * bytes * (hosts - 1) / hosts),
            (OpType::ReduceScatter, bytes * (hosts - 1) / hosts),
            (OpType::AllGather, bytes * (hosts - 1) / hosts),
        ] {
            let leaving = |algorithm| -> Vec<usize> {
                let plans = plans(operation, &Layout::new(&of_ranks, algorithm), ranks, 0, elements);
                let mut leaving = vec![0; hosts];
                for (from, plan) in plans.iter().enumerate() {
                    let elsewhere = plan.peers().into_iter().filter(|to| host(*to) != host(from));
                    leaving[host(from)] += elsewhere.flat_map(|to| sent(plan, to)).sum::<usize>();
                }
                leaving
            };
            assert_eq!(leaving(Algorithm::Auto), vec![expected; hosts], "{operation} {hosts} x {per_host}");
            if ranks <= 32 {
                assert_eq!(leaving(Algorithm::Flat), vec![expected * per_host; hosts], "{operation}");
            }
        }
        let plans = plans(OpType::Broadcast, &Layout::new(&of_ranks, Algorithm::Auto), ranks, 1, elements);
        let arriving = |host_number: usize| -> usize {
            let links = (0..ranks).flat_map(|from| plans[from].peers().into_iter().map(move |to| (from, to)));
            let arriving = links.filter(|(from, to)| host(*to) == host_number && host(*from) != host_number);
            arriving.filter(|(_, to)| to % per_host == 1).flat_map(|(from, to)| sent(&plans[from], to)).sum()
        };
        (1..hosts).for_each(|host| assert_eq!(arriving(host), bytes));
    }
}

#[test]
fn levels_follow_hosts_where_the_bits_stay_the_same() {
    let counts = |hosts: &[usize], algorithm| -> (Vec<usize>, bool) {
        let layout = Layout::new(hosts, algorithm);
        let levels = layout.levels(&call(OpType::AllReduce, 64));
        // What others are told of the levels.
        if let Some(neighbours) = layout.neighbours() {
            assert_eq!(neighbours, levels.each().next().unwrap().count, "{hosts:?} {algorithm}");
        } else {
            assert_ne!(layout.algorithm(), Hierarchical, "{hosts:?} {algorithm}");
        }
        (levels.each().map(|level| level.count).collect(), layout.warning().is_some())
    };
    use Algorithm::{Auto, Flat, Halving, Hierarchical};
    for (hosts, algorithm, expected, warns) in [
        (&[0, 0, 1, 1][..], Auto, &[2, 2][..], false),
        (&[0, 0, 1, 1], Flat, &[4], false),
        (&[0, 0, 1, 1, 2, 2], Hierarchical, &[2, 3], false),
        (&[0, 0, 0, 1, 1, 1], Auto, &[6], false),
        (&[0, 0, 0, 1, 1, 1], Hierarchical, &[3, 2], true),
        (&[0, 1, 0, 1], Auto, &[4], false),
        (&[0, 1, 0, 1], Hierarchical, &[4], true),
        (&[0, 0, 1, 1, 1], Hierarchical, &[5], true),
        (&[0, 0, 1, 1, 0, 0], Hierarchical, &[2, 3], true),
        (&[0, 0, 1, 1, 1, 1], Hierarchical, &[2, 3], true),
        (&[0, 0, 1, 1, 1, 1], Auto, &[2, 3], false),
        (&[0, 0, 0, 1, 1, 1, 1, 1, 1], Hierarchical, &[3, 3], true),
        (&[0, 0, 0, 1, 1, 1, 1, 1, 1], Auto, &[9], false),
        (&[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], Auto, &[2, 6], false),
        (&[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], Hierarchical, &[6, 2], true),
        (&[0, 1, 2], Hierarchical, &[3], false),
        (&[0; 8], Hierarchical, &[8], false),
        (&[0; 12], Halving, &[2, 2, 3], false),
        (&[0; 5], Halving, &[5], false),
        (&[0], Auto, &[1], false),
        (&[0], Halving, &[1], false),
    ] {
        assert_eq!(counts(hosts, algorithm), (expected.to_vec(), warns), "{hosts:?} {algorithm}");
    }
    let halves = Call { dtype: DType::Bf16, ..call(OpType::AllReduce, 64) };
    assert_eq!(Plan::new(&halves, &Layout::new(&[0, 0, 1, 1], Auto), 0, 0).phases(), 1);
}

/// A table changes who talks to whom for the sizes that it names, and never the bits.
#[test]
fn a_table_chooses_by_size() {
    let row = |up_to, algorithm| AlgorithmRow { collective: OpType::AllReduce, up_to, algorithm };
    let rows = [
        row(Some(100), Algorithm::Halving),
        row(Some(1000), Algorithm::Flat),
        row(None, Algorithm::Hierarchical),
    ];
    let counts = |hosts: &[usize], operation, elements| -> Vec<usize> {
        let layout = Layout::new(hosts, Algorithm::Auto).with_table(hosts, &rows);
        layout.levels(&call(operation, elements)).each().map(|level| level.count).collect()
    };
    let even = [0, 0, 0, 0, 1, 1, 1, 1];
    assert_eq!(counts(&even, OpType::AllReduce, 25), [2, 2, 2]);
    assert_eq!(counts(&even, OpType::AllReduce, 26), [8]);
    assert_eq!(counts(&even, OpType::AllReduce, 251), [4, 2]);
    assert_eq!(counts(&even, OpType::AllGather, 25), [4, 2], "as without a table");
    assert_eq!(counts(&[0, 0, 0, 1, 1, 1], OpType::AllReduce, 251), [6], "the bits stay");
}

#[test]
fn in_a_large_group_each_rank_has_few_peers() {
    for (ranks, rows, columns) in [
        (32, 1, 32),
        (33, 1, 33),
        (34, 17, 2),
        (64, 8, 8),
        (96, 12, 8),
        (256, 16, 16),
        (1000, 125, 8),
        (1024, 32, 32),
    ] {
        let layout = Layout::on_one_host(ranks);
        for operation in [OpType::AllReduce, OpType::ReduceScatter, OpType::AllGather] {
            let plans = plans(operation, &layout, ranks, 0, ranks);
            assert_eq!(plans[1].peers().len(), rows + columns - 2, "{operation} {ranks}");
        }
    }
    let halves = Call { dtype: DType::Bf16, ..call(OpType::AllReduce, 64) };
    assert_eq!(Plan::new(&halves, &Layout::on_one_host(64), 5, 0).peers().len(), 63);
}

#[test]
fn slices_are_a_disjoint_complete_cover() {
    for ranks in 1..=9 {
        for elements in 0..30 {
            let plan = &plans(OpType::AllReduce, &Layout::on_one_host(ranks), ranks, 0, elements)[0];
            let collective = &plan.phases[0].collective;
            let mut end = 0;
            for rank in 0..ranks {
                assert_eq!(collective.slice(rank).start, end);
                end = collective.slice(rank).end;
            }
            assert_eq!(end, elements * 4);
        }
    }
}
