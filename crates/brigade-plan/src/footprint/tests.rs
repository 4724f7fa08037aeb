//! Footprints against the tables and against counts by hand.

use proptest::prelude::*;

use super::{Configuration, CutTensor, Footprint, FootprintError, MemoryFootprint, StageFootprint, UnitSize};
use crate::{Release, ScheduleKind};

/// Blocks of so many elements each, on one stage.
fn blocks(elements: &[usize]) -> Configuration {
    let unit = |(home, elements): (usize, &usize)| UnitSize { elements: *elements, home, users: vec![home] };
    Configuration {
        units: elements.iter().enumerate().map(unit).collect(),
        split: vec![elements.len()],
        ..Configuration::default()
    }
}

fn stages(configuration: &Configuration) -> Vec<StageFootprint> {
    Footprint::of(configuration).unwrap().stages
}

fn only(configuration: &Configuration) -> StageFootprint {
    let [stage] = stages(configuration).try_into().unwrap();
    stage
}

/// The tensor between the layers of a transformer: 2 sequences of 8 tokens of width 16, in fp32.
fn hidden() -> CutTensor {
    CutTensor { bytes: 4 * 2 * 8 * 16, dimensions: 3, has_gradient: true }
}

fn tokens() -> CutTensor {
    CutTensor { bytes: 4 * 2 * 8, dimensions: 2, has_gradient: false }
}

/// Embedding, layers and head, whose weight is the embedding's, over two stages.
fn tied() -> Configuration {
    let mut configuration = blocks(&[1000, 5000, 5000, 5000, 5000, 100]);
    configuration.units.insert(1, UnitSize { elements: 4096, home: 0, users: vec![0, 5] });
    Configuration {
        cuts: vec![vec![tokens()], vec![hidden()], vec![hidden()], vec![hidden()], vec![hidden()], vec![hidden()]],
        pp: 2,
        dp: 2,
        split: vec![3, 3],
        micro_batches: 4,
        ..configuration
    }
}

#[test]
fn the_wire_is_as_the_table_says() {
    for ranks in [2, 3, 4] {
        let size = 256 * ranks * 7;
        let (psi, m) = (4 * 6 * size as u64, 4);
        let base = Configuration { dp: ranks, micro_batches: m, ..blocks(&[size; 6]) };
        // What a rank sends per step, in units of Ψ (n-1)/n: all-reduce, reduce-scatter, all-gather.
        let sent = |configuration: Configuration| {
            let traffic = only(&configuration).traffic;
            assert_eq!(traffic.send.calls, 0);
            [traffic.all_reduce, traffic.reduce_scatter, traffic.all_gather].map(|sent| {
                let whole = sent.bytes * ranks as u64;
                assert_eq!(whole % (psi * (ranks as u64 - 1)), 0);
                (whole / (psi * (ranks as u64 - 1)), sent.calls)
            })
        };
        let stage = |zero_stage| Configuration { zero_stage, ..base.clone() };
        let zero3 = |release| Configuration { release, ..stage(3) };
        assert_eq!(sent(stage(0)), [(2, 6), (0, 0), (0, 0)]);
        assert_eq!(sent(stage(1)), [(0, 0), (1, 6), (1, 6)]);
        assert_eq!(sent(stage(2)), [(0, 0), (4, 24), (1, 6)]);
        assert_eq!(sent(Configuration { reduce_each_micro_batch: false, ..stage(2) }), [(0, 0), (1, 6), (1, 6)]);
        assert_eq!(sent(zero3(Release::AfterUse)), [(0, 0), (4, 24), (8, 48)]);
        assert_eq!(sent(zero3(Release::AfterBackward)), [(0, 0), (4, 24), (4, 24)]);
        assert_eq!(sent(zero3(Release::AfterStep)), [(0, 0), (4, 24), (1, 6)]);
        let once = Configuration { micro_batches: 1, ..zero3(Release::AfterUse) };
        assert_eq!(sent(once), [(0, 0), (1, 6), (2, 12)], "3Ψ");
        let [full, half] = [4, 2].map(|bytes| {
            only(&Configuration { compute_bytes: bytes, reduce_bytes: bytes, ..stage(1) }).traffic.bytes()
        });
        assert_eq!(full, 2 * half);
    }
}

