//! A run's folder as a training run writes it.

use std::path::Path;

use brigade_report::timeline::{PROFILE_FOLDER, Timeline, timeline_file};
use brigade_report::{
    CheckpointRecord, CollectiveRecord, Compute, ConsoleMode, MemoryRecord, RankSeconds, Reporter,
    ReporterOptions, RunEvent, StepRecord,
};

/// Ranks of the run: two stages of two.
const RANKS: usize = 4;

pub const CONFIG: &str = "[model]\nwidth = 8\n\n[train]\nsteps = 40\nname = \"</script><b>&\"\n";

/// The record of a step. Rank 3 takes half as long again as the others.
pub fn record(step: u64) -> StepRecord {
    let wobble = 1.0 + 0.1 * (step as f64).sin();
    let compute: Vec<f64> = (0..RANKS).map(|rank| wobble * if rank == 3 { 0.3 } else { 0.2 }).collect();
    let seconds = 0.32 * wobble;
    StepRecord {
        step,
        loss: if step == 7 { f64::NAN } else { 5.0 / (step as f64).sqrt() },
        skipped: step == 7,
        metrics: [("accuracy".into(), 0.01 * step as f64), ("valid_targets".into(), 1e3)].into(),
        grad_norm: 1.0 / step as f64,
        learning_rate: 1e-3,
        tokens: 1000,
        tokens_per_second: 1000.0 / seconds,
        step_seconds: seconds,
        forward_seconds: 0.06 * wobble,
        backward_seconds: 0.12 * wobble,
        optimizer_seconds: 0.02 * wobble,
        data_wait_seconds: 0.01,
        comm_wait_seconds: 0.07 * wobble,
        comm_wait_seconds_by: [("all_reduce".into(), 0.07 * wobble)].into(),
        comm_hidden_seconds: Some(0.03 * wobble),
        bubble_seconds: 0.01,
        comm_bytes: 4096,
        comm_calls: 2,
        collectives: [("all_reduce".into(), CollectiveRecord { calls: 2, bytes: 4096 })].into(),
        memory: MemoryRecord { parameter_bytes_peak: 1 << 20, ..MemoryRecord::default() },
        peak_rss_bytes: 64 << 20,
        validation_loss: step.is_multiple_of(10).then_some(4.0),
        validation_metrics: [].into(),
        time: Some(1.8e9 + step as f64 * 0.35),
        rank_seconds: Some(RankSeconds {
            step: vec![seconds; RANKS],
            comm_wait: compute.iter().map(|own| seconds - own).collect(),
            compute,
            data_wait: vec![0.0; RANKS],
        }),
        checkpoint: (step == 21).then_some(CheckpointRecord {
            step: 20,
            stall_seconds: 0.1,
            bytes: 1 << 20,
            seconds: 1.0,
        }),
        ..StepRecord::default()
    }
}

/// Writes a run of this many steps that finished.
pub fn run(dir: &Path, steps: u64) {
    let options = ReporterOptions {
        total_steps: steps,
        console: ConsoleMode::Quiet,
        tensorboard: false,
        compute: Compute { ranks: RANKS, flops_per_token: Some(1e9), peak_flops: Some(1e12) },
        mesh: vec![("pp".into(), 2), ("dp".into(), 2)],
        ..ReporterOptions::default()
    };
    let mut reporter = Reporter::create(dir, options).unwrap();
    for step in 1..=steps {
        reporter.step(&record(step)).unwrap();
    }
    reporter.event(RunEvent::Finished { step: steps, ended_early: None }).unwrap();
    reporter.finish();
    std::fs::write(dir.join("config.toml"), CONFIG).unwrap();
}

/// Writes a timeline into a run's folder.
pub fn timeline(dir: &Path, timeline: &Timeline) {
    let info = &timeline.other_data;
    let folder = dir.join(PROFILE_FOLDER);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(timeline_file(info.first_step, info.last_step));
    std::fs::write(file, serde_json::to_vec(timeline).unwrap()).unwrap();
}
