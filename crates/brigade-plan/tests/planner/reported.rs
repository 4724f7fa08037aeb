//! What is said of plans: commands, what would fit, changes, and what is refused.

use brigade_plan::model::ModelShape;
use brigade_plan::report::{NamedModel, command, explain, notes, render, render_what_if, what_if};
use brigade_plan::search::{Axes, Candidate, Evaluator, Shortage, TensorParallelSearch, Workload, plan};

use crate::searched::{llama_8b, llama_405b, workload};

#[test]
fn what_does_not_fit_is_told_what_would() {
    // 405B parameters need 16 bytes each: 6.5 TB, of which two nodes have 1.3 TB.
    let workload = workload(llama_405b(), "2x8xH100", 8192, 256);
    let axes = Axes { offload: false, ..Axes::default() };
    let plan = plan(&workload, &axes, 10).unwrap();
    assert!(plan.best.is_empty());
    let advice = plan.advice.as_ref().unwrap();
    assert!(
        advice.missing.device > 100 << 30 && advice.changes.iter().any(|change| change.contains("nodes")),
        "{advice:?}"
    );
    let text = render(&workload, &plan, &"x".into());
    assert!(text.contains("No configuration fits") && text.contains("ZeRO-3 alone"), "{text}");
    // Where only the simplest does not fit, the change is named.
    let small = self::workload(llama_8b(), "1x8xH100", 4096, 64);
    let plan = brigade_plan::search::plan(&small, &Axes::default(), 3).unwrap();
    let alone = &plan.alone[0];
    assert!(
        alone.missing.device > 0 && alone.change.as_ref().is_some_and(|flags| flags.contains("--zero")),
        "{alone:?}"
    );
}

#[test]
fn what_is_to_be_known_of_a_plan_is_noted() {
    let model = ModelShape {
        note: Some("a field is not known".into()),
        ..ModelShape::gpt("small", 2, 64, 2, 256, 64)
    };
    assert_eq!(notes(&workload(llama_8b(), "2x8xH100", 4096, 256)), Vec::<String>::new());
    let workload = workload(model, "256x8xH100", 128, 2048);
    let found = notes(&workload);
    for (note, said) in
        found.iter().zip(["a field is not known", "at most 1024 ranks", "refuses sequences of 128 tokens"])
    {
        assert!(note.contains(said), "{said}: {found:?}");
    }
    assert_eq!(found.len(), 3, "{found:?}");
    let plan = plan(&workload, &Axes { pp: vec![1], ..Axes::default() }, 1).unwrap();
    let text = render(&workload, &plan, &"x".into());
    for note in &found {
        assert_eq!(text.matches(note.as_str()).count(), 1, "{note}: {text}");
    }
}

#[test]
fn a_configuration_is_explained_beside_the_estimates_of_others() {
    let workload = workload(llama_8b(), "2x8xH100", 4096, 256);
    for (stage, has_estimate) in [(0, false), (1, false), (2, true), (3, true)] {
        let axes =
            Axes { pp: vec![2], zero: vec![stage], replicate: vec![1], offload: false, ..Axes::default() };
        let plan = plan(&workload, &axes, 1).unwrap();
        let Some(best) = plan.best.first() else { continue };
        let text = explain(&workload, best).unwrap();
        assert!(text.contains("by the ZeRO paper's accounting"), "{text}");
        assert_eq!(
            text.contains(&format!("by DeepSpeed's estimator for ZeRO-{stage}")),
            has_estimate,
            "{text}"
        );
    }
}

