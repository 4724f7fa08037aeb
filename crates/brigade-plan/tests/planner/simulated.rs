//! Steps as they are simulated, against closed forms.

use std::sync::Arc;

use brigade_plan::time::{SimulatedBlock, SimulatedStage, StepPlan, simulate, simulate_long};
use brigade_plan::{Pipeline, PipelineScheduleKind, ReshardPolicy, formula};
use proptest::prelude::*;

/// A model of equal blocks, one for each part, whose forward and halves of a backward take a second each.
fn plain(parts: usize, pp: usize) -> StepPlan {
    let block = SimulatedBlock {
        forward: 1.0,
        backward_input: 1.0,
        backward_weights: 1.0,
        ..SimulatedBlock::default()
    };
    StepPlan {
        blocks: vec![block; parts],
        split: vec![1; parts],
        stages: vec![SimulatedStage::default(); pp],
        messages: [(); 2].map(|()| vec![0.0; parts.saturating_sub(1)]),
        reshard: ReshardPolicy::AfterUseUnlessNext,
        prefetch: 1,
        reduce_each_micro_batch: false,
        overlap: true,
        beside: 1.0,
        norm: 0.0,
        host: 0.0,
        slow: vec![vec![1.0; pp]],
    }
}

fn pipeline(kind: PipelineScheduleKind, pp: usize, chunks: usize, micro_batches: usize) -> Pipeline {
    Pipeline::new(kind, pp, chunks, micro_batches).unwrap()
}

fn chunks_of(kind: PipelineScheduleKind) -> usize {
    if matches!(kind, PipelineScheduleKind::Interleaved | PipelineScheduleKind::Zbv) { 2 } else { 1 }
}

#[test]
fn bubbles_are_those_of_the_formulas() {
    for kind in PipelineScheduleKind::ALL {
        let chunks = chunks_of(kind);
        for (pp, micro_batches) in [(2, 4), (4, 8), (4, 16), (8, 16)] {
            let parts =
                simulate(&plain(pp * chunks, pp), &pipeline(kind, pp, chunks, micro_batches)).unwrap();
            let share = parts.bubble / parts.total();
            let formula = formula::bubble_fraction(kind, pp, chunks, micro_batches);
            assert!((share - formula).abs() < 1e-9, "{kind} {pp} {micro_batches}: {share}, not {formula}");
            assert_eq!(parts.compute, (3 * chunks * micro_batches) as f64);
        }
    }
}

#[test]
fn computation_takes_longer_beside_collectives() {
    // One reduction of 3 s begins after the last block's backward and runs beside that of the first, which takes 2 s.
    let mut plan = plain(2, 1);
    plan.split = vec![2];
    plan.blocks[1].reduce = 3.0;
    let seconds = |plan: &StepPlan| {
        let parts = simulate(plan, &pipeline(PipelineScheduleKind::OneFOneB, 1, 1, 1)).unwrap();
        (parts.contention, parts.total())
    };
    assert_eq!(seconds(&plan), (0.0, 7.0));
    // All of 2 s take 1.25 times as long, behind the reduction.
    plan.beside = 1.25;
    let (contention, total) = seconds(&plan);
    assert!((contention - 0.5).abs() < 1e-9 && (total - 7.0).abs() < 1e-9, "{contention} {total}");
    // In 1 s of the reduction 0.8 s are computed, and the rest as fast as ever.
    plan.blocks[1].reduce = 1.0;
    let (contention, total) = seconds(&plan);
    assert!((contention - 0.2).abs() < 1e-9 && (total - 6.2).abs() < 1e-9, "{contention} {total}");
    // What waits for collectives computes beside none.
    plan.overlap = false;
    assert_eq!(seconds(&plan), (0.0, 7.0));
}

#[test]
fn long_steps_are_those_that_are_played() {
    for kind in PipelineScheduleKind::ALL {
        let chunks = chunks_of(kind);
        for pp in [1, 2, 4] {
            let (kind, chunks) = if pp == 1 { (PipelineScheduleKind::OneFOneB, 1) } else { (kind, chunks) };
            for reshard in
                [ReshardPolicy::AfterUseUnlessNext, ReshardPolicy::AfterBackward, ReshardPolicy::AfterStep]
            {
                let mut plan = plain(pp * chunks, pp);
                plan.reshard = reshard;
                plan.reduce_each_micro_batch = true;
                plan.messages.iter_mut().for_each(|links| links.fill(0.1));
                for block in &mut plan.blocks {
                    (block.gather, block.reduce) = (0.7, 0.4);
                }
                let micro_batches = 12 * pp;
                let whole = simulate(&plan, &pipeline(kind, pp, chunks, micro_batches)).unwrap();
                let long = simulate_long(&plan, pp, micro_batches, |m| {
                    Pipeline::new(kind, pp, chunks, m).map(Arc::new)
                })
                .unwrap();
                let off = (long.total() / whole.total() - 1.0).abs();
                // Gathers and reductions of several groups may come in turns.
                assert!(off < 0.02, "{kind} {pp} {reshard:?}: {long:?} and {whole:?}");
            }
        }
    }
}