#[test]
fn the_memory_is_as_the_table_says() {
    let (ranks, size) = (4, 256 * 4 * 5);
    let psi = 6 * size as u64;
    let base = Configuration { dp: ranks, release: Release::AfterUse, ..blocks(&[size; 6]) };
    for (zero_stage, parameters, gradients, optimizer) in
        [(0, 4 * psi, 4 * psi, 8 * psi), (1, 4 * psi, 4 * psi, 2 * psi), (2, 4 * psi, psi, 2 * psi), (3, psi, psi, 2 * psi)]
    {
        let memory = only(&Configuration { zero_stage, ..base.clone() }).memory;
        let MemoryFootprint { parameters: p, gradients: g, optimizer: o, .. } = memory;
        assert_eq!([p.formula, g.formula, o.formula], [parameters, gradients, optimizer]);
        assert_eq!([p.live, o.live], [parameters, optimizer]);
        assert_eq!(g.live, if zero_stage == 0 { 4 * psi } else { psi }, "only shards are stepped");
        // Gathered are the block in use and the next; two whole gradients are on their way, beside all shards but theirs.
        let whole = 4 * size as u64;
        assert_eq!(p.working_set(), if zero_stage == 3 { 2 * whole } else { 0 });
        assert_eq!(g.working_set(), if zero_stage >= 2 { 2 * (whole - whole / 4) } else { 0 });
        assert_eq!(o.working_set(), 0);
        let alone = only(&Configuration { zero_stage, dp: 1, ..base.clone() });
        assert_eq!(alone.memory.peak(), 16 * psi);
        assert_eq!(alone.traffic.bytes(), 0);
    }
}

#[test]
fn masters_are_fp32() {
    let size = 256 * 2 * 5;
    let psi = size as u64;
    for (zero_stage, live) in [(0, 6 * psi), (1, 4 * psi), (2, 4 * psi), (3, 2 * psi)] {
        let half = Configuration { zero_stage, dp: 2, compute_bytes: 2, ..blocks(&[size]) };
        let parameters = only(&half).memory.parameters;
        assert_eq!((parameters.live, parameters.formula), (live, live));
        assert_eq!(parameters.peak - live, if zero_stage == 3 { 2 * psi } else { 0 });
    }
}

#[test]
fn gradients_are_counted_as_they_add_up() {
    let (whole, own) = (4 * 512, 2 * 512);
    let gradients = |zero_stage, micro_batches, elements: &[usize]| {
        let configuration = Configuration { zero_stage, dp: 2, micro_batches, ..blocks(elements) };
        let gradients = only(&configuration).memory.gradients;
        (gradients.live, gradients.peak)
    };
    // Sums of 2 and 1 micro-batches beside each other, for both blocks.
    assert_eq!(gradients(0, 4, &[512, 512]), (2 * whole, 4 * whole));
    assert_eq!(gradients(0, 6, &[512]), (whole, 2 * whole));
    assert_eq!(gradients(0, 8, &[512]), (whole, 3 * whole));
    assert_eq!(gradients(1, 8, &[512]), (own, 3 * whole));
    // Two on their way and, from the third micro-batch on, one that has come.
    assert_eq!(gradients(2, 1, &[512]), (own, whole));
    assert_eq!(gradients(2, 2, &[512]), (own, 2 * whole));
    assert_eq!(gradients(2, 3, &[512]), (2 * own, 2 * whole + own));
    assert_eq!(gradients(3, 8, &[512]), (own, 2 * whole + 2 * own));
}

#[test]
fn padding_counts_where_it_is_held_and_sent() {
    let configuration = |zero_stage, dp| Configuration { zero_stage, dp, ..blocks(&[1000]) };
    let zero1 = only(&configuration(1, 3));
    assert_eq!(zero1.memory.parameters.live, 4 * 1536);
    assert_eq!(zero1.memory.optimizer.peak, 8 * 512, "the last rank has no more than padding");
    assert_eq!(zero1.traffic.reduce_scatter.bytes, 4 * 512 * 2);
    assert_eq!(only(&configuration(1, 8)).memory.optimizer.peak, 8 * 256);
    assert_eq!(only(&configuration(1, 8)).memory.optimizer.formula, 1000);
    for dp in 2..9 {
        // Slices of an all-reduce differ by at most one element: the first rank has the largest.
        let slices: Vec<usize> = (0..dp).map(|rank| 1000 / dp + usize::from(rank < 1000 % dp)).collect();
        let sent = slices[1..].iter().sum::<usize>() + slices[0] * (dp - 1);
        assert_eq!(only(&configuration(0, dp)).traffic.all_reduce.bytes, 4 * sent as u64);
    }
}