#[test]
fn the_command_takes_back_what_the_file_sets_otherwise() {
    let workload = workload(llama_8b(), "2x8xH100", 4096, 256);
    let axes = Axes { pp: vec![1], zero: vec![2], ..Axes::default() };
    let best = plan(&workload, &axes, 1).unwrap().best.remove(0);
    let set = [
        ("mesh.replicate", "--replicate 1"),
        ("pipeline.schedule", "--schedule 1f1b"),
        ("pipeline.chunks", "--chunks 1"),
        ("pipeline.balance", "--set pipeline.balance=cost"),
        ("pipeline.stages", "--set pipeline.stages=[]"),
        ("zero.prefetch", "--set zero.prefetch=1"),
        ("zero.keep_gathered", "--set zero.keep_gathered=false"),
        ("zero.reshard_after_forward", "--set zero.reshard_after_forward=default"),
        ("zero.reduce_every", "--set zero.reduce_every=micro_batch"),
        ("zero.offload_optimizer", "--set zero.offload_optimizer=false"),
        ("compute.reduce_dtype", "--set compute.reduce_dtype=fp32"),
    ];
    let settings = set.iter().map(|(setting, _)| (*setting).to_owned()).collect();
    let named = NamedModel { name: "my.toml".into(), settings, ..NamedModel::default() };
    let (without, with) =
        (command(&workload, &best, &"my.toml".into()).unwrap(), command(&workload, &best, &named).unwrap());
    for (setting, flag) in set {
        assert!(with.contains(flag) && !without.contains(flag), "{setting}: {with}\n{without}");
    }
    let recomputes = NamedModel { settings: vec!["compute.recompute".into()], ..named.clone() };
    let line = command(&workload, &best, &recomputes).unwrap();
    assert_eq!(line.matches("--recompute ").count(), 1, "{line}");
}

#[test]
fn names_that_a_shell_would_take_apart_are_quoted() {
    let workload = workload(llama_8b(), "2x8xH100", 4096, 256);
    let best = plan(&workload, &Axes::default(), 1).unwrap().best.remove(0);
    for (name, said) in [
        ("my models/llama", "--model 'my models/llama' "),
        ("it's/config.json", r"--model 'it'\''s/' "),
        ("a/b.toml", "--config a/b.toml "),
        ("config.json", "--model . "),
        ("", "brigade train --nproc-per-node 8 "),
    ] {
        let line = command(&workload, &best, &name.into()).unwrap();
        assert!(line.contains(said), "{line}");
    }
}

#[test]
fn a_host_that_is_too_small_is_named() {
    // The devices have enough for all but the optimizer's state, and the host is small.
    let mut workload = workload(llama_8b(), "1x1xH100", 4096, 16);
    workload.cluster.host_memory = 32 << 30;
    let plan = plan(&workload, &Axes::default(), 3).unwrap();
    let advice = plan.advice.as_ref().unwrap();
    assert!(!advice.missing.is_none(), "{advice:?}");
    let text = render(&workload, &plan, &"x".into());
    assert!(!text.contains("lacks 0 B"), "{text}");
    let offloaded = Candidate { offload: true, ..advice.leanest };
    let evaluator = Evaluator::new(&workload);
    let missing = evaluator.missing(&evaluator.memory(&offloaded).unwrap().1);
    assert!(
        missing.host > 30 << 30 && missing.text().ends_with(" GiB of memory on each host"),
        "{missing:?}"
    );
    assert!(missing.too_much().ends_with(" GiB too much for the host's memory"), "{missing:?}");
    // What the host lacks counts when the leanest is chosen.
    let of_node = |missing: Shortage| missing.device + missing.host;
    assert!(of_node(advice.missing) <= of_node(missing), "{advice:?} {missing:?}");
    let changes = what_if(&workload, &offloaded).unwrap();
    assert!(
        render_what_if(&changes).contains(" too much for the host's memory"),
        "{}",
        render_what_if(&changes)
    );
}

#[test]
fn changes_that_do_not_fit_say_so() {
    let workload = workload(llama_8b(), "2x8xH100", 4096, 256);
    let best = plan(&workload, &Axes::default(), 1).unwrap().best.remove(0);
    let changes = what_if(&workload, &best.candidate).unwrap();
    assert!(changes[0].missing.is_none());
    let usable = workload.cluster.usable_memory();
    for change in &changes {
        assert_eq!(
            change.missing.device,
            change.evaluation.memory.total().saturating_sub(usable),
            "{change:?}"
        );
    }
    assert!(changes.iter().any(|change| !change.missing.is_none()), "{}", render_what_if(&changes));
    assert!(render_what_if(&changes).contains(" GiB too much"));
}