#[test]
fn reductions_hide_behind_the_backward() {
    // Four blocks of one rank: backwards take 2 s each; a reduction of 1 s sticks out after the last, of 3 s the rest, too.
    let one = pipeline(PipelineScheduleKind::OneFOneB, 1, 1, 1);
    let with = |reduce: f64, overlap: bool| {
        let mut plan = plain(4, 1);
        plan.split = vec![4];
        plan.overlap = overlap;
        plan.blocks.iter_mut().for_each(|block| block.reduce = reduce);
        simulate(&plan, &one).unwrap()
    };
    assert_eq!(with(1.0, true).reduce, 1.0);
    assert_eq!(with(1.0, false).reduce, 4.0);
    // The first begins after 2 s of backward and they follow one another: 2 + 4 · 3 − 8.
    assert_eq!(with(3.0, true).reduce, 6.0);
    assert_eq!(with(3.0, true).total(), 12.0 + 6.0);
}

#[test]
fn gathers_hide_behind_the_block_before() {
    let one = pipeline(PipelineScheduleKind::OneFOneB, 1, 1, 1);
    let with = |gather: f64| {
        let mut plan = plain(4, 1);
        plan.split = vec![4];
        plan.blocks.iter_mut().for_each(|block| block.gather = gather);
        simulate(&plan, &one).unwrap().all_gather
    };
    // Only the first cannot be gathered ahead; the last block stays for its backward.
    assert_eq!(with(0.5), 0.5);
    // With 3 s each forward waits for 2 of them, each backward for 1: 3 + 3 · 2 and 3 · 1.
    assert_eq!(with(3.0), 3.0 + 3.0 * 2.0 + 3.0);
}

#[test]
fn a_slow_rank_holds_up_all() {
    let mut plan = plain(4, 4);
    let kind = pipeline(PipelineScheduleKind::OneFOneB, 4, 1, 64);
    let healthy = simulate(&plan, &kind).unwrap();
    plan.blocks.iter_mut().for_each(|block| block.reduce = 1e-9);
    plan.slow = vec![vec![1.0; 4], vec![1.0, 1.5, 1.0, 1.0]];
    let slow = simulate(&plan, &kind).unwrap();
    // Its stage takes one and a half times as long, and the pipeline follows it.
    let ratio = slow.total() / healthy.total();
    assert!((1.4..1.5).contains(&ratio), "{ratio}");
    assert!(slow.stragglers > 0.3 * healthy.total(), "{slow:?}");
    assert_eq!(healthy.stragglers, 0.0);
}

proptest! {
    #[test]
    fn parts_add_up_and_nothing_is_gained_by_waiting(
        which in 0usize..6, pp in 1usize..5, groups in 1usize..5,
        gather in 0.0..3.0, reduce in 0.0..3.0, message in 0.0..2.0, each in any::<bool>(), overlap in any::<bool>(), beside in 1.0..2.0,
    ) {
        let kind = if pp == 1 { PipelineScheduleKind::OneFOneB } else { PipelineScheduleKind::ALL[which] };
        let chunks = if pp == 1 { 1 } else { chunks_of(kind) };
        let micro_batches = pp * groups;
        let mut plan = plain(pp * chunks, pp);
        plan.messages.iter_mut().for_each(|links| links.fill(message));
        plan.reduce_each_micro_batch = each;
        (plan.overlap, plan.beside) = (overlap, beside);
        plan.stages.iter_mut().for_each(|stage| *stage = SimulatedStage { reduce: 0.0, optimizer: 0.5, gather: 0.25 });
        for block in &mut plan.blocks {
            (block.gather, block.reduce, block.recompute, block.tensor_parallel) = (gather, reduce, 0.5, 0.1);
        }
        let pipeline = pipeline(kind, pp, chunks, micro_batches);
        let parts = simulate(&plan, &pipeline).unwrap();
        let total = parts.total();
        prop_assert!(parts.parts().iter().all(|(_, part)| *part > -1e-9));
        let busy = (chunks * micro_batches) as f64 * 3.7 + 0.75;
        prop_assert!(total >= busy - 1e-9);
        let blocking = simulate(&StepPlan { overlap: false, ..plan.clone() }, &pipeline).unwrap().total();
        prop_assert!(total <= blocking + 1e-9, "{total} and {blocking}");
    }
}

/// On processors a tied head's gradient goes back with each message, to the stage that has the table.
#[test]
fn the_gradient_of_a_tied_table_is_sent_with_each_micro_batch() {
    use brigade_plan::model::ModelShape;
    use brigade_plan::search::{Axes, Evaluator, Workload, plan};
    let model = ModelShape::gpt("", 6, 256, 8, 4096, 256);
    let planned = |model: ModelShape| {
        let workload = Workload::new(model, "4x1xCPU".parse().unwrap(), 256, 32);
        let axes = Axes { pp: vec![4], zero: vec![0], micro_batches: vec![2], ..Axes::default() };
        let best = plan(&workload, &axes, 1).unwrap().best.remove(0);
        let evaluator = Evaluator::new(&workload);
        let link = workload.cluster.inter_node.bandwidth * workload.cluster.device.efficiency.links;
        let [forward, backward] = evaluator.step_plan(&best.candidate).unwrap().messages;
        (
            backward.iter().zip(&forward).map(|(back, on)| (back - on) * link).collect::<Vec<_>>(),
            best.memory.buffers,
        )
    };
    let (tied, held) = planned(model.clone());
    let (untied, held_without) = planned(model.untied());
    let table = 4.0 * 4096.0 * 256.0;
    assert!(tied.iter().all(|bytes| (bytes / table - 1.0).abs() < 1e-6), "{tied:?}");
    assert!(untied.iter().all(|bytes| *bytes == 0.0), "{untied:?}");
    assert_eq!(held - held_without, 2 * table as u64);
}
