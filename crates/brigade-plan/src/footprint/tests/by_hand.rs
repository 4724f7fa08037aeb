//! Footprints against the tables, and against counts by hand.

use super::{blocks, hidden, only, stages, tied, tokens};
use crate::footprint::{Configuration, MemoryFootprint, SavedActivations, Sent};
use crate::{PipelineScheduleKind, ReshardPolicy};

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
        let zero3 = |reshard| Configuration { reshard, ..stage(3) };
        assert_eq!(sent(stage(0)), [(2, 6), (0, 0), (0, 0)]);
        assert_eq!(sent(stage(1)), [(0, 0), (1, 6), (1, 6)]);
        assert_eq!(sent(stage(2)), [(0, 0), (4, 24), (1, 6)]);
        assert_eq!(
            sent(Configuration { reduce_each_micro_batch: false, ..stage(2) }),
            [(0, 0), (1, 6), (1, 6)]
        );
        assert_eq!(sent(zero3(ReshardPolicy::AfterUse)), [(0, 0), (4, 24), (8, 48)]);
        assert_eq!(sent(zero3(ReshardPolicy::AfterBackward)), [(0, 0), (4, 24), (4, 24)]);
        assert_eq!(sent(zero3(ReshardPolicy::AfterStep)), [(0, 0), (4, 24), (1, 6)]);
        let once = Configuration { micro_batches: 1, ..zero3(ReshardPolicy::AfterUse) };
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
    let base = Configuration { dp: ranks, reshard: ReshardPolicy::AfterUse, ..blocks(&[size; 6]) };
    for (zero_stage, parameters, gradients, optimizer) in [
        (0, 4 * psi, 4 * psi, 8 * psi),
        (1, 4 * psi, 4 * psi, 2 * psi),
        (2, 4 * psi, psi, 2 * psi),
        (3, psi, psi, 2 * psi),
    ] {
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
    let (boundary, input) = (hidden().bytes, tokens().bytes);
    let peaks = |configuration: &Configuration| -> Vec<u64> {
        stages(configuration).iter().map(|stage| stage.memory.boundary_activations.peak).collect()
    };
    let mut configuration = tied();
    assert_eq!(peaks(&configuration), [2 * (input + 3 * boundary), 3 * boundary]);
    configuration.schedule = PipelineScheduleKind::GPipe;
    assert_eq!(peaks(&configuration), [4 * (input + 3 * boundary), 4 * 3 * boundary]);
    configuration.recompute_every = 1;
    assert_eq!(peaks(&configuration), [4 * (input + 2 * boundary), 4 * 3 * boundary]);
    assert!(
        stages(&configuration)
            .iter()
            .all(|s| s.memory.boundary_activations.formula == s.memory.boundary_activations.peak)
    );
    // Chunks of blocks 0, 1-2 and 3, 4-5: rank 0 has most, five, after its fifth forward.
    let chunks = Configuration {
        schedule: PipelineScheduleKind::Interleaved,
        chunks: 2,
        split: vec![1, 2, 1, 2],
        ..tied()
    };
    assert_eq!(stages(&chunks)[0].blocks, [0..1, 3..4]);
    assert_eq!(peaks(&chunks)[0], 3 * (input + boundary) + 2 * 2 * boundary);
    assert_eq!(peaks(&Configuration { boundary_activations: Vec::new(), ..tied() }), [0, 0]);
}

#[test]
fn inside_blocks_is_what_graphs_keep_and_what_the_one_that_runs_needs() {
    let block = |saved, peak, output| SavedActivations { saved, peak, output, deferred: 0 };
    // Blocks 0 to 5, and the loss.
    let saved_activations: Vec<SavedActivations> =
        (0..6).map(|index| block(10 + index, 100, 1000)).chain([block(7, 50, 0)]).collect();
    let peaks = |configuration: &Configuration| -> Vec<u64> {
        stages(configuration).iter().map(|stage| stage.memory.saved_activations.peak).collect()
    };
    let configuration = Configuration { saved_activations, ..tied() };
    // Two micro-batches in flight on the first stage, of which the first runs its last block; one on the second, whose last
    // block has more than the loss.
    let saved = |blocks: std::ops::Range<u64>| blocks.map(|index| 10 + index).sum::<u64>();
    assert_eq!(peaks(&configuration), [saved(0..3) + saved(0..2) + 100, saved(3..5) + 100]);
    // The last block's output is there once more, be it for the loss or for the block itself.
    let again = Configuration { recompute_every: 1, ..configuration.clone() };
    assert_eq!(peaks(&again), [100 + 1000, 100 + 1000]);
    let large_loss = |peak| {
        let mut saved_activations = configuration.saved_activations.clone();
        saved_activations[6].peak = peak;
        Configuration { saved_activations, ..configuration.clone() }
    };
    assert_eq!(peaks(&large_loss(200))[1], saved(3..6) + 200);
    assert_eq!(peaks(&Configuration { recompute_every: 1, ..large_loss(200) })[1], 200 + 1000);
    let formulas =
        stages(&configuration).iter().map(|stage| stage.memory.saved_activations.formula).collect::<Vec<_>>();
    assert_eq!(formulas, [2 * saved(0..3) + 90, saved(3..6) + 7 + 87]);
    assert_eq!(peaks(&tied()), [0, 0]);
}

