//! Every cause of a slow run is found and named first, with a gain near the true one, and a healthy run gets no diagnosis.

use brigade_report::{HistoryRecord, RunEvent};
use brigade_runs::scaling::{Cause, Finding, Profile, diagnose, scaling};
use brigade_runs::{Run, settings_of};

use crate::simulated::Simulated;

/// What is found first.
#[track_caller]
pub fn first(simulated: &Simulated) -> Finding {
    let findings = diagnose(&simulated.run());
    findings.first().cloned().unwrap_or_else(|| panic!("nothing was found"))
}

/// Checks what is found first, where, by how much more would be trained, and words of the sentence.
#[track_caller]
pub fn check(simulated: &Simulated, cause: Cause, place: Option<usize>, gain: f64, words: &[&str]) {
    let found = first(simulated);
    assert_eq!((found.cause, found.place), (cause, place), "{found:?}");
    assert!((found.gain_percent - gain).abs() < 0.15 * gain, "{gain}% expected: {found:?}");
    for word in words {
        assert!(found.sentence.contains(word), "{word}: {}", found.sentence);
    }
}

#[test]
fn a_healthy_run_gets_no_diagnosis() {
    let pipeline = Simulated { pp: 2, dp: 2, micro_batches: 64, ..Simulated::default() };
    let one = Simulated { dp: 1, communication: (0.0, "all_reduce"), bytes: 0, ..Simulated::default() };
    for simulated in [Simulated::default(), pipeline, one] {
        assert_eq!(diagnose(&simulated.run()), []);
    }
    let mut run = Simulated { communication: (1.0, "all_reduce"), ..Simulated::default() }.run();
    run.records.truncate(4);
    assert_eq!(diagnose(&run), [], "four steps say nothing");
}

#[test]
fn a_slow_link() {
    let simulated = Simulated { communication: (0.5, "all_reduce"), ..Simulated::default() };
    check(
        &simulated,
        Cause::ExposedCommunication,
        None,
        49.0,
        &["mostly all_reduce", "train.global_batch_size"],
    );
    let advice = |what, settings| {
        let simulated = Simulated { communication: (0.5, what), settings, ..Simulated::default() };
        check(&simulated, Cause::ExposedCommunication, None, 49.0, &[]);
        first(&simulated).sentence
    };
    // What the run has already, does not use, or cannot have is not advised.
    let (gather, sum) = ("all_gather", "all_reduce");
    let of_three = advice(gather, "[zero]\nstage = 3\nkeep_gathered = false");
    assert!(of_three.contains("zero.prefetch = 2") && of_three.contains("zero.keep_gathered"), "{of_three}");
    assert!(!advice(gather, "[zero]\nstage = 3\nkeep_gathered = true").contains("keep_gathered"));
    // Of as many blocks as the model has, which are two more than its layers.
    for (settings, said) in [
        ("layers = 98\n[zero]\nstage = 3\nprefetch = 4", "`zero.prefetch = 8`, "),
        ("layers = 3\n[zero]\nstage = 3\nprefetch = 4", "`zero.prefetch = 5`, "),
        ("layers = 2\n[zero]\nstage = 3\nprefetch = 4", "mostly all_gather; `zero.keep_gathered = true` or"),
        (
            "layers = 2\n[zero]\nstage = 3\nprefetch = 4\nkeep_gathered = true",
            "mostly all_gather; a lower ZeRO stage gathers less;",
        ),
    ] {
        let sentence = advice(gather, settings);
        assert!(sentence.contains(said), "{settings}: {sentence}");
    }
    let of_one = advice(gather, "[zero]\nstage = 1\n[comm]\ncompress_gathers = \"none\"");
    assert!(of_one.contains("comm.compress_gathers") && !of_one.contains("prefetch"), "{of_one}");
    assert!(
        !advice(gather, "[zero]\nstage = 2\n[comm]\ncompress_gathers = \"int8\"")
            .contains("compress_gathers")
    );
    for (settings, halves) in [
        ("[compute]\nreduce_dtype = \"fp32\"\n[comm]\ncompress = \"none\"", true),
        ("[compute]\nreduce_dtype = \"bf16\"", false),
        ("[compute]\nreduce_dtype = \"fp32\"\n[comm]\ncompress = \"int8\"", false),
    ] {
        assert_eq!(advice(sum, settings).contains("compute.reduce_dtype"), halves, "{settings}");
    }
    let last = Simulated { communication: (0.5, "all_gather_scalars"), ..Simulated::default() };
    check(&last, Cause::ExposedCommunication, None, 49.0, &["the slowest one", "brigade inspect timeline"]);
    assert!(!first(&last).sentence.contains("bf16"), "fewer bytes would not help");
}

