//! `brigade plan --calibrate-from RUN`: how fast the machines of a run are, from its metrics.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use brigade::CONFIG_FILE;
use brigade::plan::cluster::{Cluster, kind};
use brigade::plan::model::ModelShape;
use brigade::plan::search::{Calibrated, MeasuredStep, PlanError, calibrate};
use brigade::report::{RunEvent, counted};
use brigade_runs::Run;
use brigade_runs::scaling::Profile;

use super::calibrate::{cluster_file, keep, machine_memory, this_machine};
use super::configured::{candidate, unplanned, untrained, workload};
use crate::config::Config;
use crate::output::print;

/// The fewest steps after the first ones that show what is usual.
const STEPS: usize = 5;

/// Reads a run, and saves what it shows. `given`: the cluster that it ran on; else this machine.
pub fn run(dir: &Path, given: Option<&str>) -> anyhow::Result<()> {
    let run = Run::read(dir)?;
    let file = dir.join("metrics.jsonl");
    ensure!(
        run.unreadable == 0,
        "{} has {} that cannot be read: the file is damaged or truncated; give another run",
        file.display(),
        if run.unreadable == 1 { "a line".to_owned() } else { format!("{} lines", run.unreadable) }
    );
    let profile = Profile::of(&run);
    let note = run.last_mesh_note().map_or_else(String::new, |note| format!("; these are {note}"));
    ensure!(
        profile.steps >= STEPS,
        "{} has {} after its first ones; calibration needs {STEPS}{note}",
        file.display(),
        counted(profile.steps, "step")
    );
    let config = dir.join(CONFIG_FILE);
    ensure!(config.is_file(), "{} is missing; it says what the run computed", config.display());
    let config = Config::read(&[config.as_path()], &[])?;
    is_comparable(&config).map_err(|why| anyhow::anyhow!("--calibrate-from {}: {why}", dir.display()))?;
    let cluster = cluster(&run, profile.ranks, given)?;
    // A run's own config.json is there when it has ended; its configuration may name a folder that is elsewhere by now.
    let described = dir.join("config.json");
    let file = if described.is_file() { described } else { dir.join(CONFIG_FILE) };
    let workload = workload(&config, ModelShape::read(&file)?, cluster)?;
    let mesh = run.mesh();
    let axis = |name: &str| mesh.iter().find(|(axis, _)| axis == name).map_or(1, |(_, size)| *size);
    let candidate = candidate(&config.settings, axis)?;
    let found = measured(&profile)
        .and_then(|step| calibrate(&workload, &candidate, &step))
        .with_context(|| format!("--calibrate-from {}", dir.display()))?;
    let text = format!(
        "# Measured from the run {}: {}, {} of {:.4} s{note}.\n{}",
        dir.display(),
        candidate.label(),
        counted(profile.steps, "step"),
        profile.step,
        found.cluster.to_toml()
    );
    let device = &found.cluster.device.name;
    let gpu = (!found.cluster.is_cpu()).then_some(device.as_str());
    let kept = keep(&text, gpu)?;
    let use_of_it = match gpu {
        None => "brigade plan uses it without --cluster".to_owned(),
        Some(name) if kind(name).is_none() => "name it with --cluster".to_owned(),
        Some(kind) => {
            format!(
                "on machines with GPUs of kind {kind}, brigade plan uses it without --cluster; elsewhere, name it with --cluster"
            )
        }
    };
    print(&format!("{text}# {}: {use_of_it}\n", kept.display()))?;
    print(&summary(&found, &profile))
}

/// Whether the steps of a run are those that the planner knows.
fn is_comparable(config: &Config) -> Result<(), String> {
    let other = unplanned(&config.settings).or_else(|| untrained(config).map(str::to_owned));
    let Some(other) = other else { return Ok(()) };
    Err(format!(
        "{other}, so its steps are not those that are planned; give a run that trains all parameters with --strategy sync and --sync-every 1"
    ))
}

/// In two lines.
fn summary(found: &Calibrated, profile: &Profile) -> String {
    let [before, after] = found.predicted;
    let links = match found.links {
        Some(times) => format!("messages {times:.2} times"),
        None => "messages as before".to_owned(),
    };
    format!(
        "# computes {:.2} times as fast as known before, {links}; the prediction for a step was {before:.4} s, is now {after:.4} s, and a step took {:.4} s without \
        waiting for data\n",
        found.compute,
        profile.step - middle(&profile.data_wait_of)
    )
}

/// The middle of a list's numbers.
fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The parts of a usual step on the median rank.
fn measured(profile: &Profile) -> Result<MeasuredStep, PlanError> {
    let step = profile.step - middle(&profile.data_wait_of);
    MeasuredStep::of(step, profile.compute, middle(&profile.rest_of))
}

/// What the run computed on: as given, or this machine, as measured if it was.
fn cluster(run: &Run, ranks: usize, given: Option<&str>) -> anyhow::Result<Cluster> {
    let devices = match run.started() {
        Some(RunEvent::Started { devices, .. }) => devices.as_deref(),
        _ => None,
    };
    let (dir, backend) = (run.dir.display(), run.setting("compute.backend").unwrap_or("\"auto\""));
    let on_host = devices.is_none() && ["\"auto\"", "\"cpu\""].contains(&backend);
    let mut cluster = match given {
        Some(given) => {
            let cluster = Cluster::read(given)?;
            ensure!(
                cluster.devices() == ranks,
                "--cluster {given} has {}, but the run {dir} had {}",
                counted(cluster.devices(), "device"),
                counted(ranks, "rank")
            );
            cluster
        }
        None if !on_host => bail!(
            "the run {dir} computed on {}, not on this machine's processors; name its cluster, as in --cluster 1x{ranks}xH100-80GB",
            devices.unwrap_or(backend)
        ),
        None if run.network_delay().is_some() => {
            bail!(
                "the run {dir} was on several hosts; name them, as in --cluster 2x{}xCPU",
                ranks.div_ceil(2)
            )
        }
        None => {
            let file = cluster_file(None)?;
            let mut machine = if file.is_file() { Cluster::read_file(&file)? } else { this_machine()? };
            ensure!(
                machine.is_cpu(),
                "{} describes another machine; give --cluster, the cluster that {dir} ran on",
                file.display()
            );
            (machine.nodes, machine.devices_per_node) = (1, ranks);
            machine.host_memory = machine_memory()?;
            machine.device.memory = machine.host_memory / ranks as u64;
            machine
        }
    };
    ensure!(
        cluster.is_cpu() == on_host,
        "the run {dir} computed on {}, but --cluster {} has {}",
        if on_host { "processors" } else { devices.unwrap_or(backend) },
        cluster.name,
        cluster.device.name
    );
    cluster.measured = None;
    Ok(cluster)
}
