//! Tables and estimators of others.

mod estimators;

use brigade_plan::memory::published::{DeepSpeedOffload, deepspeed, zero, zero_volume};
use brigade_plan::memory::{
    Accounting, ActivationSettings, KeptBytes, Sharding, StageShape, layer_activations, stage_memory,
};
use brigade_plan::model::ModelShape;
use brigade_plan::search::{Candidate, Evaluator, StageBalance, Workload};
use brigade_plan::time::failures::Failures;
use brigade_plan::time::overlap;
use brigade_plan::{PipelineScheduleKind, ReshardPolicy, cluster::Dtype};
use brigade_plan::{formula, ranges};

use self::estimators::{MegatronShape, megatron_activations, unfused_activations};

/// Rajbhandari et al. 2020, table 1: GB a device of 7.5B, 128B and 1T parameters under stages 1, 2 and 3, as printed there.
#[rustfmt::skip]
const ZERO: [(usize, [[&str; 3]; 3]); 6] = [
    (1, [["120", "120", "120"], ["2048", "2048", "2048"], ["16000", "16000", "16000"]]),
    (4, [["52.5", "41.3", "30"], ["896", "704", "512"], ["7000", "5500", "4000"]]),
    (16, [["35.6", "21.6", "7.5"], ["608", "368", "128"], ["4750", "2875", "1000"]]),
    (64, [["31.4", "16.6", "1.88"], ["536", "284", "32"], ["4187", "2218", "250"]]),
    (256, [["30.4", "15.4", "0.47"], ["518", "263", "8"], ["4046", "2054", "62.5"]]),
    (1024, [["30.1", "15.1", "0.12"], ["513", "257", "2"], ["4011", "2013", "15.6"]]),
];

/// Whether a number is the printed one, rounded or cut off at its digits.
fn is_printed(number: f64, printed: &str) -> bool {
    let decimals = printed.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let unit = 10f64.powi(decimals as i32);
    let value: f64 = printed.parse().unwrap();
    [(number * unit).round(), (number * unit).floor()].iter().any(|near| (near / unit - value).abs() < 1e-9)
}

#[test]
fn zero_holds_what_its_paper_says() {
    for (ranks, models) in ZERO {
        for (parameters, row) in [7.5e9, 128e9, 1e12].into_iter().zip(models) {
            for (stage, printed) in (1..).zip(row) {
                let bytes = zero(parameters, ranks, stage) / 1e9;
                assert!(
                    is_printed(bytes, printed),
                    "{parameters} over {ranks}, stage {stage}: {bytes}, not {printed}"
                );
            }
        }
        assert_eq!(zero(7.5e9, ranks, 0), 120e9);
    }
    assert_eq!([0, 1, 2, 3].map(zero_volume), [2.0, 2.0, 2.0, 3.0]);
}

/// Bytes of a parameter that a search counts with an accounting, of a shard over these ranks.
fn bytes_per_parameter(accounting: &Accounting, ranks: usize, stage_of_zero: u8) -> f64 {
    // One block of parameters alone: nothing is gathered ahead or reduced beside it.
    let model = ModelShape {
        embedding_parameters: 0,
        head_parameters: 0,
        layer_parameters: 1 << 20,
        ..ModelShape::llama("", 1, 64, 1, 1, 64, 64, false)
    };
    let stage = StageShape { stages: 1, rank: 0, chunks: ranges(&[3]) };
    let activations = ActivationSettings {
        sequence_length: 1,
        micro_batch: 1,
        dtype: Dtype::Bf16,
        tp: 1,
        fused_attention: true,
        keeps_gathered: true,
    };
    let sharding = Sharding {
        zero: stage_of_zero,
        shards: ranks,
        replicas: 1,
        micro_batches: 1,
        reduce_each_micro_batch: true,
        reshard: ReshardPolicy::AfterUse,
        offload: false,
        tied_each_micro_batch: true,
        kept: KeptBytes::default(),
    };
    let kind = PipelineScheduleKind::OneFOneB;
    let parts = stage_memory(&model, &stage, accounting, &sharding, &activations, kind, 0);
    (parts.parameters + parts.gradients + parts.optimizer) as f64 / f64::from(1 << 20)
}