#[test]
fn a_slow_disk_under_the_data() {
    let one = Simulated {
        data_wait: Box::new(|_, rank| if rank == 1 { 0.4 } else { 0.0 }),
        ..Simulated::default()
    };
    check(&one, Cause::InputStarvation, Some(1), 39.0, &["rank 1 waits for data for 400"]);
    let all = Simulated { data_wait: Box::new(|_, _| 0.4), ..Simulated::default() };
    // A thread that reads all the time takes a step for a step, of which 1.02 s are left without the wait.
    let words = ["ranks wait for data", "1 thread cannot read fast enough, ", "`train.readers = 2`"];
    check(&all, Cause::InputStarvation, None, 39.0, &words);
    let none = Simulated { data_wait: Box::new(|_, _| 0.4), train: "readers = 0\n", ..Simulated::default() };
    check(&none, Cause::InputStarvation, None, 39.0, &["nothing is read ahead; `train.readers = 1`"]);
}

#[test]
fn a_stage_with_twice_the_blocks() {
    let simulated = Simulated {
        pp: 2,
        dp: 2,
        micro_batches: 64,
        compute: Box::new(|_, rank| if rank >= 2 { 1.4 } else { 0.7 }),
        ..Simulated::default()
    };
    check(
        &simulated,
        Cause::StageImbalance,
        Some(1),
        31.0,
        &["stage 1 computes 2.00 times", "pipeline.balance"],
    );
}

#[test]
fn too_few_micro_batches_for_the_stages() {
    let simulated = Simulated { pp: 4, dp: 1, micro_batches: 4, ..Simulated::default() };
    // 3/4 of the work on top, of which twice as many micro-batches save a half.
    check(
        &simulated,
        Cause::Bubble,
        None,
        27.0,
        &["4 stages fill", "with 4 micro-batches", "interleaved-1f1b"],
    );
    assert!(!first(&simulated).sentence.contains("train.micro_batch_size"), "one sample is the least");
    let uneven = Simulated { pp: 4, dp: 1, micro_batches: 5, ..Simulated::default() };
    let said = first(&uneven).sentence;
    assert!(!said.contains("interleaved"), "it needs a multiple of the stages: {said}");
    let settings = "[pipeline]\nschedule = \"interleaved-1f1b\"\nchunks = 2\n";
    let chunks = Simulated { pp: 4, dp: 1, micro_batches: 4, settings, ..Simulated::default() };
    check(&chunks, Cause::Bubble, None, 27.0, &["4 stages of 2 chunks", "twice as many `pipeline.chunks`"]);
    // The model has two blocks more than layers, of which each chunk needs one.
    for (layers, own, said) in [(5, "", false), (6, "", true), (13, settings, false), (14, settings, true)] {
        let settings = format!("layers = {layers}\n{own}").leak();
        let sentence =
            first(&Simulated { pp: 4, dp: 1, micro_batches: 4, settings, ..Simulated::default() }).sentence;
        assert_eq!(sentence.contains("`pipeline.chunks"), said, "{layers}: {sentence}");
    }
    let one = Simulated { pp: 4, dp: 1, micro_batches: 1, ..Simulated::default() };
    assert!(first(&one).sentence.contains("with 1 micro-batch per step"), "{:?}", first(&one));
    let mut run = simulated.run();
    run.settings = settings_of("[train]\nmicro_batch_size = 2\nglobal_batch_size = 8\n");
    let found = diagnose(&run).remove(0);
    assert!(found.sentence.contains("a smaller `train.micro_batch_size`"), "{found:?}");
}

