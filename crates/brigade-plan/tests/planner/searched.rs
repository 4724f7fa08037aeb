//! Whole searches: what they find, in which order, and how fast.

use brigade_plan::PipelineScheduleKind;
use brigade_plan::cluster::MeasuredLinks;
use brigade_plan::model::ModelShape;
use brigade_plan::report::{command, explain, failures, render, render_what_if, what_if};
use brigade_plan::search::{Axes, Candidate, Evaluator, TensorParallelSearch, Workload, plan};
use brigade_plan::time::PlannedAlgorithm;

pub fn llama_8b() -> ModelShape {
    ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false)
}

pub fn llama_405b() -> ModelShape {
    ModelShape::llama("405B", 126, 16384, 128, 8, 53248, 128_256, false)
}

pub fn workload(model: ModelShape, cluster: &str, length: usize, batch: usize) -> Workload {
    Workload::new(model, cluster.parse().unwrap(), length, batch)
}

/// Seconds that a core has worked for this thread, in hundredths: other tests share the cores.
fn worked() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

#[test]
fn thousands_of_ranks_take_seconds() {
    for (cluster, batch, limit) in [("128x8xH100", 1024, 1.0), ("2048x8xH100", 16384, 10.0)] {
        for model in [llama_8b(), llama_405b()] {
            let begin = worked();
            let plan = plan(&workload(model, cluster, 8192, batch), &Axes::default(), 10).unwrap();
            let took = worked() - begin;
            assert!(took < limit, "{cluster}: {took:.2} s");
            assert!(!plan.best.is_empty() && plan.considered > 1000);
        }
    }
}

#[test]
fn advice_for_thousands_of_ranks_takes_seconds() {
    // Nothing fits, and several of what is tried for advice does not, either.
    let begin = worked();
    let plan = plan(&workload(llama_405b(), "128x8xL4", 8192, 256), &Axes::default(), 10).unwrap();
    let took = worked() - begin;
    assert!(plan.advice.is_some_and(|advice| !advice.changes.is_empty()));
    assert!(took < 10.0, "{took:.2} s");
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
    let text = render(&workload, &plan, &"llama".into());
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
    let line = command(&workload, best, &"gpt.toml".into()).unwrap();
    assert!(
        line.starts_with("brigade train --config gpt.toml") && line.contains("--global-batch-size 256"),
        "{line}"
    );
    let text = explain(&workload, best).unwrap();
    assert!(text.contains("6 N + 12 L h s") && text.contains("at the peak of 989 TFLOP/s"), "{text}");
    let report = failures(&workload, best, None).unwrap();
    assert!(report.steps >= 1 && report.lost < 0.05, "{report:?}");
    // Rarer checkpoints lose more work, and more often than they are written they wait for one another.
    let [rare, often] =
        [100.0, 0.01].map(|times| failures(&workload, best, Some(times * report.interval)).unwrap());
    assert!(rare.work > 50.0 * report.work && rare.lost > report.lost, "{rare:?}");
    assert!(often.failures.save > report.failures.save && often.lost > report.lost, "{often:?}");
    assert!(rare.text().contains("a failure loses"), "{}", rare.text());
    let changes = what_if(&workload, &best.candidate).unwrap();
    let text = render_what_if(&changes);
    assert!(text.contains("ring collectives") && text.contains("x 4 or x 2.00"), "{text}");
    let batches: Vec<f64> = changes.iter().rev().take(3).map(|change| change.efficiency).collect();
    assert!(batches.iter().all(|efficiency| *efficiency >= changes[0].efficiency), "{text}");
    assert_eq!(plan, brigade_plan::search::plan(&workload, &Axes::default(), 10).unwrap());
}

