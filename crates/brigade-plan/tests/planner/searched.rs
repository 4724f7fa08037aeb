//! Whole searches.

use std::time::{Duration, Instant};

use brigade_plan::PipelineScheduleKind;
use brigade_plan::model::ModelShape;
use brigade_plan::report::{command, explain, failures, render, render_what_if, what_if};
use brigade_plan::search::{Axes, Tensor, Workload, plan};

fn llama_8b() -> ModelShape {
    ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false)
}

fn llama_405b() -> ModelShape {
    ModelShape::llama("405B", 126, 16384, 128, 8, 53248, 128_256, false)
}

fn workload(model: ModelShape, cluster: &str, length: usize, batch: usize) -> Workload {
    Workload::new(model, cluster.parse().unwrap(), length, batch)
}

/// Time is that of one core in an optimised build; tests share cores, so the limits are three times those that are promised.
#[test]
fn thousands_of_ranks_take_seconds() {
    for (cluster, batch, limit) in [("128x8xH100", 1024, 3), ("2048x8xH100", 16384, 30)] {
        for model in [llama_8b(), llama_405b()] {
            let begin = Instant::now();
            let plan = plan(&workload(model, cluster, 8192, batch), &Axes::default(), 10).unwrap();
            let took = begin.elapsed();
            assert!(took < Duration::from_secs(limit), "{cluster}: {took:?}");
            assert!(!plan.best.is_empty() && plan.considered > 1000);
        }
    }
}

