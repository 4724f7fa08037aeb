//! Data that are not always finite, and interruptions between them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brigade_comm::Timeouts;
use brigade_core::{Batch, Chain, Engine, EngineSettings, Groups, NamedTensor};
use brigade_launch::interrupt::Interrupt;
use burn::nn::Linear;
use burn::tensor::{Device, Distribution, Tensor};

use crate::dataset::{Dataset, samples};
use crate::error::Preempted;
use crate::run::StartFrom;
use crate::settings::{Backend, OnNonFinite, Settings, TrainSettings};
use crate::test_model::{Layers, layers, linear};
use crate::training_setup::Training;

use super::{SAMPLES, on_ranks, sampler};

/// Samples that debug builds read twice at the beginning of a run: the first micro-batch.
const READ_TWICE: u64 = cfg!(debug_assertions) as u64;
/// Samples that ranks compare before the first step.
const COMPARED: u64 = 3;

fn model() -> Layers {
    layers(3, &["a", "b"])
}

/// Samples of which some are not finite. Counts how often one was read, and sends a signal when a certain one is.
#[derive(Default)]
struct Poisoned {
    bad: Vec<usize>,
    signal_at: Option<(usize, Interrupt)>,
    read: AtomicU64,
}

impl Dataset for Poisoned {
    type Item = usize;
    type Input = Tensor<2>;
    type Target = Tensor<2>;

    fn len(&self) -> usize {
        SAMPLES
    }

    fn get(&self, index: usize) -> anyhow::Result<usize> {
        self.read.fetch_add(1, Ordering::Relaxed);
        if let Some((at, interrupt)) = &self.signal_at
            && *at == index
        {
            interrupt.preempt();
        }
        Ok(index)
    }

    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
        let value = |i: &usize| if self.bad.contains(i) { f32::NAN } else { (i * 37 % 11) as f32 / 11.0 };
        let rows: Vec<f32> = items.iter().flat_map(|i| [value(i), 1.0, value(&(i % 7))]).collect();
        let input = Tensor::<1>::from_data(&rows[..], device).reshape([items.len() as i32, 3]);
        Batch::new(input.clone(), input * 0.5, items.len())
    }
}

fn settings(steps: u64) -> Settings {
    let mut settings = Settings::default();
    settings.train.steps = steps;
    settings.train.global_batch_size = 4;
    settings.train.micro_batch_size = 1;
    settings.train.on_nonfinite = OnNonFinite::Rollback;
    settings.checkpoint.every = 2;
    // Where another backend is built in as well, too.
    settings.compute.backend = Backend::Cpu;
    settings
}

/// Runs on `ranks` data-parallel ranks; gives rank 0's weights, and how often it read a sample.
fn run(
    out: &Path,
    settings: &Settings,
    start_from: StartFrom,
    ranks: usize,
    data: impl Fn(usize, Interrupt) -> Poisoned + Sync,
) -> anyhow::Result<(Vec<NamedTensor>, u64)> {
    on_ranks(ranks, out, settings, start_from, |session, interrupt| {
        let data = Arc::new(data(session.rank(), interrupt));
        let training = Training::on(data.clone()).flops_per_target(1e6);
        let trained = session.train(model(), training)?;
        assert_eq!(session.group().op_timeout(), Timeouts::default().step);
        Ok((trained.model().tensors()?, data.read.load(Ordering::Relaxed)))
    })
}

/// The weights after steps on the batches of these positions, one process.
fn trained_on(positions: &[u64], settings: &Settings) -> Vec<NamedTensor> {
    let plan = settings.plan(1, 1).unwrap();
    let schedule = plan.lr_scheduler(settings.train.steps).unwrap();
    let optimizer = settings.optimizer.factory().unwrap();
    let engine = EngineSettings { ..plan.engine };
    let mut engine = Engine::new(model(), 0, &optimizer, Groups::single_rank(), engine).unwrap();
    let data = Poisoned::default();
    for (step, position) in positions.iter().enumerate() {
        let rows = (0..4).map(|k| sampler().global_micro_batch(*position, k).unwrap());
        let batches = rows.map(|items| data.batch(items, &brigade_cpu::device())).collect();
        if engine.synchronizes() {
            engine.step(batches, plan.learning_rate * schedule.factor(step as u64)).unwrap();
        } else {
            engine.accumulate(batches).unwrap();
        }
    }
    engine.tensors(0).unwrap()
}

fn sample_of(position: u64) -> usize {
    sampler().global_micro_batch(position, 2).unwrap()[0]
}

fn poisoned(positions: &[u64]) -> impl Fn(usize, Interrupt) -> Poisoned + Sync {
    let bad: Vec<usize> = positions.iter().map(|position| sample_of(*position)).collect();
    move |_, _| Poisoned { bad: bad.clone(), ..Poisoned::default() }
}

