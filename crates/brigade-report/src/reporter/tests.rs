use std::io;
use std::sync::{Arc, Mutex};

use super::*;
use crate::DeviceMemory;
use crate::history::HISTORY_FILE;

/// Output that a test can read.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn options() -> ReporterOptions {
    ReporterOptions {
        total_steps: 7,
        log_every: 3,
        console: ConsoleMode::Plain,
        ..ReporterOptions::default()
    }
}

#[test]
fn an_address_that_is_taken_costs_an_earlier_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut earlier = Reporter::create_on(folder.path(), options(), Box::new(io::sink())).unwrap();
    earlier.step(&StepRecord { step: 1, ..StepRecord::default() }).unwrap();
    drop(earlier.finish());
    let contents =
        || [METRICS_FILE, HISTORY_FILE].map(|name| fs::read_to_string(folder.path().join(name)).unwrap());
    let before = contents();
    let held = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let taken =
        || ReporterOptions { metrics_addr: Some(held.local_addr().unwrap()), overwrite: true, ..options() };
    assert!(Reporter::create_on(folder.path(), taken(), Box::new(io::sink())).is_err());
    assert!(Reporter::resume_on(folder.path(), taken(), 0, Box::new(io::sink())).is_err());
    assert_eq!(contents(), before);
}

#[test]
fn a_run_from_first_to_last_step() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("runs/a");
    let shown = Shared::default();
    let mut reporter = Reporter::create_on(&out, options(), Box::new(shown.clone())).unwrap();
    reporter.note("ranks from torchrun");
    for step in 1..=7 {
        let record = StepRecord { step, loss: 8.0 - step as f64, tokens: 10, ..StepRecord::default() };
        reporter.step(&record).unwrap();
        let written = fs::read_to_string(out.join(METRICS_FILE)).unwrap();
        assert_eq!(written.lines().count() as u64, step, "each step is on disk at once");
    }
    reporter.add_file(out.join("model.safetensors"));
    let summary = reporter.finish();
    assert_eq!((summary.steps, summary.tokens), (7, 70));
    assert_eq!((summary.first_loss, summary.last_loss), (Some(7.0), Some(1.0)));
    assert_eq!(summary.files.len(), 3);
    assert!(summary.files[..2].iter().all(|file| file.exists()));
    let text = shown.text();
    let steps: Vec<&str> = text.lines().skip(1).map(|line| &line[..8]).collect();
    assert!(text.starts_with("ranks from torchrun\n"));
    assert_eq!(steps, ["step 1/7", "step 3/7", "step 6/7", "step 7/7"]);
}

#[test]
fn rates_and_devices_are_in_the_files_the_lines_and_the_summary() {
    let folder = tempfile::tempdir().unwrap();
    let shown = Shared::default();
    let options = ReporterOptions {
        compute: Compute { flops_per_token: Some(8e9), ranks: 8, peak_flops: Some(1e15) },
        devices: Some("8 x NVIDIA H100 80GB HBM3".into()),
        ..options()
    };
    let mut reporter = Reporter::create_on(folder.path(), options, Box::new(shown.clone())).unwrap();
    let memory = DeviceMemory { in_use: 1, reserved: 1 << 30, reserved_peak: 2 << 30, total: Some(8 << 30) };
    let record =
        StepRecord { step: 1, tokens_per_second: 4e5, device_memory: Some(memory), ..StepRecord::default() };
    reporter.step(&record).unwrap();
    let written = fs::read_to_string(folder.path().join(METRICS_FILE)).unwrap();
    let written: StepRecord = serde_json::from_str(&written).unwrap();
    assert_eq!((written.tflops, written.mfu_percent), (Some(400.0), Some(40.0)));
    assert_eq!(written.device_memory, Some(memory));
    assert!(shown.text().contains("TFLOP/s 400.000  MFU 40.0%  memory 2.00GiB(25.0%)"), "{}", shown.text());
    let summary = reporter.finish();
    assert_eq!(summary.devices.as_deref(), Some("8 x NVIDIA H100 80GB HBM3"));
    assert_eq!((summary.median_tflops, summary.median_mfu_percent), (Some(400.0), Some(40.0)));
    assert_eq!(summary.device_memory, Some(memory));
}