/// The last stage is done first, and waits for the others with the numbers that end a step.
#[test]
fn waits_of_a_pipeline_that_drains_are_its_bubble() {
    let drains = |micro_batches, communication, what| Simulated {
        pp: 2,
        dp: 1,
        micro_batches,
        draining: 0.5,
        communication: (communication, what),
        ..Simulated::default()
    };
    let few = drains(2, 0.015, "all_reduce");
    check(&few, Cause::Bubble, None, 20.0, &["2 stages", "with 2 micro-batches"]);
    assert_eq!(diagnose(&few.run()).len(), 1, "{:?}", diagnose(&few.run()));
    let sums = drains(64, 0.5, "all_reduce");
    check(&sums, Cause::ExposedCommunication, None, 49.0, &["mostly all_reduce"]);
    // What is waited beyond what filling and draining take is communication, though it is recorded as the pipeline's.
    let mut run = drains(64, 0.5, "all_reduce").run();
    for record in &mut run.records {
        let late = record.comm_wait_seconds_by.remove("all_reduce").unwrap();
        record.bubble_seconds += late;
        *record.comm_wait_seconds_by.get_mut("all_gather_scalars").unwrap() += late;
    }
    let [exposed] = &diagnose(&run)[..] else { panic!("{:?}", diagnose(&run)) };
    assert_eq!(exposed.cause, Cause::ExposedCommunication, "{exposed:?}");
    assert!(
        (exposed.gain_percent - 49.0).abs() < 5.0 && exposed.sentence.contains("the slowest one"),
        "{exposed:?}"
    );
}

#[test]
fn outer_steps_that_workers_wait_for() {
    // Few bytes do not make it a matter of the batch, on which they do not depend.
    let advice = |settings, bytes| {
        let simulated =
            Simulated { communication: (0.5, "outer_step"), settings, bytes, ..Simulated::default() };
        let words = ["mostly outer_step", "strategy.inner_steps"];
        check(&simulated, Cause::ExposedCommunication, None, 49.0, &words);
        first(&simulated).sentence
    };
    let (codes, overlap) = ("strategy.outer_dtype", "strategy.overlap_steps");
    for (settings, said) in [
        ("[strategy]\nname = \"local-sgd\"", [false, false]),
        ("[strategy]\nname = \"diloco\"\nouter_dtype = \"fp32\"\noverlap_steps = 0", [true, true]),
        ("[strategy]\nname = \"diloco\"\nouter_dtype = \"int8\"\noverlap_steps = 0", [false, true]),
        ("[strategy]\nname = \"diloco\"\nouter_dtype = \"fp32\"\noverlap_steps = 5", [true, false]),
        ("[strategy]\nname = \"diloco\"\nouter_dtype = \"bf16\"\noverlap_steps = 5", [false, false]),
    ] {
        let sentence = advice(settings, 400_000_000);
        assert_eq!(sentence, advice(settings, 1_000_000));
        assert!(!sentence.contains("global_batch_size") && !sentence.contains("latency"), "{sentence}");
        assert_eq!([codes, overlap].map(|name| sentence.contains(name)), said, "{settings}: {sentence}");
    }
}

#[test]
fn too_small_a_batch() {
    let simulated =
        Simulated { communication: (0.4, "all_reduce"), bytes: 1_000_000, ..Simulated::default() };
    check(&simulated, Cause::SmallBatch, None, 39.0, &["the batch is too small for this many ranks"]);
    assert!(!first(&simulated).sentence.contains("sends half"), "fewer bytes would not help");
    let settings = "[zero]\nstage = 1\n[comm]\ncompress_gathers = \"none\"";
    let gathers = Simulated { communication: (0.4, "all_gather"), settings, ..simulated };
    check(&gathers, Cause::SmallBatch, None, 39.0, &["gathers them for more targets, and without ZeRO"]);
}

