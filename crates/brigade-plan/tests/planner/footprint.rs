//! The closed form of a search against the exact counts of a footprint.

use brigade_plan::cluster::Dtype;
use brigade_plan::memory::{Accounting, ActivationSettings, Sharding, StageShape, stage_memory};
use brigade_plan::model::ModelShape;
use brigade_plan::{Configuration, Footprint, PipelineScheduleKind, ReshardPolicy, UnitSize, ranges};

#[test]
fn parameters_gradients_and_state_are_the_same() {
    // Sizes that divide into chunks for every number of ranks, so that nothing is padded.
    let model = ModelShape {
        embedding_parameters: 6 << 12,
        layer_parameters: 5 << 12,
        head_parameters: 3 << 12,
        ..ModelShape::llama("", 6, 64, 4, 4, 256, 512, false)
    };
    let units: Vec<UnitSize> = (0..model.blocks())
        .map(|block| UnitSize::trained(model.block_parameters(block) as usize, vec![block]))
        .collect();
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
                                    &model,
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
