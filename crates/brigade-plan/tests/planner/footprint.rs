//! The closed form of a search against the exact counts of a footprint.

use brigade_plan::cluster::Dtype;
use brigade_plan::memory::{Accounting, ActivationSettings, Sharding, StageShape, stage_memory};
use brigade_plan::model::{ModelShape, TrainedCount};
use brigade_plan::search::{Axes, Workload, plan};
use brigade_plan::{Configuration, Footprint, PipelineScheduleKind, ReshardPolicy, UnitSize, ranges};

#[test]
fn parameters_gradients_and_state_are_the_same() {
    are_the_same(&small());
}

#[test]
fn they_are_the_same_where_a_part_is_trained() {
    let counts = |block: usize| match block {
        0 => [0, 6 << 12],
        7 => [2 << 12, 1 << 12],
        _ => [1 << 12, 4 << 12],
    };
    let trained = (0..8).map(|block| {
        let [trained, frozen] = counts(block);
        TrainedCount { trained, frozen }
    });
    are_the_same(&small().with_trained(trained));
}

fn small() -> ModelShape {
    // Sizes that divide into chunks for every number of ranks, so that nothing is padded.
    ModelShape {
        embedding_parameters: 6 << 12,
        layer_parameters: 5 << 12,
        head_parameters: 3 << 12,
        ..ModelShape::llama("", 6, 64, 4, 4, 256, 512, false)
    }
}

fn are_the_same(model: &ModelShape) {
    let unit = |block: usize, elements: u64, trainable: bool| UnitSize {
        trainable,
        ..UnitSize::trained(elements as usize, vec![block])
    };
    let of_block = |block: usize| {
        let trained = model.trained_parameters(block);
        let frozen = model.block_parameters(block) - trained;
        [unit(block, trained, true), unit(block, frozen, false)]
    };
    let units: Vec<UnitSize> =
        (0..model.blocks()).flat_map(of_block).filter(|unit| unit.elements > 0).collect();
    let mut count = 0;
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for (pp, split) in [(1, vec![8]), (2, vec![4, 4]), (4, vec![2, 2, 2, 2])] {
            for dp in [1, 2, 4] {
                for zero in 0..4 {
                    for micro_batches in [1, 2, 3, 4, 7, 8, 16] {
                        for each in [true, false] {
                            let reshard = ReshardPolicy::AfterBackward;
                            let configuration = Configuration {
                                units: units.clone(),
                                pp,
                                dp,
                                split: split.clone(),
                                micro_batches,
                                zero_stage: zero,
                                reshard,
                                reduce_each_micro_batch: each,
                                compute_bytes: dtype.bytes() as usize,
                                ..Configuration::default()
                            };
                            let footprint = Footprint::of(&configuration).unwrap();
                            let sharding = Sharding {
                                zero,
                                shards: dp,
                                micro_batches,
                                reduce_each_micro_batch: each,
                                reshard,
                                offload: false,
                                tied_each_micro_batch: true,
                            };
                            for (rank, exact) in footprint.stages.iter().enumerate() {
                                let stage = StageShape {
                                    stages: pp,
                                    rank,
                                    chunks: vec![ranges(&split)[rank].clone()],
                                };
                                let settings = ActivationSettings {
                                    sequence_length: 1,
                                    micro_batch: 1,
                                    dtype,
                                    tp: 1,
                                    fused_attention: true,
                                    keeps_gathered: true,
                                };
                                let parts = stage_memory(
                                    model,
                                    &stage,
                                    &Accounting::brigade(dtype, 8),
                                    &sharding,
                                    &settings,
                                    PipelineScheduleKind::OneFOneB,
                                    0,
                                );
                                let what = format!(
                                    "{dtype:?} pp {pp} dp {dp} zero {zero} m {micro_batches} each {each} stage {rank}"
                                );
                                // Masters count as parameters there.
                                let state = exact.memory.parameters.live + exact.memory.optimizer.live;
                                assert_eq!(parts.parameters + parts.optimizer, state, "{what}");
                                // Without buffers in flight, which are bounded by two units.
                                let held = parts.gradients;
                                let peak = exact.memory.gradients.peak;
                                let two = 4 * 2 * (6 << 12);
                                assert!(held <= peak && peak <= held + two, "{what}: {held} and {peak}");
                                count += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(count > 1000);
}

/// Adapters of queries and values (rank 16) of a Llama of 8 billion parameters.
fn adapters() -> ModelShape {
    let model = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
    let adapters = 16 * (4096 + 4096 + 4096 + 1024);
    let counts = (0..34).map(|block| TrainedCount {
        trained: if (1..33).contains(&block) { adapters } else { 0 },
        frozen: model.block_parameters(block),
    });
    model.clone().with_trained(counts)
}

#[test]
fn adapters_fit_where_the_whole_model_does_not() {
    let model = adapters();
    let (all, trained) = (model.parameters(), model.all_trained_parameters());
    assert_eq!(trained, 32 * 16 * 13_312);
    let workload = Workload::new(model, "1x1xH100-80GB".parse().unwrap(), 1024, 8);
    let axes = Axes { offload: false, micro_batches: vec![1], recompute: vec![0], ..Axes::default() };
    let best = plan(&workload, &axes, 1).unwrap().best[0].clone();
    assert_eq!(best.memory.parameters, 2 * all);
    assert_eq!(best.memory.optimizer, 12 * trained);
    // Pairwise sums of eight micro-batches.
    assert_eq!(best.memory.gradients, 3 * 4 * trained);

    let whole = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
    let workload = Workload { model: whole, ..workload };
    assert!(plan(&workload, &axes, 1).unwrap().best.is_empty());
}

#[test]
fn frozen_parameters_take_less_time_and_send_no_gradients() {
    let whole = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
    let workload =
        |model: &ModelShape, cluster: &str| Workload::new(model.clone(), cluster.parse().unwrap(), 2048, 64);
    let axes = Axes { pp: vec![1], zero: vec![3], micro_batches: vec![1], ..Axes::default() };
    let best =
        |model: &ModelShape| plan(&workload(model, "1x8xH100-80GB"), &axes, 1).unwrap().best[0].clone();
    let (all, part) = (best(&whole), best(&adapters()));
    // Without gradients of weights: two thirds of the products.
    let ratio = part.parts.compute / all.parts.compute;
    assert!((0.6..0.75).contains(&ratio), "{ratio}");
    assert!(part.parts.optimizer < 0.01 * all.parts.optimizer);
    // So that MFU does not change much.
    assert!((part.mfu / all.mfu - 1.0).abs() < 0.15, "{} and {}", part.mfu, all.mfu);

    // What comes before all that is trained runs forward alone.
    let head = (0..34).map(|block| {
        let parameters = whole.block_parameters(block);
        let (trained, frozen) = if block == 33 { (parameters, 0) } else { (0, parameters) };
        TrainedCount { trained, frozen }
    });
    let part = best(&whole.clone().with_trained(head));
    let ratio = part.parts.compute / all.parts.compute;
    assert!((0.3..0.45).contains(&ratio), "{ratio}");
}