#[test]
fn as_many_are_shown_as_were_asked_for() {
    let one = workload(ModelShape::gpt("", 6, 384, 6, 50257, 256), "1x1xH100-80GB", 256, 64);
    for (axes, count) in [
        (Axes::default(), 7),
        (Axes { micro_batches: vec![1, 2], recompute: vec![0], ..Axes::default() }, 2),
        (Axes { pp: vec![1], zero: vec![0], ..Axes::default() }, 7),
    ] {
        let best = plan(&one, &axes, 50).unwrap().best;
        assert!(
            best.len() >= count && best.windows(2).all(|pair| pair[0].seconds <= 1.001 * pair[1].seconds)
        );
        let different: std::collections::HashSet<_> = best.iter().map(|best| best.candidate).collect();
        assert_eq!(different.len(), best.len());
    }
    // The best of each mesh and stage of ZeRO come before others of the first.
    let eight = workload(llama_8b(), "1x8xH100-80GB", 2048, 256);
    let kinds: Vec<_> = plan(&eight, &Axes::default(), 6)
        .unwrap()
        .best
        .iter()
        .map(|best| (best.candidate.pp, best.candidate.zero))
        .collect();
    let different: std::collections::HashSet<_> = kinds.iter().collect();
    assert_eq!(different.len(), 6, "{kinds:?}");
}

#[test]
fn processors_have_nowhere_to_offload_to() {
    // 16 bytes for each of 8 billion parameters do not fit, but 4 would, and what is offloaded stays in the same memory.
    let mut workload = workload(llama_8b(), "1x1xCPU", 512, 1);
    workload.cluster.device.memory = 120 << 30;
    workload.cluster.host_memory = 120 << 30;
    let plan = plan(&workload, &Axes::default(), 3).unwrap();
    assert!(plan.best.is_empty(), "{:?}", plan.best);
    let advice = plan.advice.as_ref().unwrap();
    assert!(!advice.leanest.offload && advice.missing.device > 0, "{advice:?}");
    let text = render(&workload, &plan, &"x".into());
    assert!(!text.contains("offload"), "{text}");
    let evaluator = Evaluator::new(&workload);
    let offloaded = Candidate { offload: true, ..advice.leanest };
    assert!(!evaluator.fits(&evaluator.memory(&offloaded).unwrap().1));
}

#[test]
fn a_large_micro_batch_is_planned_where_it_is_asked_for() {
    let workload = workload(ModelShape::gpt("", 2, 64, 2, 256, 64), "1x2xA100-40GB", 64, 1024);
    let best = |micro_batches: &[usize]| {
        let axes = Axes { micro_batches: micro_batches.to_vec(), pp: vec![1], ..Axes::default() };
        plan(&workload, &axes, 1).unwrap().best[0].candidate.micro_batch
    };
    assert_eq!(best(&[512]), 512);
    assert!(best(&[]) <= 256);
}

#[test]
fn measured_collectives_are_those_of_one_algorithm() {
    let mut workload = workload(llama_8b(), "2x8xH100", 4096, 256);
    workload.cluster.measured = Some(MeasuredLinks {
        message: 256e6,
        nodes: vec![1, 2],
        all_reduce: vec![436e9, 361e9],
        all_gather: vec![249e9, 184e9],
        reduce_scatter: vec![249e9, 181e9],
    });
    let best = plan(&workload, &Axes::default(), 1).unwrap().best.remove(0);
    let text = render_what_if(&what_if(&workload, &best.candidate).unwrap());
    assert!(text.contains("as it is") && !text.contains("collectives"), "{text}");
    workload.algorithm = PlannedAlgorithm::Tree;
    let refused = plan(&workload, &Axes::default(), 1).unwrap_err().to_string();
    assert!(refused.starts_with("--algorithm = tree is not possible: "), "{refused}");
}

#[test]
fn what_is_missing_is_said_of_tensor_parallelism_alone() {
    let workload = workload(llama_405b(), "1x8xH100", 4096, 64);
    let axes = Axes { tp: vec![8], ..Axes::default() };
    let plan = plan(&workload, &axes, 10).unwrap();
    let advice = plan.advice.as_ref().unwrap();
    assert!(advice.leanest.tp == 8 && advice.missing.device > 0, "{advice:?}");
}