#[test]
fn activations_are_the_cuts_of_what_is_in_flight() {
    let (cut, input) = (hidden().bytes, tokens().bytes);
    let peaks = |configuration: &Configuration| -> Vec<u64> {
        stages(configuration).iter().map(|stage| stage.memory.activations.peak).collect()
    };
    let mut configuration = tied();
    assert_eq!(peaks(&configuration), [2 * (input + 3 * cut), 3 * cut]);
    configuration.schedule = ScheduleKind::GPipe;
    assert_eq!(peaks(&configuration), [4 * (input + 3 * cut), 4 * 3 * cut]);
    configuration.recompute_every = 1;
    assert_eq!(peaks(&configuration), [4 * (input + 2 * cut), 4 * 3 * cut]);
    assert!(stages(&configuration).iter().all(|s| s.memory.activations.formula == s.memory.activations.peak));
    // Chunks of blocks 0, 1-2 and 3, 4-5: rank 0 has most, five, after its fifth forward.
    let chunks =
        Configuration { schedule: ScheduleKind::Interleaved, chunks: 2, split: vec![1, 2, 1, 2], ..tied() };
    assert_eq!(stages(&chunks)[0].blocks, [0..1, 3..4]);
    assert_eq!(peaks(&chunks)[0], 3 * (input + cut) + 2 * 2 * cut);
    assert_eq!(peaks(&Configuration { cuts: Vec::new(), ..tied() }), [0, 0]);
}

#[test]
fn stages_send_activations_gradients_and_what_they_share() {
    let tensor = hidden().bytes + 2 + 3 * 8 + 4;
    // A pair of embedding and head: its gradient to the first stage, its new values back.
    let flat = |elements: u64| 4 * elements + 2 + 8 + 4;
    for (zero_stage, own) in [(0, 4096), (1, 2048), (3, 2048)] {
        let both = stages(&Configuration { zero_stage, ..tied() });
        for stage in &both {
            assert_eq!((stage.traffic.send.calls, stage.traffic.send.bytes), (5, 4 * tensor + flat(own)));
        }
        assert_eq!(both[1].memory.optimizer.formula, 8 * 10_100 / if zero_stage > 0 { 2 } else { 1 });
    }
    let half = stages(&Configuration { compute_bytes: 2, ..tied() });
    assert_eq!(half[0].traffic.send.bytes, 4 * tensor + flat(2048), "values travel in the type of compute");
    assert_eq!(half[1].traffic.send.bytes, 4 * tensor + flat(4096), "gradients in fp32");
    assert_eq!(half[1].memory.parameters.live, 6 * 10_100 + 2 * 4096, "masters stay at home");

    let here = Configuration { pp: 1, split: vec![6], zero_stage: 2, ..tied() };
    assert_eq!(only(&here).traffic.reduce_scatter.calls, 4 * (7 + 1), "once for each block that shares");
    let mut masked = tied();
    masked.cuts[3].push(tokens());
    let gradients = &stages(&masked)[1].traffic.send;
    assert_eq!(gradients.bytes, 4 * (tensor + 1) + flat(4096), "a part without a gradient takes a byte");
}