#[test]
fn a_search_counts_the_same_with_that_accounting() {
    for ranks in [1, 4, 64] {
        for stage in 0..4 {
            let held = bytes_per_parameter(&Accounting::mixed_adam(), ranks, stage);
            assert_eq!(held, zero(1.0, ranks, stage), "stage {stage} over {ranks}");
        }
    }
}

/// 18 bytes of a parameter, or 6 + 12/N with a distributed optimizer over N ranks.
#[test]
fn a_search_counts_as_megatron_does() {
    for ranks in [1, 4, 64] {
        let held = |stage| bytes_per_parameter(&Accounting::megatron(), ranks, stage);
        assert_eq!([held(0), held(1)], [18.0, 6.0 + 12.0 / ranks as f64], "over {ranks}");
    }
}

#[test]
fn deepspeed_estimates() {
    let gib = |bytes: f64| (bytes / f64::from(1 << 30) * 100.0).round() / 100.0;
    // t5-3b, whose largest layer is its embedding, 32,128 rows of 1,024.
    let (parameters, largest) = (2851e6, 32_128.0 * 1024.0);
    let all = [DeepSpeedOffload::None, DeepSpeedOffload::Optimizer, DeepSpeedOffload::All];
    let of_stage = |stage| all.map(|offload| gib(deepspeed(parameters, largest, 8, stage, offload).unwrap()));
    assert_eq!(of_stage(2), [15.93, 5.31, 5.31]);
    assert_eq!(of_stage(3), [6.1, 0.79, 0.12]);
    assert_eq!([0, 1].map(|stage| deepspeed(parameters, largest, 8, stage, all[0])), [None, None]);
}

#[test]
fn megatron_estimates_of_activations() {
    let shape = MegatronShape {
        sequence_length: 2048.0,
        micro_batch: 1.0,
        hidden: 12288.0,
        ffn_hidden: 4.0 * 12288.0,
        layers: 96.0,
        vocabulary: 51200.0,
        tp: 8.0,
        stages: 8.0,
        chunks: None,
        micro_batches: None,
    };
    // 34 s b h a layer, and what the embedding keeps of 8 micro-batches.
    let sbh = 2048.0 * 12288.0;
    let embedding = 8.0 * 2048.0 * 8.0 + sbh * 8.0;
    assert_eq!(megatron_activations(&shape), (34.0 * sbh * 96.0 + embedding) / 8.0);
    let few = MegatronShape { micro_batches: Some(2.0), ..shape };
    assert_eq!(megatron_activations(&few), megatron_activations(&shape) / 4.0);
    let interleaved = MegatronShape { chunks: Some(3.0), ..shape };
    assert_eq!(megatron_activations(&interleaved), megatron_activations(&shape) * (1.0 + 7.0 / 24.0));
    let alone = MegatronShape { stages: 1.0, ..shape };
    let logits = 4.0 * sbh * (1.0 + 51200.0 / 12288.0);
    let embedding = 8.0 * 2048.0 + sbh;
    assert_eq!(megatron_activations(&alone), (34.0 * sbh * 96.0 + embedding + logits) / 8.0);
}

#[test]
fn activations_of_unfused_attention() {
    // GPT-3's layers keep 34 s b h and 5 a s² b bytes; without dropout, whose masks take 2 s b h and half of the rest but the scores.
    let (layers, length, batch, hidden, heads) = (96, 2048, 1, 12288, 96);
    let published = unfused_activations(96.0, 2048.0, 1.0, 12288.0, 96.0);
    let sbh = (length * batch * hidden) as f64;
    assert_eq!(published, layers as f64 * sbh * 34.0 + 5.0 * 96.0 * 96.0 * 2048.0 * 2048.0);
    let model = ModelShape::gpt("GPT-3", layers, hidden, heads, 50257, length);
    let settings = ActivationSettings {
        sequence_length: length,
        micro_batch: batch,
        dtype: Dtype::Bf16,
        tp: 1,
        fused_attention: false,
        keeps_gathered: true,
    };
    let scores = (heads * length * length * batch) as f64;
    let kept = layer_activations(&model, &settings) as f64;
    assert_eq!(kept, 32.0 * sbh + 4.0 * scores);
    // Selective recomputation, which drops the scores, saves 70% (Korthikanti et al. 2022, section 5); fused attention never has them.
    let dropped = 1.0 - 34.0 * sbh * 96.0 / published;
    assert!((dropped - 0.70).abs() < 0.01, "{dropped}");
}