#[test]
fn axes_are_kept_to() {
    let workload = workload(llama_8b(), "1x8xH100", 4096, 64);
    let axes = Axes {
        tensor: TensorParallelSearch::Off,
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
    let hybrid = Axes { tensor: TensorParallelSearch::Off, pp: vec![1], zero: vec![3], ..Axes::default() };
    let sharded = Axes { replicate: vec![1], ..hybrid.clone() };
    // ZeRO-3 alone gets worse from 512 ranks on, with as much to do for each rank.
    let mfu = |nodes: usize| best(llama_8b(), &format!("{nodes}x8xH100"), nodes * 8, &sharded).mfu;
    assert!(
        mfu(16) > mfu(64) && mfu(64) > mfu(128) && mfu(128) < 0.9 * mfu(16),
        "{} {} {}",
        mfu(16),
        mfu(64),
        mfu(128)
    );
    // Replicas of shards that stay within nodes do not.
    let replicated = best(llama_8b(), "128x8xH100", 128 * 8, &hybrid);
    assert!(replicated.candidate.replicate > 1 && replicated.mfu > 0.95 * mfu(16), "{}", replicated.mfu);
    // Below 10B on one node one technique is as good as any mixture.
    let all =
        best(llama_8b(), "1x8xH100", 64, &Axes { tensor: TensorParallelSearch::Off, ..Axes::default() });
    let one = best(llama_8b(), "1x8xH100", 64, &sharded);
    assert!(one.tokens_per_second > 0.9 * all.tokens_per_second);
    // Where there are more ranks than sequences, tensor parallelism within nodes is ahead of pipelines alone.
    let among = Axes { tensor: TensorParallelSearch::Ranked, ..Axes::default() };
    let large = best(llama_405b(), "128x8xH100", 256, &among);
    assert!(large.candidate.tp > 1, "{} {:?}", large.candidate.label(), large.parts);
}

#[test]
fn shards_stay_near_where_there_are_many_ranks() {
    let many = workload(llama_8b(), "128x8xH100", 4096, 1024);
    let axes = Axes {
        tensor: TensorParallelSearch::Off,
        pp: vec![1],
        zero: vec![3],
        offload: false,
        ..Axes::default()
    };
    let best = |axes: &Axes| plan(&many, axes, 1).unwrap().best[0].clone();
    let (free, whole) = (best(&axes), best(&Axes { replicate: vec![1], ..axes.clone() }));
    let candidate = free.candidate;
    assert!(candidate.replicate > 1 && candidate.shards().is_multiple_of(8), "{}", candidate.label());
    assert!(free.seconds < 0.95 * whole.seconds, "{free:?} and {whole:?}");
    let replicas = format!("--replicate {}", candidate.replicate);
    assert!(candidate.flags().contains(&replicas) && candidate.label().contains(&replicas[2..]));
    // Each rank holds as much as one of the ranks of a replica would alone.
    let evaluator = Evaluator::new(&many);
    let of = |candidate| evaluator.memory(&candidate).unwrap().1;
    let alone = Candidate { dp: candidate.shards(), replicate: 1, ..candidate };
    assert_eq!(of(candidate), of(alone));
    let text = explain(&many, &free).unwrap();
    assert!(text.contains(&format!("over {} replicas, once a step", candidate.replicate)), "{text}");
    let changes = what_if(&many, &candidate).unwrap();
    assert!(changes.iter().any(|change| change.change.contains("--replicate 1)")), "{changes:?}");
    // Any divisor can be asked for, but none where nothing is sharded.
    assert_eq!(best(&Axes { replicate: vec![256], ..axes.clone() }).candidate.shards(), 4);
    let none = plan(&many, &Axes { zero: vec![0], replicate: vec![8], ..axes }, 1).unwrap_err().to_string();
    assert!(none.contains("--zero 0 --replicate 8 cannot be combined"), "{none}");
}

#[test]
fn a_run_shows_how_fast_its_cluster_is() {
    use brigade_plan::search::{Evaluator, MeasuredStep, calibrate};
    let model = ModelShape::gpt("", 6, 256, 8, 4096, 256);
    let truth = || {
        let mut truth = workload(model.clone(), "1x4xCPU", 256, 32);
        truth.cluster.device.peaks.f32 /= 3.0;
        truth.cluster.device.peaks.bf16 /= 3.0;
        truth.cluster.device.memory_bandwidth /= 3.0;
        truth.cluster.device.launch *= 3.0;
        truth.cluster.device.function *= 3.0;
        truth.cluster.device.step = 0.02;
        truth.cluster.intra_node.bandwidth /= 20.0;
        truth.cluster.intra_node.latency *= 20.0;
        truth
    };
    let described = workload(model.clone(), "1x4xCPU", 256, 32);
    let axes = Axes { zero: vec![3], pp: vec![1], replicate: vec![1], offload: false, ..Axes::default() };
    let candidate = plan(&described, &axes, 1).unwrap().best[0].candidate;
    let run = Evaluator::new(&truth()).evaluate(&candidate).unwrap();
    let parts = run.parts;
    let measured = MeasuredStep {
        compute: parts.compute + parts.recompute + parts.optimizer,
        waiting: parts.all_gather + parts.reduce + parts.send + parts.bubble,
        rest: parts.host,
    };
    let found = calibrate(&described, &candidate, &measured).unwrap();
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.01, "{a} and {b}: {found:?}");
    near(found.compute, 1.0 / 3.0);
    near(found.links.unwrap(), 1.0 / 20.0);
    near(found.predicted[1], run.seconds);
    assert!(found.predicted[0] < 0.9 * run.seconds);
    // It reaches less of the peak, which MFU is a share of.
    assert_eq!(found.cluster.device.peaks, described.cluster.device.peaks);
    // Another configuration is then predicted as well.
    let other = Workload { cluster: found.cluster.clone(), ..described.clone() };
    let two = Candidate { zero: 0, micro_batch: 1, micro_batches: 8, ..candidate };
    let seconds = |workload: &Workload| Evaluator::new(workload).evaluate(&two).unwrap().seconds;
    near(seconds(&other), seconds(&truth()));
    // A wait that no links explain changes none, and a run without times shows nothing.
    let lost = MeasuredStep { waiting: 1e6, ..measured };
    assert_eq!(calibrate(&described, &candidate, &lost).unwrap().links, None);
    let none = MeasuredStep { compute: 0.0, ..measured };
    assert!(calibrate(&described, &candidate, &none).unwrap_err().to_string().contains("no time of forward"));
    // Neither do times that no such cluster takes.
    for (times, said) in [(1e-4, "CPU is described; from 1/64 to 64 times"), (1e4, "from 1/64 to 64 times")] {
        let wrong = MeasuredStep { compute: times * measured.compute, ..measured };
        let error = calibrate(&described, &candidate, &wrong).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(MeasuredStep::of(3.0, 1.0, 0.5).unwrap().waiting, 1.5);
    for step in [0.0, -2.0, f64::NAN] {
        let error = MeasuredStep::of(step, 1.0, 0.5).unwrap_err().to_string();
        assert!(error.contains("s without waiting for data; it must be above 0 s"), "{error}");
    }
}

#[test]
fn an_optimizer_on_the_host_makes_room_and_costs_time() {
    // In bf16 a parameter has 12 bytes of masters and moments: 45 GiB a rank, and its gradient and itself another 6 bytes.
    let workload = workload(llama_8b(), "1x2xA100-40GB", 2048, 16);
    let axes = |offload| Axes { tensor: TensorParallelSearch::Off, pp: vec![1], offload, ..Axes::default() };
    assert!(plan(&workload, &axes(false), 1).unwrap().best.is_empty());
    let found = plan(&workload, &axes(true), 1).unwrap();
    let best = &found.best[0];
    assert!(best.candidate.offload && best.candidate.zero == 3, "{:?}", best.candidate);
    assert_eq!(best.memory.optimizer, 0);
    let parameters = workload.model.parameters();
    let state = 12 * parameters / 2;
    assert!(best.memory.host.abs_diff(state) < state / 100, "{} and {state}", best.memory.host);
    // Gradients of 4 bytes go to the host, and parameters of 2 come back.
    let link = 6.0 * parameters as f64 / 2.0 / workload.cluster.host_bandwidth;
    assert!(best.parts.optimizer > link && best.parts.optimizer < 10.0 * link, "{:?} {link}", best.parts);
    let line = command(&workload, best, &"gpt.toml".into()).unwrap();
    assert!(line.contains("--set zero.offload_optimizer=true"), "{line}");

    let mut small = workload.clone();
    small.cluster.host_memory = 2 * state;
    assert!(
        plan(&small, &axes(true), 1).unwrap().best.is_empty(),
        "a tenth of the host's memory is for others"
    );

    // Where the device has room, it is faster there.
    let roomy = self::workload(llama_8b(), "1x2xH200", 2048, 16);
    let seconds = |offload: bool| {
        let plan = plan(&roomy, &axes(offload), 1).unwrap();
        (plan.best[0].candidate.offload, plan.best[0].seconds)
    };
    assert_eq!(seconds(true), (false, seconds(false).1));
}