#[test]
fn a_configuration_that_cannot_be_is_refused() {
    let text = |change: &dyn Fn(&mut Configuration)| {
        let mut configuration = tied();
        change(&mut configuration);
        Footprint::of(&configuration).unwrap_err().to_string()
    };
    insta::assert_snapshot!(text(&|c| c.zero_stage = 4), @"zero.stage (--zero) = 4 is not possible: 0 shards nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too");
    insta::assert_snapshot!(text(&|c| c.dp = 0), @"mesh.dp (--dp) = 0 is not possible: at least 1 is needed");
    insta::assert_snapshot!(text(&|c| c.compute_bytes = 3), @"bytes of compute.dtype = 3 is not possible: it must be 2 or 4");
    insta::assert_snapshot!(text(&|c| c.prefetch = usize::MAX), @"zero.prefetch = 18446744073709551615 is not possible: it must be at most 1000 blocks");
    insta::assert_snapshot!(text(&|c| c.cuts.truncate(2)), @"number of cuts = 2 is not possible: the model has 6 blocks; each needs its tensors, or none of them");
    insta::assert_snapshot!(text(&|c| c.units[1].users = vec![5, 0]), @"users of unit 1 = [5, 0] is not possible: they must be in order, of the model's 6 blocks, with the home, 0");
    insta::assert_snapshot!(text(&|c| c.units[1].users = vec![0, 6]), @"users of unit 1 = [0, 6] is not possible: they must be in order, of the model's 6 blocks, with the home, 0");
    insta::assert_snapshot!(text(&|c| c.units[1].users = vec![5]), @"users of unit 1 = [5] is not possible: they must be in order, of the model's 6 blocks, with the home, 0");
    insta::assert_snapshot!(text(&|c| c.split = vec![usize::MAX, 2]), @"sum of pipeline.stages = 18446744073709551615 is not possible: 1048576 blocks are the most");
    insta::assert_snapshot!(text(&|c| c.units[1].elements = usize::MAX / 4), @"bytes of the configuration = 1.0071922264245445e22 is not possible: at most 9.223372036854776e18 can be counted");
    assert!(matches!(Footprint::of(&Configuration { split: vec![3], ..tied() }), Err(FootprintError::Split(_))));
    assert!(matches!(Footprint::of(&Configuration { chunks: 2, ..tied() }), Err(FootprintError::Schedule(_))));
}