#[test]
fn a_run_rolls_back_and_continues_after_the_bad_batch() {
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(8);
        // The sixth batch is bad: back to step 4, and on with the seventh; of the next ones the tenth is bad, too.
        let (weights, _) =
            run(folder.path(), &settings, StartFrom::Scratch, ranks, poisoned(&[5, 9])).unwrap();
        assert_eq!(weights, trained_on(&[0, 1, 2, 3, 6, 7, 10, 11], &settings));
        let metrics = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        let step = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64();
        assert_eq!(metrics.lines().map(step).collect::<Vec<_>>(), (1..=8).map(Some).collect::<Vec<_>>());
    }
}

#[test]
fn a_bad_batch_in_any_step_takes_its_update_with_it() {
    // Samples below 7 are part of others' rows.
    let spoils_one = |position: &u64| sample_of(*position) >= 7;
    let mut parities = [false; 2];
    for bad in (2..8).filter(spoils_one) {
        parities[(bad % 2) as usize] = true;
        let update = bad - bad % 2;
        let good: Vec<u64> = (0..update).chain(update + 2..10).collect();
        for ranks in [1, 2] {
            let folder = tempfile::tempdir().unwrap();
            let settings =
                Settings { train: TrainSettings { sync_every: 2, ..settings(8).train }, ..settings(8) };
            let (weights, _) =
                run(folder.path(), &settings, StartFrom::Scratch, ranks, poisoned(&[bad])).unwrap();
            assert_eq!(weights, trained_on(&good, &settings), "{ranks} ranks, batch {bad}");
        }
    }
    assert_eq!(parities, [true; 2], "the first and the last step of an update");
}

#[test]
fn rollbacks_have_a_limit_and_need_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut limited = settings(8);
    limited.train.nonfinite_limit = 1;
    let error =
        run(folder.path(), &limited, StartFrom::Scratch, 2, poisoned(&[5, 9])).unwrap_err().to_string();
    assert!(error.contains("2 times in this run"), "{error}");
    assert!(error.contains("train.nonfinite_limit = 1"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let error =
        run(folder.path(), &settings(8), StartFrom::Scratch, 1, poisoned(&[1])).unwrap_err().to_string();
    assert!(error.contains("step 2") && error.contains("no checkpoint yet to roll back to"), "{error}");
}

/// Trains 12 steps with an interruption when the sample of the ninth batch is read (ahead); gives the weights, the step of
/// the interruption, and how many samples were read after it.
fn interrupted(bad: &[u64], settings: &Settings) -> (Vec<NamedTensor>, u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let data = |rank: usize, interrupt: Interrupt| Poisoned {
        bad: bad.iter().map(|position| sample_of(*position)).collect(),
        // Only one rank receives the signal.
        signal_at: (rank == 1).then_some((sample_of(8), interrupt)),
        ..Poisoned::default()
    };
    let end = run(folder.path(), settings, StartFrom::Scratch, 2, data).unwrap_err();
    assert!(end.is::<Preempted>(), "{end:#}");
    let storage = brigade_checkpoint::LocalStorage::new(folder.path().join("checkpoints"));
    let step = brigade_checkpoint::list(&storage).unwrap()[0].step;
    assert!((3..12).contains(&step), "{step}");
    let (weights, read) = run(folder.path(), settings, StartFrom::Checkpoint, 1, poisoned(bad)).unwrap();
    (weights, step, read)
}

#[test]
fn a_preempted_run_resumes_where_it_was_and_reads_nothing_again() {
    let settings = settings(12);
    let (weights, step, read) = interrupted(&[], &settings);
    assert_eq!(weights, trained_on(&(0..12).collect::<Vec<_>>(), &settings));
    // One rank reads four samples for each step that is left, and a few steps ahead of the last.
    let left = 4 * (12 - step);
    let ahead = settings.train.read_ahead as u64;
    let most = left + 4 * (ahead + 1) + READ_TWICE + COMPARED;
    assert!((left..=most).contains(&read), "{read} samples read, {left} needed");
}

#[test]
fn readers_do_not_change_what_is_trained() {
    let usual = settings(12);
    let expected = trained_on(&(0..12).collect::<Vec<_>>(), &usual);
    for (readers, read_ahead) in [(0, 4), (3, 1), (3, 8)] {
        let train = TrainSettings { readers, read_ahead, ..usual.train.clone() };
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { train, ..usual.clone() };
        let (weights, read) = run(folder.path(), &settings, StartFrom::Scratch, 2, poisoned(&[])).unwrap();
        assert_eq!(weights, expected, "{readers} readers, {read_ahead} ahead");
        // Nobody reads ahead of what is asked for.
        assert!(readers > 0 || read == 2 * 12 + READ_TWICE + COMPARED, "{read} samples read by a rank");
    }
}

#[test]
fn a_run_rolls_back_as_far_as_without_an_interruption() {
    let settings = settings(12);
    let (weights, ..) = interrupted(&[5], &settings);
    let positions: Vec<u64> = [0, 1, 2, 3].into_iter().chain(6..14).collect();
    assert_eq!(weights, trained_on(&positions, &settings));
}

#[test]
fn skipped_steps_stay_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut skipping = settings(6);
    skipping.train.on_nonfinite = OnNonFinite::Skip;
    let (weights, _) = run(folder.path(), &skipping, StartFrom::Scratch, 2, poisoned(&[3])).unwrap();
    let again = tempfile::tempdir().unwrap();
    let halfway = |rank: usize, interrupt: Interrupt| Poisoned {
        bad: vec![sample_of(3)],
        signal_at: (rank == 1).then(|| (sample_of(3), interrupt)),
        ..Poisoned::default()
    };
    assert!(run(again.path(), &skipping, StartFrom::Scratch, 2, halfway).unwrap_err().is::<Preempted>());
    let (resumed, _) = run(again.path(), &skipping, StartFrom::CheckpointIfAny, 2, poisoned(&[3])).unwrap();
    assert_eq!(resumed, weights);
}