#[test]
fn activations_of_tensor_parallel_ranks() {
    // GPT-3's layers by Megatron-LM's formula: 34 s b h / tp. Of these, 2 are masks of dropout, which is left out here.
    let (length, hidden, heads, tp) = (2048, 12288, 96, 8);
    let sbh = (length * hidden) as f64;
    let model = ModelShape::gpt("GPT-3", 96, hidden, heads, 51200, length);
    let kept = |accounting: Accounting| {
        let settings = ActivationSettings {
            sequence_length: length,
            micro_batch: 1,
            dtype: Dtype::Bf16,
            tp,
            fused_attention: true,
            keeps_gathered: accounting.keeps_gathered,
        };
        // Without the sums of fused attention.
        layer_activations(&model, &settings) as f64 - (4 * heads * length / tp) as f64
    };
    assert_eq!(kept(Accounting::megatron()), (34.0 - 2.0) * sbh / tp as f64);
    // Two inputs of products are whole on each rank.
    assert_eq!(kept(Accounting::separate_sums()), (4.0 + 4.0 * 7.0 / 8.0) * sbh);
    // Megatron-LM's ranks gather them again in the backward.
    let seconds = |accounting: Accounting| {
        let workload =
            Workload { accounting, ..Workload::new(model.clone(), "1x8xA100".parse().unwrap(), length, 8) };
        let candidate = Candidate {
            tp,
            pp: 1,
            dp: 1,
            replicate: 1,
            zero: 0,
            schedule: PipelineScheduleKind::OneFOneB,
            chunks: 1,
            micro_batch: 1,
            micro_batches: 8,
            recompute_every: 0,
            reshard: ReshardPolicy::AfterUseUnlessNext,
            reduce_each_micro_batch: true,
            offload: false,
        };
        Evaluator::new(&workload).evaluate(&candidate).unwrap().parts.tensor_parallel
    };
    // Eight halves of all-reduces a layer without, ten with it.
    let gathered = Accounting { keeps_gathered: true, ..Accounting::megatron() };
    let ratio = seconds(Accounting::megatron()) / seconds(gathered);
    assert!((ratio - 10.0 / 8.0).abs() < 1e-6, "{ratio}");
}

#[test]
fn parts_of_the_eight_billion_model() {
    // The Ultra-Scale Playbook's picture of ZeRO: 8B parameters over 8 ranks, in units of 2^30 bytes.
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let parameters = 8.0e9;
    for (stage, expected) in
        [(1, [15.0, 15.0, 7.5 * 1.5]), (2, [15.0, 1.875, 7.5 * 1.5]), (3, [1.875, 1.875, 7.5 * 1.5])]
    {
        let [weights, gradients, optimizer] = expected;
        // There moments are counted without masters: 8 bytes of the 12.
        let total: f64 = weights + gradients + optimizer;
        let ours = gib(zero(parameters, 8, stage));
        assert!((ours - total).abs() < 0.02 * total, "stage {stage}: {ours} and {total}");
    }
}