#[test]
fn the_text_has_a_few_lines_for_each_stage() {
    let mut configuration = blocks(&[600_000, 1_200_000, 1_200_000, 1_200_000, 1_200_000, 3000]);
    configuration.units.insert(1, UnitSize { elements: 3_000_000, home: 0, users: vec![0, 5] });
    let configuration = Configuration { zero_stage: 3, units: configuration.units, ..tied() };
    insta::assert_snapshot!(Footprint::of(&configuration).unwrap().render(), @r"
    stage 0: blocks 0-2
      memory  parameters 11.4 MiB (+ 18.3 MiB gathered)  gradients 11.4 MiB (+ 21.7 MiB working set)  optimizer 22.9 MiB  activations 6.1 KiB  at most 85.8 MiB
      sends   reduce_scatter 45.8 MiB in 16 calls  all_gather 71.0 MiB in 25 calls  send 5.7 MiB in 5 calls
    stage 1: blocks 3-5
      memory  parameters 10.3 MiB (+ 16.0 MiB gathered)  gradients 10.3 MiB (+ 24.0 MiB working set)  optimizer 9.2 MiB   activations 3.0 KiB  at most 69.9 MiB
      sends   reduce_scatter 41.2 MiB in 16 calls  all_gather 52.7 MiB in 21 calls  send 5.7 MiB in 5 calls
    ");
    let alone = Configuration { pp: 1, dp: 1, split: vec![6], cuts: Vec::new(), ..configuration };
    insta::assert_snapshot!(Footprint::of(&alone).unwrap().render(), @r"
    stage 0: blocks 0-5
      memory  parameters 32.1 MiB  gradients 32.1 MiB (+ 54.9 MiB working set)  optimizer 64.1 MiB  activations unknown  at most 183.2 MiB
      sends   nothing
    ");
}

const RELEASES: [Release; 4] =
    [Release::AfterUse, Release::AfterUseUnlessNext, Release::AfterBackward, Release::AfterStep];

prop_compose! {
    /// Any configuration that can be, with units that are shared at random.
    fn configurations()(
        (pp, chunks, dp) in (1usize..4, 1usize..3, 1usize..5),
        split in prop::collection::vec(1usize..4, 6),
        units in prop::collection::vec((1usize..5000, prop::collection::vec(0usize..100, 1..3)), 1..9),
        (groups, zero_stage, release, prefetch) in (1usize..4, 0u8..4, prop::sample::select(&RELEASES[..]), 0usize..4),
        (each, recompute_every, gpipe) in (any::<bool>(), 0usize..3, any::<bool>()),
        (compute, reduce) in (1usize..3, 1usize..3),
    ) -> Configuration {
        let split = split[..pp * chunks].to_vec();
        let blocks: usize = split.iter().sum();
        let unit = |(elements, users): (usize, Vec<usize>)| {
            let mut users: Vec<usize> = users.into_iter().map(|user| user % blocks).collect();
            users.sort();
            users.dedup();
            UnitSize { elements, home: users[elements % users.len()], users }
        };
        let schedule = match chunks {
            1 if gpipe => ScheduleKind::GPipe,
            1 => ScheduleKind::OneFOneB,
            _ => ScheduleKind::Interleaved,
        };
        Configuration {
            units: units.into_iter().map(unit).collect(),
            cuts: vec![vec![hidden()]; blocks],
            pp, dp, split, schedule, chunks,
            micro_batches: groups * pp,
            zero_stage, release, prefetch, recompute_every,
            reduce_each_micro_batch: each,
            compute_bytes: 2 * compute,
            reduce_bytes: 2 * reduce,
            optimizer_bytes: 8,
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_below_its_formula(configuration in configurations()) {
        for stage in stages(&configuration) {
            let MemoryFootprint { parameters, gradients, optimizer, activations } = stage.memory;
            for amount in [parameters, gradients, optimizer] {
                prop_assert!(amount.formula <= amount.peak && amount.live <= amount.peak, "{amount:?}");
            }
            prop_assert!(activations.peak <= activations.formula && activations.live == 0, "{activations:?}");
            prop_assert!(parameters.formula <= parameters.live && optimizer.live == optimizer.peak);
        }
    }

    #[test]
    fn two_parts_of_a_model_cost_what_both_do(configuration in configurations(), cut in any::<prop::sample::Index>()) {
        let (left, right) = configuration.units.split_at(cut.index(configuration.units.len()));
        // Without cuts, so that no part sends activations.
        let of = |units: &[UnitSize]| stages(&Configuration { units: units.to_vec(), cuts: Vec::new(), ..configuration.clone() });
        let nothing = of(&[]);
        for (((both, left), right), nothing) in of(&configuration.units).iter().zip(of(left)).zip(of(right)).zip(nothing) {
            let (b, l, r) = (both.memory, left.memory, right.memory);
            prop_assert_eq!(b.parameters.live, l.parameters.live + r.parameters.live);
            prop_assert_eq!(b.gradients.live, l.gradients.live + r.gradients.live);
            prop_assert_eq!(b.optimizer.live, l.optimizer.live + r.optimizer.live);
            prop_assert!(b.parameters.peak <= l.parameters.peak + r.parameters.peak);
            let operations = |stage: &StageFootprint| stage.traffic.by_operation();
            for (index, (name, sent)) in operations(both).into_iter().enumerate() {
                let parts = [operations(&left)[index].1, operations(&right)[index].1];
                prop_assert_eq!(sent.bytes, parts[0].bytes + parts[1].bytes, "{}", name);
                let calls = parts[0].calls + parts[1].calls - operations(&nothing)[index].1.calls;
                prop_assert_eq!(sent.calls, calls, "{}", name);
            }
        }
    }

    #[test]
    fn a_higher_zero_stage_holds_no_more(configuration in configurations()) {
        let mut whole = configuration;
        whole.units.iter_mut().for_each(|unit| unit.elements *= 256 * whole.dp);
        let held = [0, 1, 2, 3].map(|zero_stage| stages(&Configuration { zero_stage, ..whole.clone() }));
        for pair in held.windows(2) {
            for (lower, higher) in pair[0].iter().zip(&pair[1]) {
                let (lower, higher) = (lower.memory, higher.memory);
                prop_assert!(higher.parameters.live <= lower.parameters.live);
                prop_assert!(higher.optimizer.peak <= lower.optimizer.peak);
                for (lower, higher) in [
                    (lower.parameters, higher.parameters),
                    (lower.gradients, higher.gradients),
                    (lower.optimizer, higher.optimizer),
                ] {
                    prop_assert!(higher.formula <= lower.formula);
                }
            }
        }
    }
}