#[test]
fn an_earlier_run_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let quiet = ReporterOptions { console: ConsoleMode::Quiet, ..options() };
    let mut first = Reporter::create(folder.path(), quiet.clone()).unwrap();
    first.step(&StepRecord::default()).unwrap();
    let before = fs::read(folder.path().join(METRICS_FILE)).unwrap();
    let message = Reporter::create(folder.path(), quiet.clone()).err().unwrap().to_string();
    assert!(message.contains("--overwrite"), "{message}");
    assert_eq!(fs::read(folder.path().join(METRICS_FILE)).unwrap(), before);
    let no_events = ReporterOptions { overwrite: true, tensorboard: false, ..quiet };
    let second = Reporter::create(folder.path(), no_events).unwrap();
    assert_eq!(second.finish().files, [folder.path().join(METRICS_FILE)]);
    assert_eq!(existing(folder.path()).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(fs::read(folder.path().join(METRICS_FILE)).unwrap(), b"");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_the_run_or_leaves_gaps() {
    brigade_testing::on_small_disk(64, |folder| {
        for goes_on in [false, true] {
            let shown = Shared::default();
            let options = ReporterOptions { goes_on, overwrite: true, log_every: 100, ..options() };
            let mut reporter = Reporter::create_on(folder, options, Box::new(shown.clone())).unwrap();
            let filler = folder.join("filler");
            let mut step = 0;
            let mut report = |reporter: &mut Reporter| {
                step += 1;
                reporter.step(&StepRecord { step, ..StepRecord::default() })
            };
            report(&mut reporter).unwrap();
            fs::write(&filler, vec![0; 64 << 10]).unwrap_err();
            let failed = (0..40).find_map(|_| report(&mut reporter).err());
            assert_eq!(failed.is_none(), goes_on);
            if let Some(error) = failed {
                assert!(error.to_string().contains("No space left"), "{error}");
            }
            fs::remove_file(&filler).unwrap();
            report(&mut reporter).unwrap();
            assert_eq!(shown.text().matches("No space left").count(), usize::from(goes_on), "said once");
            let steps = steps_in(folder);
            assert_eq!(steps.last(), Some(&step), "whole lines on both sides of the gap");
            assert!((steps.len() as u64) < step, "there is a gap");
            if goes_on {
                // Steps that run again also leave a gap, and no line appears twice.
                fs::write(&filler, vec![0; 64 << 10]).unwrap_err();
                reporter.rewind(2).unwrap();
                let redone = |step| StepRecord { step, ..StepRecord::default() };
                (3..6).for_each(|step| reporter.step(&redone(step)).unwrap());
                fs::remove_file(&filler).unwrap();
                (6..8).for_each(|step| reporter.step(&redone(step)).unwrap());
                let steps = steps_in(folder);
                assert!(steps.is_sorted_by(|a, b| a < b) && steps.ends_with(&[6, 7]), "{steps:?}");
            }
        }
    });
}

#[test]
fn a_validation_that_comes_late_is_in_its_steps_line() {
    let folder = tempfile::tempdir().unwrap();
    let shown = Shared::default();
    let every = ReporterOptions { log_every: 100, ..options() };
    let mut reporter = Reporter::create_on(folder.path(), every, Box::new(shown.clone())).unwrap();
    let record = |step| StepRecord { step, loss: 1.0, tokens: 10, ..StepRecord::default() };
    (1..=3).for_each(|step| reporter.step(&record(step)).unwrap());
    let metrics = [("accuracy".to_owned(), 0.5)].into();
    let validated = StepRecord { validation_loss: Some(0.25), validation_metrics: metrics, ..record(3) };
    reporter.validation(&validated).unwrap();
    let records = |text: String| -> Vec<StepRecord> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let written = || records(fs::read_to_string(folder.path().join(METRICS_FILE)).unwrap());
    assert_eq!(written(), [record(1), record(2), validated.clone()]);
    reporter.step(&record(4)).unwrap();
    assert_eq!(written(), [record(1), record(2), validated, record(4)]);
    let text = shown.text();
    assert_eq!(text.lines().filter(|line| line.starts_with("step 3/7")).count(), 1, "{text}");
    let events = fs::read(&existing(folder.path()).unwrap()[0]).unwrap();
    let validations = String::from_utf8_lossy(&events).matches("validation_metrics/global_avg_loss").count();
    assert_eq!(validations, 1);
    let summary = reporter.finish();
    assert_eq!((summary.steps, summary.tokens, summary.validation_loss), (4, 40, Some(0.25)));
    assert_eq!(summary.validation_metrics["accuracy"], 0.5);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let message = Reporter::create(&file.join("out"), options()).err().unwrap().to_string();
    assert!(message.contains("create") && message.contains("file/out"), "{message}");
}

fn steps_in(out: &Path) -> Vec<u64> {
    let text = fs::read_to_string(out.join(METRICS_FILE)).unwrap();
    let step = |line| serde_json::from_str::<StepRecord>(line).unwrap().step;
    text.lines().map(step).collect()
}

#[test]
fn a_resumed_run_continues_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let report = |reporter: &mut Reporter, steps: std::ops::RangeInclusive<u64>| {
        for step in steps {
            reporter.step(&StepRecord { step, loss: step as f64, ..StepRecord::default() }).unwrap();
        }
    };
    let mut killed = Reporter::create_on(folder.path(), options(), Box::new(io::sink())).unwrap();
    report(&mut killed, 1..=5);

    let shown = Shared::default();
    let again = ReporterOptions { restart: 1, ..options() };
    let mut reporter = Reporter::resume_on(folder.path(), again, 3, Box::new(shown.clone())).unwrap();
    report(&mut killed, 6..=6);
    assert_eq!(steps_in(folder.path()), [1, 2, 3], "a process that lives on cannot write any more");
    report(&mut reporter, 4..=6);
    reporter.rewind(4).unwrap();
    assert_eq!(steps_in(folder.path()), [1, 2, 3, 4]);
    report(&mut reporter, 5..=7);
    assert_eq!(steps_in(folder.path()), [1, 2, 3, 4, 5, 6, 7]);
    reporter
        .checkpoint(&CheckpointRecord { step: 7, bytes: 1 << 20, ..CheckpointRecord::default() })
        .unwrap();

    let files = existing(folder.path()).unwrap();
    assert_eq!(files.len(), 2, "the first event file stays");
    let summary = reporter.finish();
    assert_eq!(summary.files, [folder.path().join(METRICS_FILE), files[1].clone()]);
    assert_eq!((summary.steps, summary.undone_steps, summary.restarts), (6, 2, 1));
    assert_eq!((summary.resumed_at, summary.checkpoints), (Some(3), 1));
    assert_eq!((summary.first_loss, summary.last_loss), (Some(4.0), Some(7.0)));
    let text = shown.text();
    let lines: Vec<&str> = text.lines().map(|line| &line[..8]).collect();
    assert_eq!(lines, ["step 4/7", "step 6/7", "step 6/7", "step 7/7"]);
}

#[test]
fn a_folder_without_metrics_gets_them() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("runs/a");
    let quiet = ReporterOptions { console: ConsoleMode::Quiet, tensorboard: false, ..options() };
    let mut reporter = Reporter::resume(&out, quiet, u64::MAX).unwrap();
    reporter.step(&StepRecord { step: 4, ..StepRecord::default() }).unwrap();
    reporter.rewind(u64::MAX).unwrap();
    assert_eq!(steps_in(&out), [4]);
    assert!(existing(&out).unwrap().is_empty());
}
