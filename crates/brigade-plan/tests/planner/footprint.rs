//! The closed form of a search against the exact counts of a footprint.

use brigade_compress::{Compression, Method};
use brigade_plan::cluster::Dtype;
use brigade_plan::memory::{
    Accounting, ActivationSettings, KeptBytes, MemoryParts, Sharding, StageShape, stage_memory,
};
use brigade_plan::model::{ModelShape, TrainedCount};
use brigade_plan::report::what_if;
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
                                replicas: 1,
                                micro_batches,
                                reduce_each_micro_batch: each,
                                reshard,
                                offload: false,
                                tied_each_micro_batch: true,
                                kept: KeptBytes::default(),
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

/// Bytes of a stage's gradients in closed form and counted exactly, each beyond what it is without compression.
fn kept(configuration: &Configuration, model: &ModelShape, rank: usize) -> [u64; 2] {
    let Configuration { pp, dp, replicas, zero_stage, compression, .. } = *configuration;
    let closed = |kept: KeptBytes| -> MemoryParts {
        let sharding = Sharding {
            zero: zero_stage,
            shards: dp,
            replicas,
            micro_batches: 2,
            reduce_each_micro_batch: false,
            reshard: ReshardPolicy::AfterBackward,
            offload: false,
            tied_each_micro_batch: true,
            kept,
        };
        let settings = ActivationSettings {
            sequence_length: 1,
            micro_batch: 1,
            dtype: Dtype::F32,
            tp: 1,
            fused_attention: true,
            keeps_gathered: true,
        };
        let chunks = vec![ranges(&configuration.split)[rank].clone()];
        let (stage, accounting) =
            (StageShape { stages: pp, rank, chunks }, Accounting::brigade(Dtype::F32, 8));
        stage_memory(model, &stage, &accounting, &sharding, &settings, PipelineScheduleKind::OneFOneB, 0)
    };
    let exact = |compression: Compression| {
        let counted = Footprint::of(&Configuration { compression, ..configuration.clone() }).unwrap();
        counted.stages[rank].memory.gradients.live
    };
    let with = closed(KeptBytes::of(&compression, model.hidden)).gradients;
    [with - closed(KeptBytes::default()).gradients, exact(compression) - exact(Compression::default())]
}

#[test]
fn what_compression_leaves_out_is_counted() {
    let model = small();
    let unit = |block: usize| UnitSize::trained(model.block_parameters(block) as usize, vec![block]);
    for method in [Method::Int8, Method::Int4, Method::RandomK, Method::TopK, Method::Bf16] {
        for (pp, split) in [(1, vec![8]), (2, vec![4, 4])] {
            for (dp, replicas) in [(1, 1), (2, 1), (4, 1), (2, 2)] {
                for zero in (0..4).filter(|zero| *zero > 0 || replicas == 1) {
                    let configuration = Configuration {
                        units: (0..model.blocks()).map(unit).collect(),
                        pp,
                        dp,
                        replicas,
                        split: split.clone(),
                        micro_batches: 2,
                        zero_stage: zero,
                        reduce_each_micro_batch: false,
                        compression: Compression { method, ..Compression::default() },
                        ..Configuration::default()
                    };
                    for rank in 0..pp {
                        let [closed, exact] = kept(&configuration, &model, rank);
                        let what = format!("{method} pp {pp} dp {dp} x {replicas} zero {zero} stage {rank}");
                        assert_eq!(closed, exact, "{what}");
                        let keeps = dp * replicas > 1 && method != Method::Bf16;
                        assert_eq!(closed > 0, keeps, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn factors_keep_about_two_gradients() {
    // Of wide matrices, whose factors are small.
    let compression = Compression { method: Method::PowerSgd, ..Compression::default() };
    let KeptBytes { gradient, sum } = KeptBytes::of(&compression, 4096);
    assert!((8.0..8.1).contains(&gradient) && sum == 0.0, "{gradient} and {sum}");
}

#[test]
fn fewer_bytes_on_the_way_take_more_memory() {
    let model = ModelShape::llama("1B", 16, 2048, 32, 8, 8192, 128_256, false);
    let workload = Workload::new(model, "1x8xH100-80GB".parse().unwrap(), 1024, 64);
    let axes = Axes { pp: vec![1], zero: vec![3], offload: false, ..Axes::default() };
    let best = plan(&workload, &axes, 1).unwrap().best[0].clone();
    let all = what_if(&workload, &best.candidate).unwrap();
    let gradients = |name: &str| {
        let found = all.iter().find(|row| row.change.contains(name)).unwrap();
        found.evaluation.memory.gradients
    };
    // Error feedback of all that a rank codes, which ZeRO does not shard.
    let kept = 8 * workload.model.parameters();
    for (name, more) in [("as it is", 0), ("bf16", 0), ("int8", kept), ("int4", kept)] {
        assert_eq!(gradients(name), best.memory.gradients + more, "{name}");
    }
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