#[test]
fn too_small_a_batch_for_the_delay_of_the_network() {
    let of = |delay| Simulated {
        communication: (0.4, "all_reduce"),
        bytes: 15_000_000,
        network_delay: Some(delay),
        ..Simulated::default()
    };
    // 20 delays in ten sums.
    check(&of(0.012), Cause::SmallBatch, None, 39.0, &["the batch is too small for this many ranks"]);
    check(&of(0.002), Cause::ExposedCommunication, None, 39.0, &["send the same bytes for more targets"]);
}

#[test]
fn a_reduction_after_each_micro_batch() {
    let settings = "[zero]\nstage = 2\nreduce_every = \"micro_batch\"\n";
    let simulated = Simulated { communication: (0.8, "reduce_scatter"), settings, ..Simulated::default() };
    // 7 of 8 reductions.
    check(
        &simulated,
        Cause::RepeatedReduction,
        None,
        62.0,
        &["zero.reduce_every = \"step\"", "8 times less"],
    );
}

#[test]
fn checkpoints_too_often() {
    let simulated = Simulated { checkpoints: Some((1.0, 4)), ..Simulated::default() };
    check(&simulated, Cause::Checkpoints, None, 24.5, &["one every 4 steps", "checkpoint.every = 79"]);
    let strategies = [
        ("[strategy]\nname = \"sync\"\ninner_steps = 50\n", "sync_every = 2\n", 80),
        ("[strategy]\nname = \"diloco\"\ninner_steps = 4\n", "", 80),
        ("[strategy]\nname = \"async-server\"\nstaleness = 4\ninner_steps = 25\n", "", 100),
        ("[strategy]\nname = \"async-server\"\nstaleness = 0\ninner_steps = 25\n", "", 79),
    ];
    for (settings, train, every) in strategies {
        let simulated = Simulated { checkpoints: Some((1.0, 4)), settings, train, ..Simulated::default() };
        let found = first(&simulated).sentence;
        assert!(found.contains(&format!("`checkpoint.every = {every}` would leave 1%")), "{found}");
    }
}

#[test]
fn validation_between_steps() {
    let mut run = Simulated {
        between: Box::new(|step| if step % 5 == 0 { 2.0 } else { 0.01 }),
        ..Simulated::default()
    }
    .run();
    for record in &mut run.records {
        record.validation_loss = record.step.is_multiple_of(5).then_some(1.0);
    }
    // As they are, and of a run with one record for each update of 50 steps, where lines are missing.
    for stride in [1, 50] {
        run.records.iter_mut().for_each(|record| record.step *= stride);
        let found = diagnose(&run).remove(0);
        assert_eq!(found.cause, Cause::OutsideSteps, "{found:?}");
        assert!(
            found.sentence.contains("train.validate_every") && (found.gain_percent - 38.0).abs() < 5.0,
            "{found:?}"
        );
        run.records.remove(30);
    }
}

#[test]
fn what_is_missing_between_steps_is_no_loss() {
    // A night before the run is resumed, and steps whose lines cannot be read.
    let night = |step| if step == 20 { 30_000.0 } else { 0.01 };
    let mut run = Simulated { between: Box::new(night), ..Simulated::default() }.run();
    let [before, after] = [19, 20].map(|at| run.records[at].time.unwrap());
    let restarted = |restart, time| {
        let mut record = run.history[0].clone();
        if let RunEvent::Started { restart: own, .. } = &mut record.event {
            *own = restart;
        }
        HistoryRecord { time, ..record }
    };
    let [by_itself, by_hand] = [1, 0].map(|restart| restarted(restart, (before + after) / 2.0));
    run.history.push(by_itself);
    assert_eq!(diagnose(&run).remove(0).cause, Cause::OutsideSteps);
    run.history.push(by_hand);
    assert_eq!(diagnose(&run), []);
    for at in [30, 25, 10] {
        run.records.remove(at);
    }
    assert_eq!(diagnose(&run), []);
}

#[test]
fn the_worst_of_two_comes_first() {
    let simulated = Simulated {
        communication: (0.2, "all_reduce"),
        compute: Box::new(|_, rank| if rank == 3 { 1.6 } else { 1.0 }),
        ..Simulated::default()
    };
    let found: Vec<Cause> = diagnose(&simulated.run()).into_iter().map(|finding| finding.cause).collect();
    assert_eq!(found, [Cause::SlowRank, Cause::ExposedCommunication]);
}

