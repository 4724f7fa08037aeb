//! Whole runs of the training loop, their ranks as threads.

mod added_models;
mod bad_batches;
mod balance;
mod best;
mod block_state;
pub(super) mod fixture;
mod hooks;
mod other_meshes;
mod own_loop;
mod own_update;
mod predictions;

use std::path::Path;
use std::thread;
use std::time::Duration;

use brigade_comm::{Group, Timeouts, threads};
use brigade_data::Sampler;
use brigade_launch::interrupt::Interrupt;

use crate::device::RankDevice;
use crate::run::{Program, Session, StartFrom};
use crate::settings::{Settings, StandardFlags, config_to_toml};

const SAMPLES: usize = 64;

/// The order in which runs read their samples: four in a step, one at a time.
fn sampler() -> Sampler {
    Sampler::new(SAMPLES, 0, 4, 1).unwrap()
}

/// Runs each rank's part of a run; gives what rank 0's gives. The interrupt is that rank's.
fn on_ranks<R: Send>(
    ranks: usize,
    out: &Path,
    settings: &Settings,
    start_from: StartFrom,
    part: impl Fn(Session, Interrupt) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<R> {
    let flags = StandardFlags { quiet: true, ..StandardFlags::default() };
    std::fs::create_dir_all(out)?;
    let rank = |group: Group| {
        let program = Program {
            name: "test",
            flags: &flags,
            settings,
            config: config_to_toml(settings)?,
            targets_per_sample: 1,
            costs: Vec::new(),
            streams: brigade_launch::StandardStreams::Logged,
            chosen: None,
        };
        let interrupt = Interrupt::detached();
        group.use_init_timeout();
        let mut session = Session::new(
            &program,
            RankDevice::cpu(),
            group,
            settings.plan(ranks, 1)?,
            out.to_owned(),
            "test".into(),
            interrupt.clone(),
        )?;
        session.start_from = start_from;
        part(session, interrupt)
    };
    let [init, step] = [settings.comm.init_timeout_seconds, settings.comm.train_timeout_seconds];
    let [init, step] = [init, step].map(Duration::from_secs_f64);
    let worlds = threads(ranks, Timeouts { init, step, ..Timeouts::default() });
    let mut ends: Vec<anyhow::Result<R>> = thread::scope(|scope| {
        let rank = &rank;
        let started: Vec<_> = worlds.into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    ends.swap_remove(0)
}