#[test]
fn efficiencies_above_one_are_explained() {
    for (cluster, is_above) in [("1x8xH100", true), ("64x8xH100", false)] {
        let workload = workload(llama_8b(), cluster, 1024, 512);
        let axes = Axes { pp: vec![1], zero: vec![3], replicate: vec![1], ..Axes::default() };
        let best = plan(&workload, &axes, 1).unwrap().best.remove(0);
        let text = render_what_if(&what_if(&workload, &best.candidate).unwrap());
        let percents = text.split_whitespace().filter_map(|word| word.strip_suffix('%')?.parse::<u32>().ok());
        assert_eq!(percents.max().unwrap() > 100, is_above, "{text}");
        assert_eq!(text.contains("Above 100%, a rank has less work"), is_above, "{text}");
    }
}

#[test]
fn batches_that_ranks_cannot_divide_are_said() {
    // 16 ranks take 48 of 50 sequences, and 16 where there are 10.
    for (batch, said) in
        [(50, "fits: 48 sequences in a step, not 50"), (10, "fits: 16 sequences in a step, not 10")]
    {
        let workload = workload(llama_8b(), "2x8xH100", 4096, batch);
        let text = render(&workload, &plan(&workload, &Axes::default(), 1).unwrap(), &"llama".into());
        let line = text.lines().find(|line| line.starts_with("ZeRO-3 alone")).unwrap();
        assert!(line.ends_with(said), "{line}");
    }
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
        (Workload { slow_ranks: vec![(1, 0.5)], ..good.clone() }, "1 to 1000"),
        (
            Workload { dtype: brigade_plan::cluster::Dtype::Bf16, ..workload(llama_8b(), "1x8xV100", 64, 8) },
            "no hardware for it",
        ),
        (
            workload(llama_8b(), "64x8xH100", 4096, 7),
            "the next possible batch is 16 sequences (65536 tokens)",
        ),
    ] {
        let error = refused(&wrong, &none);
        assert!(error.contains(said), "{said}: {error}");
    }
    let error = refused(&good, &Axes { pp: vec![3], ..none.clone() });
    assert_eq!(error, "--pp = 3 is not possible: it must divide the 16 ranks: 1, 2, 4, 8, 16");
}

#[test]
fn batches_that_are_too_small_are_those_of_the_meshes_asked_for() {
    let error = |cluster: &str, batch: usize, pp: &[usize]| {
        let refused = |tensor| {
            let axes = Axes { pp: pp.to_vec(), tensor, ..Axes::default() };
            plan(&workload(llama_8b(), cluster, 2048, batch), &axes, 1).unwrap_err().to_string()
        };
        let error = refused(TensorParallelSearch::Off);
        // What tensor parallelism would fit, which is not built, is no plan.
        assert_eq!(refused(TensorParallelSearch::Compared), error);
        error
    };
    assert_eq!(
        error("1x8xH100-80GB", 12, &[1]),
        "--global-batch-size = 12 is not possible: 8 ranks with --pp 1 make at least 8 data-parallel ranks, each with the same number of sequences; the \
         next possible batch is 16 sequences (32768 tokens)"
    );
    let any = error("1x64xH100-80GB", 1, &[]);
    assert!(
        any.contains("64 ranks make up to 34 pipeline stages, so at least 2 data-parallel ranks"),
        "{any}"
    );
    assert_eq!(
        error("8x8xH100-80GB", 64, &[64]),
        "--pp = 64 is not possible: it must divide the 64 ranks, and each stage needs one of the 34 blocks of the model: 1, 2, 4, 8, 16, 32"
    );
}