/// 80 steps on one rank, and 20 on two that take half as long.
fn resumed_on_two_ranks(resumed_at: Option<u64>) -> Run {
    let one = Simulated { dp: 1, communication: (0.0, "all_reduce"), bytes: 0, ..Simulated::default() };
    let two = Simulated { dp: 2, compute: Box::new(|_, _| 0.5), ..Simulated::default() };
    let (mut run, mut later) = (one.run(), two.run());
    let ended = run.records.last().and_then(|record| record.time).unwrap();
    later.records.truncate(20);
    for (index, record) in later.records.iter_mut().enumerate() {
        record.step = 61 + index as u64;
        record.time = record.time.map(|time| time - 1.8e9 + ended + 100.0);
    }
    if let RunEvent::Started { resumed_at: own, .. } = &mut later.history[0].event {
        *own = resumed_at;
    }
    later.history[0].time = ended + 50.0;
    run.records.extend(later.records);
    run.history.extend(later.history);
    run
}

#[test]
fn only_the_steps_of_the_last_mesh_are_usual() {
    for resumed_at in [Some(60), None] {
        let run = resumed_on_two_ranks(resumed_at);
        let profile = Profile::of(&run);
        assert_eq!((profile.ranks, profile.steps), (2, 18));
        assert!((profile.step - 0.52).abs() < 0.02, "{}", profile.step);
        let note = run.last_mesh_note().unwrap();
        assert!(note.starts_with("the steps since 61 on 2 ranks (dp 2)"), "{note}");
    }
    // The same mesh again is no other one, and going back removes steps of the other.
    let mut run = resumed_on_two_ranks(Some(60));
    let mut again = run.history[1].clone();
    if let RunEvent::Started { resumed_at, .. } = &mut again.event {
        *resumed_at = Some(70);
    }
    run.history.push(again);
    assert_eq!(Profile::of(&run).steps, 18);
    run.history.push(HistoryRecord { time: 2e9, event: RunEvent::RolledBack { step: 50 } });
    assert_eq!(run.records_of_last_mesh()[0].step, 51);
    // Who resumes a finished run finds nothing left to do.
    let mut run = resumed_on_two_ranks(Some(60));
    let last = run.records.last().unwrap().step;
    let mut again = Simulated::default().run().history.remove(0);
    if let RunEvent::Started { resumed_at, .. } = &mut again.event {
        *resumed_at = Some(last);
    }
    let finished = RunEvent::Finished { step: last, ended_early: None };
    let at = |event: RunEvent| HistoryRecord { time: 2e9, event };
    run.history.extend([at(finished.clone()), again, at(finished)]);
    assert_eq!((run.ranks(), Profile::of(&run).steps), (Some(2), 18));
    assert!(run.last_mesh_note().unwrap().starts_with("the steps since 61 on 2 ranks"));
    // Another mesh of as many ranks, and one that has made no step yet.
    for (from, steps, said) in [(40, 18, "the steps since 41"), (60, 0, "no steps: there are none")] {
        let mut run = Simulated::default().run();
        assert_eq!(run.last_mesh_note(), None);
        let pipeline = Simulated { pp: 2, dp: 2, ..Simulated::default() };
        let mut later = pipeline.run().history.remove(0);
        if let RunEvent::Started { resumed_at, .. } = &mut later.event {
            *resumed_at = Some(from);
        }
        run.history.push(later);
        assert_eq!(Profile::of(&run).steps, steps);
        let note = run.last_mesh_note().unwrap();
        assert!(note.starts_with(said), "{note}");
        if steps == 0 {
            assert_eq!(diagnose(&run), []);
            let alone = Simulated { dp: 1, ..Simulated::default() }.run();
            let why = scaling(&[alone, run]).unwrap_err().to_string();
            assert!(why.contains("no steps in its last mesh"), "{why}");
        }
    }
}