#[test]
fn stages_send_activations_gradients_and_what_they_share() {
    let tensor = hidden().bytes + 2 + 3 * 8 + 4;
    // A pair of embedding and head: its new values to the second stage, its gradient back with each activation's.
    let values = |bytes: u64| bytes + 2 + 8 + 4;
    let relayed = |bytes: u64| bytes + 2 + 8;
    for (zero_stage, own) in [(0, 4096), (1, 2048), (3, 2048)] {
        let [first, second] = stages(&Configuration { zero_stage, ..tied() }).try_into().unwrap();
        assert_eq!(
            first.traffic.send,
            Sent { calls: 5, bytes: 4 * tensor + values(4 * own), unknown_calls: 0 }
        );
        assert_eq!(
            second.traffic.send,
            Sent { calls: 4, bytes: 4 * (tensor + relayed(4 * 4096)), unknown_calls: 0 }
        );
        assert_eq!(second.memory.optimizer.formula, 8 * 10_100 / if zero_stage > 0 { 2 } else { 1 });
        assert_eq!(second.memory.gradients.formula, 4 * 10_100 / if zero_stage > 2 { 2 } else { 1 });
    }
    let half = stages(&Configuration { compute_bytes: 2, ..tied() });
    assert_eq!(
        half[0].traffic.send.bytes,
        4 * tensor + values(2 * 4096),
        "all travels in the type of compute"
    );
    assert_eq!(half[1].traffic.send.bytes, 4 * (tensor + relayed(2 * 4096)));
    assert_eq!(half[1].memory.parameters.live, 6 * 10_100 + 2 * 4096, "masters stay at home");

    let three = stages(&Configuration { pp: 3, split: vec![2, 2, 2], ..tied() });
    let relay = 4 * tensor + 4 * (tensor + relayed(4 * 4096));
    assert_eq!(
        three[1].traffic.send,
        Sent { calls: 8, bytes: relay, unknown_calls: 0 },
        "the middle hands the gradient on"
    );
    let mut near = tied();
    near.units[1].users = vec![0, 2];
    assert_eq!(stages(&near)[1].traffic.send.bytes, 4 * tensor, "readers on the owner's stage send nothing");
    let mut masked = tied();
    masked.boundary_activations[3].push(tokens());
    let gradients = stages(&masked)[1].traffic.send.bytes;
    assert_eq!(gradients, 4 * (tensor + 1 + relayed(4 * 4096)), "a part without a gradient takes a byte");
}

#[test]
fn a_shared_parameter_counts_once_on_the_wire() {
    let psi = 4 * 6 * 1024u64;
    let mut base = Configuration { dp: 2, micro_batches: 4, ..blocks(&[1024; 6]) };
    base.units[0].users = vec![0, 3, 5];
    for (zero_stage, reduce_each_micro_batch, halves) in
        [(0, true, 2), (1, true, 2), (2, false, 2), (2, true, 5)]
    {
        let traffic = only(&Configuration { zero_stage, reduce_each_micro_batch, ..base.clone() }).traffic;
        assert_eq!(traffic.bytes(), halves * psi / 2, "ZeRO-{zero_stage}");
        assert_eq!(traffic.send.calls, 0);
    }
}

#[test]
fn an_offloaded_optimizer_has_values_of_its_own() {
    let size = 256 * 2 * 5;
    let psi = size as u64;
    for (zero_stage, compute_bytes, live) in
        [(0, 4, 8 * psi), (1, 4, 6 * psi), (3, 4, 2 * psi), (0, 2, 6 * psi), (2, 2, 4 * psi)]
    {
        let configuration =
            Configuration { zero_stage, dp: 2, compute_bytes, offload: true, ..blocks(&[size]) };
        let parameters = only(&configuration).memory.parameters;
        assert_eq!((parameters.live, parameters.formula), (live, live));
    }
}