#[test]
fn rates_are_per_rank_and_a_cpu_has_no_device_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(3);
    settings.output.peak_tflops = 0.5;
    run(folder.path(), &settings, StartFrom::Scratch, 2, poisoned(&[])).unwrap();
    let metrics = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 3);
    for line in metrics.lines() {
        let step: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| step[name].as_f64().unwrap();
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b;
        assert!(near(number("tflops"), 1e6 * number("tokens_per_second") / 2.0 / 1e12), "{line}");
        assert!(near(number("mfu_percent"), 100.0 * number("tflops") / 0.5), "{line}");
        assert!(!line.contains("device_memory"), "{line}");
    }
}

/// Samples that are read with noise: from a counter, or from Burn's generator when they are collated.
struct Noisy {
    in_get: bool,
    read: AtomicU64,
}

impl Dataset for Noisy {
    type Item = f32;
    type Input = Tensor<2>;
    type Target = Tensor<2>;

    fn len(&self) -> usize {
        SAMPLES
    }

    fn get(&self, index: usize) -> anyhow::Result<f32> {
        let noise = if self.in_get { self.read.fetch_add(1, Ordering::Relaxed) } else { 0 };
        Ok((index as f32).sin() + 0.01 * noise as f32)
    }

    fn batch(&self, items: Vec<f32>, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
        let rows: Vec<f32> = items.iter().flat_map(|item| [*item, 1.0, -item]).collect();
        let input = Tensor::<1>::from_data(&rows[..], device).reshape([items.len() as i32, 3]);
        let noise = input.random_like(Distribution::Uniform(0.0, 0.01));
        Batch::new(input.clone() + noise, input, items.len())
    }
}

#[test]
fn a_dataset_that_reads_samples_with_noise_is_found() {
    let train = |in_get: bool, check_blocks: bool| {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(4);
        settings.train.check_blocks = check_blocks;
        on_ranks(2, folder.path(), &settings, StartFrom::Scratch, |session, _| {
            let data = Noisy { in_get, read: AtomicU64::new(0) };
            session.train(model(), Training::on(data)).map(drop)
        })
    };
    let error = train(true, true).unwrap_err().to_string();
    let first = sampler().global_micro_batch(0, 0).unwrap()[0];
    for part in ["`Dataset::get`", "another micro-batch", &format!("({first})")] {
        assert!(error.contains(part), "{error}");
    }
    train(false, true).unwrap();
    assert_eq!(train(true, false).is_err(), cfg!(debug_assertions));
}

/// What is measured or compared before the first step is tried with fewer samples, too.
#[test]
fn data_and_blocks_for_whole_micro_batches_alone_can_be_trained() {
    const WHOLE: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(2);
    (settings.train.global_batch_size, settings.train.micro_batch_size) = (2 * WHOLE, WHOLE);
    settings.mesh.dp = 2;
    let is_trained = on_ranks(2, folder.path(), &settings, StartFrom::Scratch, |mut session, _| {
        session.local_ranks = Some(2);
        let data = samples(SAMPLES, |numbers, device| {
            assert_eq!(numbers.len(), WHOLE, "a micro-batch");
            let x = Tensor::<2>::ones([numbers.len(), 3], device);
            (x.clone(), x * 0.5)
        });
        let whole = Chain::new().then_fn("a", linear(3), |linear: &Linear, x: Tensor<2>| {
            linear.forward(x.reshape([WHOLE as i32, 3]))
        });
        let model = whole.loss(|y: Tensor<2>, target: Tensor<2>| (y - target).square().sum());
        let trained = session.train(model, Training::on(data))?;
        Ok(trained.weights_file().exists())
    });
    assert!(is_trained.unwrap());
}
