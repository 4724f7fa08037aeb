use super::*;
use crate::op::dtype::ReduceOp;
use crate::op::plan::grid::Grid;
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

fn plans(operation: OpType, ranks: usize, root: usize, elements: usize) -> Vec<Plan> {
    (0..ranks).map(|me| Plan::new(&call(operation, elements), ranks, me, root)).collect()
}

/// The lengths of the segments of a link's direction, whatever their stages.
fn lengths<T>(
    stages: usize,
    segment: impl Fn(usize, usize) -> Next<T>,
    length: impl Fn(&T) -> usize,
) -> Vec<usize> {
    let mut lengths = Vec::new();
    for stage in 0..stages {
        for index in 0.. {
            match segment(stage, index) {
                Next::Segment(segment) => lengths.push(length(&segment)),
                Next::Later => break,
                Next::End => return lengths,
            }
        }
    }
    panic!("a link has no end")
}

fn sent(plan: &Plan, peer: usize) -> Vec<usize> {
    lengths(plan.stages(), |stage, index| plan.outbound(stage, peer, index), |out| out.range.len())
}

#[test]
fn both_ends_of_a_link_expect_the_same_bytes() {
    for operation in COLLECTIVES {
        for ranks in [2, 3, 4, 5, 34, 48] {
            for elements in [0, 1, ranks, 60 * ranks, 100_003 * ranks + 1, 163_840 * ranks] {
                if elements % ranks != 0 && !matches!(operation, OpType::AllReduce | OpType::Broadcast) {
                    continue;
                }
                let plans = plans(operation, ranks, ranks - 1, elements);
                for (from, to) in (0..ranks).flat_map(|f| plans[f].peers().into_iter().map(move |t| (f, t))) {
                    let expected = lengths(
                        plans[to].stages(),
                        |stage, index| plans[to].inbound(stage, from, index),
                        |inbound| inbound.range.len(),
                    );
                    assert_eq!(sent(&plans[from], to), expected, "{operation} {from} -> {to}");
                    assert!(plans[to].peers().contains(&from), "{operation} {from} -> {to}");
                }
            }
        }
    }
}

#[test]
fn an_all_reduce_sends_two_parts_in_n_of_the_buffer() {
    for ranks in [2, 3, 4, 5, 6, 34, 40, 64] {
        let elements = 7_000 * ranks;
        for plan in plans(OpType::AllReduce, ranks, 0, elements) {
            let sent: usize = plan.peers().into_iter().flat_map(|peer| sent(&plan, peer)).sum();
            assert_eq!(sent, 2 * elements * 4 * (ranks - 1) / ranks);
        }
    }
}

#[test]
fn in_a_large_group_each_rank_has_few_peers() {
    for (ranks, rows, columns) in
        [(33, 0, 0), (34, 17, 2), (64, 8, 8), (96, 12, 8), (256, 16, 16), (1000, 125, 8), (1024, 32, 32)]
    {
        let grid = Grid::of(ranks);
        assert_eq!(grid, (rows > 0).then_some(Grid { rows, columns }), "{ranks}");
        let peers = grid.map_or(ranks - 1, |grid| grid.rows + grid.columns - 2);
        for operation in [OpType::AllReduce, OpType::ReduceScatter, OpType::AllGather] {
            assert_eq!(plans(operation, ranks, 0, ranks)[1].peers().len(), peers, "{operation} {ranks}");
        }
    }
    assert_eq!(Grid::of(32), None);
    let halves = Call { dtype: DType::Bf16, ..call(OpType::AllReduce, 64) };
    assert_eq!(Plan::new(&halves, 64, 5, 0).peers().len(), 63);
}

#[test]
fn slices_are_a_disjoint_complete_cover() {
    for ranks in 1..=9 {
        for elements in 0..30 {
            let plan = &plans(OpType::AllReduce, ranks, 0, elements)[0];
            let collective = &plan.stages[0].collective;
            let mut end = 0;
            for rank in 0..ranks {
                assert_eq!(collective.slice(rank).start, end);
                end = collective.slice(rank).end;
            }
            assert_eq!(end, elements * 4);
        }
    }
}
