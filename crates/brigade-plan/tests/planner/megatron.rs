//! Runs of Megatron-LM on A100-80GB: the ten sizes of Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", table 1, and the steps of Korthikanti et
//! al. 2022, "Reducing activation recomputation in large transformer models", table 5. Sequences of 2,048 tokens, a vocabulary of 51,200. All kinds are counted with as they are in
//! the table of kinds: nothing here was fitted to these runs.

use brigade_plan::memory::Accounting;
use brigade_plan::model::ModelShape;
use brigade_plan::search::{Candidate, Evaluator, PlanEvaluation, Workload};
use brigade_plan::{PipelineScheduleKind, ReshardPolicy};

/// Layers, width, heads; tensor-parallel ranks, stages, chunks, data-parallel ranks; sequences of a micro-batch and of a step; whether all is recomputed.
struct Run([usize; 3], [usize; 4], [usize; 2], bool);

fn evaluated(run: &Run) -> PlanEvaluation {
    let Run([layers, hidden, heads], [tp, pp, chunks, dp], [micro_batch, batch], recomputes) = *run;
    let cluster = format!("{}x8xA100-80GB", (tp * pp * dp).div_ceil(8)).parse().unwrap();
    let model = ModelShape::gpt("", layers, hidden, heads, 51200, 2048);
    let workload = Workload {
        accounting: Accounting::megatron(),
        fused_attention: false,
        overlap: false,
        ..Workload::new(model, cluster, 2048, batch)
    };
    let candidate = Candidate {
        tp,
        pp,
        dp,
        replicate: 1,
        zero: 0,
        schedule: if chunks > 1 { PipelineScheduleKind::Interleaved } else { PipelineScheduleKind::OneFOneB },
        chunks,
        micro_batch,
        micro_batches: batch / dp / micro_batch,
        recompute_every: usize::from(recomputes),
        reshard: ReshardPolicy::AfterUseUnlessNext,
        reduce_each_micro_batch: true,
        offload: false,
    };
    Evaluator::new(&workload).evaluate(&candidate).unwrap()
}

/// The rows that are off by more than a share of what was measured.
fn missed(rows: impl Iterator<Item = (String, f64, f64)>, share: f64) -> Vec<String> {
    let off = |(name, ours, measured): (String, f64, f64)| {
        let ratio = ours / measured - 1.0;
        (ratio.abs() > share).then(|| format!("{name}: {ours:.2} for {measured:.2}"))
    };
    rows.filter_map(off).collect()
}

/// The table does not name the micro-batches; those of the large models are of one sequence.
#[test]
fn ten_sizes_reach_the_published_rates() {
    #[rustfmt::skip]
    let rows = [
        (137.0, Run([24, 2304, 24], [1, 1, 1, 32], [16, 512], true)),
        (138.0, Run([30, 3072, 32], [2, 1, 1, 32], [8, 512], true)),
        (142.0, Run([36, 4096, 32], [4, 1, 1, 32], [8, 512], true)),
        (135.0, Run([40, 6144, 48], [8, 1, 1, 32], [4, 1024], true)),
        (138.0, Run([48, 8192, 64], [8, 2, 2, 32], [2, 1536], true)),
        (140.0, Run([60, 10240, 80], [8, 4, 2, 32], [2, 1792], true)),
        (148.0, Run([80, 12288, 96], [8, 8, 2, 24], [1, 2304], true)),
        (155.0, Run([96, 16384, 128], [8, 16, 2, 15], [1, 2160], true)),
        (163.0, Run([105, 20480, 128], [8, 35, 3, 9], [1, 2520], true)),
        (163.0, Run([128, 25600, 160], [8, 64, 2, 6], [1, 3072], true)),
    ];
    let rates = rows.iter().map(|(measured, run)| {
        let Run([layers, hidden, _], [tp, pp, _, dp], [_, batch], _) = *run;
        let [l, h, b] = [layers, hidden, batch].map(|number| number as f64);
        // Its formula counts the forwards that run again.
        let flops = 96.0 * b * 2048.0 * l * h * h * (1.0 + 2048.0 / (6.0 * h) + 51200.0 / (16.0 * l * h));
        let rate = flops / evaluated(run).seconds / (tp * pp * dp) as f64 / 1e12;
        (format!("width {hidden}, TFLOP/s"), rate, *measured)
    });
    assert_eq!(missed(rates, 0.13), Vec::<String>::new());
}

/// Recomputing all, and the attention's scores alone, which are not kept here either. Of 22B, whose eight ranks have no pipeline, a tenth is missing.
#[test]
fn steps_take_as_long_as_published() {
    #[rustfmt::skip]
    let rows = [
        (1.42, 1.10, Run([48, 6144, 64], [8, 1, 1, 1], [4, 4], true)),
        (18.13, 13.75, Run([96, 12288, 96], [8, 8, 3, 1], [1, 64], true)),
        (49.05, 37.83, Run([105, 20480, 128], [8, 35, 3, 1], [1, 280], true)),
        (94.42, 71.49, Run([128, 25600, 160], [8, 64, 1, 1], [1, 512], true)),
    ];
    let seconds = rows.iter().flat_map(|(full, selective, run)| {
        let Run(model, mesh, batch, _) = *run;
        let kept = evaluated(&Run(model, mesh, batch, false)).seconds;
        let name = format!("width {}, s", model[1]);
        [(name.clone(), evaluated(run).seconds, *full), (name, kept, *selective)]
    });
    assert_eq!(missed(seconds, 0.15), Vec::<String>::new());
}