#[test]
fn activations_of_the_eight_billion_model() {
    // The same picture's activations, in units of 2^30 bytes, with fused attention: 34 s b h of each layer, 2 of which are masks of dropout, which is left out here.
    let (layers, hidden, heads) = (32, 4096, 32);
    for (length, printed) in [(1024, 4.25), (4096, 17.0), (16_384, 68.0)] {
        let model = ModelShape::gpt("8B", layers, hidden, heads, 128_256, length);
        let settings = ActivationSettings {
            sequence_length: length,
            micro_batch: 1,
            dtype: Dtype::Bf16,
            tp: 1,
            fused_attention: true,
            keeps_gathered: true,
        };
        // Without the sums of fused attention.
        let kept = layer_activations(&model, &settings) as usize - 4 * heads * length;
        let with_masks = layers * (kept + 2 * length * hidden);
        assert_eq!(with_masks as f64 / f64::from(1 << 30), printed, "{length}");
    }
}

#[test]
fn bubbles() {
    // Idle over useful time at p = 8.
    let over_ideal = |kind, chunks, micro_batches| {
        let share = formula::bubble_fraction(kind, 8, chunks, micro_batches);
        share / (1.0 - share)
    };
    let close = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} and {b}");
    close(over_ideal(PipelineScheduleKind::Interleaved, 8, 32), 0.03);
    close(over_ideal(PipelineScheduleKind::OneFOneB, 1, 32), 0.22);
    close(over_ideal(PipelineScheduleKind::OneFOneB, 1, 8), 0.875);
    close(over_ideal(PipelineScheduleKind::OneFOneB, 1, 1), 7.0);
}

#[test]
fn a_pipeline_over_two_nodes() {
    // From 8 to 16 stages, over the border of a node, a GPU loses 14% with few micro-batches (Nanotron team 2025). The model and their number are taken here to be 8.86B and one less
    // than the stages, so that the bubble is half of the time in both.
    let rate = |cluster: &str, pp: usize| {
        let model = ModelShape::llama("8.86B", 32, 4096, 32, 32, 14336, 131_072, false);
        let workload = Workload {
            accounting: Accounting::separate_sums(),
            balance: StageBalance::Parameters,
            ..Workload::new(model, cluster.parse().unwrap(), 4096, pp - 1)
        };
        let candidate = Candidate {
            tp: 1,
            pp,
            dp: 1,
            replicate: 1,
            zero: 0,
            schedule: PipelineScheduleKind::OneFOneB,
            chunks: 1,
            micro_batch: 1,
            micro_batches: pp - 1,
            recompute_every: 0,
            reshard: ReshardPolicy::AfterUseUnlessNext,
            reduce_each_micro_batch: true,
            offload: false,
        };
        Evaluator::new(&workload).evaluate(&candidate).unwrap().tokens_per_second / pp as f64
    };
    let lost = 1.0 - rate("2x8xH100", 16) / rate("1x8xH100", 8);
    assert!((lost - 0.14).abs() < 0.03, "{lost}");
}

#[test]
fn overlap_and_failures() {
    let ratio = overlap::zero3(4096.0, 1.0, 8, 989e12, 450e9);
    assert!((ratio - 7.0 / 8.0 * 989e12 / (2.0 * 4096.0 * 450e9)).abs() < 1e-12);
    assert!(overlap::data_parallel(4096.0, 8, 989e12, 450e9) == ratio);
    assert!(
        (overlap::pipeline(4096.0, 8.0, 989e12, 50e9) - 989e12 / (32.0 * 4096.0 * 8.0 * 50e9)).abs() < 1e-12
    );
    let failures = Failures { mtbf: 10_000.0, save: 50.0, write: 0.0, restart: 0.0 };
    assert_eq!(failures.young_interval(), 1000.0);
    // Daly's is Young's with two more terms, less the time of the save.
    assert!((failures.daly_interval() - (1000.0 * (1.0 + 0.05 / 3.0 + 0.0025 / 9.0) - 50.0)).abs() < 1e-9);
    // Nothing near it loses less.
    let best = failures.daly_interval();
    let lost = |interval| Failures::lost(&failures, interval);
    assert!(lost(best) <= lost(0.7 * best) && lost(best) <= lost(1.4 * best));
    assert_eq!(Failures { save: 30_000.0, ..failures }.daly_interval(), 10_000.0);
}