#[test]
fn the_best_come_first_and_fit() {
    let workload = workload(llama_8b(), "2x8xH100-80GB", 4096, 256);
    let plan = plan(&workload, &Axes::default(), 10).unwrap();
    assert_eq!(plan.best.len(), 10);
    assert!(plan.best.windows(2).all(|pair| pair[0].seconds <= 1.002 * pair[1].seconds));
    for best in &plan.best {
        let candidate = best.candidate;
        assert_eq!(candidate.pp * candidate.dp, 16);
        assert_eq!(candidate.dp * candidate.micro_batch * candidate.micro_batches, 256);
        assert!(best.memory.total() <= workload.cluster.usable_memory());
        assert!((best.parts.total() / best.seconds - 1.0).abs() < 1e-9);
        assert!(candidate.tp == 1 && (0.05..0.65).contains(&best.mfu));
        assert_eq!(best.split.iter().sum::<usize>(), 34);
    }
    assert!(plan.tensor_parallel.iter().all(|best| best.candidate.tp > 1));
    assert!(plan.advice.is_none());
    let text = render(&workload, &plan, "llama");
    for said in [
        "ZeRO-3 alone",
        "tokens/s",
        "fragmentation",
        "not built yet",
        "brigade train --model llama --nproc-per-node 8 --nnodes 2",
        "failures: one in",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let best = &plan.best[0];
    let line = command(&workload, best, "gpt.toml");
    assert!(
        line.starts_with("brigade train --config gpt.toml") && line.contains("--global-batch-size 256"),
        "{line}"
    );
    let text = explain(&workload, best).unwrap();
    assert!(text.contains("6 N + 12 L h s") && text.contains("at the peak of 989 TFLOP/s"), "{text}");
    let report = failures(&workload, best, None).unwrap();
    assert!(report.steps >= 1 && report.lost < 0.05, "{report:?}");
    let changes = what_if(&workload, &best.candidate).unwrap();
    let text = render_what_if(&changes);
    assert!(text.contains("ring collectives") && text.contains("x 4 or x 2.00"), "{text}");
    let batches: Vec<f64> = changes.iter().rev().take(3).map(|change| change.efficiency).collect();
    assert!(batches.iter().all(|efficiency| *efficiency >= changes[0].efficiency), "{text}");
    assert_eq!(plan, brigade_plan::search::plan(&workload, &Axes::default(), 10).unwrap());
}

#[test]
fn what_does_not_fit_is_told_what_would() {
    // 405B parameters need 16 bytes each: 6.5 TB, of which two nodes have 1.3 TB.
    let workload = workload(llama_405b(), "2x8xH100", 8192, 256);
    let axes = Axes { offload: false, ..Axes::default() };
    let plan = plan(&workload, &axes, 10).unwrap();
    assert!(plan.best.is_empty());
    let advice = plan.advice.as_ref().unwrap();
    assert!(
        advice.missing > 100 << 30 && advice.changes.iter().any(|change| change.contains("nodes")),
        "{advice:?}"
    );
    let text = render(&workload, &plan, "x");
    assert!(text.contains("No configuration fits") && text.contains("ZeRO-3 alone"), "{text}");
    // Where only the simplest does not fit, the change is named.
    let small = self::workload(llama_8b(), "1x8xH100", 4096, 64);
    let plan = brigade_plan::search::plan(&small, &Axes::default(), 3).unwrap();
    let alone = &plan.alone[0];
    assert!(
        alone.missing > 0 && alone.change.as_ref().is_some_and(|flags| flags.contains("--zero")),
        "{alone:?}"
    );
}

#[test]
fn wrong_numbers_are_refused() {
    let refused = |workload: &Workload, axes: &Axes| plan(workload, axes, 10).unwrap_err().to_string();
    let good = workload(llama_8b(), "2x8xH100", 4096, 256);
    let none = Axes::default();
    for (wrong, said) in [
        (Workload { sequence_length: 0, ..good.clone() }, "--sequence-length = 0"),
        (Workload { global_batch: 0, ..good.clone() }, "--global-batch-size = 0"),
        (Workload { slow_ranks: vec![(16, 2.0)], ..good.clone() }, "ranks 0 to 15"),
        (Workload { slow_ranks: vec![(1, 0.5)], ..good.clone() }, "from 1 to 1000"),
        (
            Workload { dtype: brigade_plan::cluster::Dtype::Bf16, ..workload(llama_8b(), "1x8xV100", 64, 8) },
            "no such products",
        ),
        (workload(llama_8b(), "64x8xH100", 4096, 7), "sequences (65536 tokens) would do"),
    ] {
        let error = refused(&wrong, &none);
        assert!(error.contains(said), "{said}: {error}");
    }
    let error = refused(&good, &Axes { pp: vec![3], ..none.clone() });
    assert!(error.contains("no configuration is left") || error.contains("--global-batch-size"), "{error}");
}

#[test]
fn axes_are_kept_to() {
    let workload = workload(llama_8b(), "1x8xH100", 4096, 64);
    let axes = Axes {
        tensor: Tensor::None,
        pp: vec![4],
        zero: vec![1],
        schedules: vec![PipelineScheduleKind::Zbv],
        micro_batches: vec![2],
        recompute: vec![1],
        offload: false,
        ..Axes::default()
    };
    let plan = plan(&workload, &axes, 10).unwrap();
    let [only] = &plan.best[..] else { panic!("{:?}", plan.best) };
    let candidate = only.candidate;
    assert_eq!((candidate.pp, candidate.dp, candidate.zero, candidate.recompute_every), (4, 2, 1, 1));
    assert_eq!(
        (candidate.schedule, candidate.chunks, candidate.micro_batches),
        (PipelineScheduleKind::Zbv, 2, 16)
    );
    assert!(plan.tensor_parallel.is_empty());
}

#[test]
fn slow_ranks_cost_what_they_hold_up() {
    let healthy = workload(llama_8b(), "2x8xH100", 4096, 256);
    let slow = Workload { slow_ranks: vec![(3, 1.3)], ..healthy.clone() };
    let seconds = |workload: &Workload| plan(workload, &Axes::default(), 1).unwrap().best[0].clone();
    let (healthy, slow) = (seconds(&healthy), seconds(&slow));
    let ratio = slow.seconds / healthy.seconds;
    assert!((1.1..1.31).contains(&ratio), "{ratio}");
    assert!(
        slow.parts.stragglers > 0.05 * slow.seconds && healthy.parts.stragglers == 0.0,
        "{:?}",
        slow.parts
    );
}

#[test]
fn advice_that_others_give_is_followed() {
    let best = |model: ModelShape, cluster: &str, batch: usize, axes: &Axes| {
        plan(&workload(model, cluster, 4096, batch), axes, 1).unwrap().best[0].clone()
    };
    let sharded = Axes { tensor: Tensor::None, pp: vec![1], zero: vec![3], ..Axes::default() };
    // ZeRO-3 alone gets worse from 512 ranks on, with as much to do for each rank.
    let mfu = |nodes: usize| best(llama_8b(), &format!("{nodes}x8xH100"), nodes * 8, &sharded).mfu;
    assert!(
        mfu(16) > mfu(64) && mfu(64) > mfu(128) && mfu(128) < 0.9 * mfu(16),
        "{} {} {}",
        mfu(16),
        mfu(64),
        mfu(128)
    );
    // Below 10B on one node one technique is as good as any mixture.
    let all = best(llama_8b(), "1x8xH100", 64, &Axes { tensor: Tensor::None, ..Axes::default() });
    let one = best(llama_8b(), "1x8xH100", 64, &sharded);
    assert!(one.tokens_per_second > 0.9 * all.tokens_per_second);
    // Where there are more ranks than sequences, tensor parallelism within nodes is ahead of pipelines alone.
    let among = Axes { tensor: Tensor::Among, ..Axes::default() };
    let large = best(llama_405b(), "128x8xH100", 256, &among);
    assert!(large.candidate.tp > 1, "{} {:?}", large.candidate.label(), large.parts);
}
