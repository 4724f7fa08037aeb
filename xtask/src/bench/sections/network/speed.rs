//! Training on hosts with a network between them.

use anyhow::{Context, Result};
use serde_json::Value;

use super::curve::Curves;
use super::methods::{HOOKS, METHODS, Method, PERIOD, RANKS, TOKENS, peer_line};
use crate::bench::page::{Samples, Unit, WARM_UP};
use crate::bench::runner::{FOLDER, Kind, Runner, json_lines};
use crate::network::Traffic;

/// What is between hosts.
pub struct Network {
    pub title: &'static str,
    /// Of `cargo xtask network`.
    pub flags: &'static str,
    /// Steps of a run, of methods that meet in each.
    steps: usize,
}

/// Nothing but memory, for one host.
pub const NONE: Network = Network { title: "Without a network", flags: "", steps: 32 };

pub const NETWORKS: [Network; 3] = [
    Network { title: "10 Gbit/s", flags: "--rate 10gbit ", steps: 32 },
    Network { title: "1 Gbit/s, 1 ms", flags: "--rate 1gbit --delay 1ms ", steps: 32 },
    Network { title: "100 Mbit/s, 20 ms", flags: "--rate 100mbit --delay 20ms ", steps: 12 },
];

/// Steps of a run of a method that meets once in a while: two meetings, and what is between them counts.
const LOCAL_STEPS: usize = 2 * PERIOD;

/// The hosts, and the ranks of each.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub hosts: usize,
    pub ranks: usize,
}

/// What runs gave.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Tokens per second.
    pub rates: Samples,
    /// Bytes that a rank sent to other hosts in a step.
    pub bytes: Samples,
}

/// All methods and hooks on one network.
pub struct Measured {
    /// By the places of [`METHODS`]; those that were left out have no samples.
    pub ours: Vec<Figures>,
    /// By the places of [`HOOKS`].
    pub theirs: Vec<Figures>,
    /// A line of each side.
    pub commands: Vec<String>,
}

/// Runs these methods and all hooks in turns. Fails if a method has other losses than its curve.
pub fn measure(
    runner: &Runner,
    (network, place): (&Network, Place),
    methods: impl Fn(&Method) -> bool,
    (curves, tokens): (&Curves, &str),
    notes: &mut Vec<String>,
) -> Result<Measured> {
    let mut measured = Measured {
        ours: vec![Figures::default(); METHODS.len()],
        theirs: vec![Figures::default(); HOOKS.len()],
        commands: vec![line(network, place, "sync", &METHODS[0].line("sync", place.ranks, network.steps, 0))],
    };
    let hooks = HOOKS.iter().filter(|hook| hook.is_timed).map(|hook| match hook.period {
        1 => hook.name.to_owned(),
        _ => format!("{}:{LOCAL_STEPS}", hook.name),
    });
    let hooks = hooks.collect::<Vec<_>>().join(",");
    let peer = line(network, place, "torch", &peer_line(&hooks, tokens, place.ranks, network.steps));
    measured.commands.push(peer.clone());
    for run in 1..=runner.runs {
        for (number, method) in METHODS.iter().enumerate().filter(|(_, method)| methods(method)) {
            let steps = if method.period == 1 { network.steps } else { LOCAL_STEPS };
            let line = line(network, place, method.name, &method.line(method.name, place.ranks, steps, 0));
            let records = runner.steps(method.name, &line)?;
            let repeats = method.repeats && (place.ranks == 1 || !method.depends_on_hosts());
            if let Some(curve) = curves.ours(number).filter(|_| repeats) {
                curve.check(&records, &format!("`{line}`"))?;
            }
            let figures = figures(&records, method.period, &traffic(method.name)?);
            let figures = figures.with_context(|| format!("`{line}` recorded too little"))?;
            add(runner, run, method.name, &mut measured.ours[number], figures);
        }
        let records = runner.peer(Kind::Torch, "torch", &peer, notes)?;
        for (number, hook) in HOOKS.iter().enumerate() {
            let own: Vec<Value> =
                records.iter().filter(|record| record["hook"] == hook.name).cloned().collect();
            if let Some(figures) = figures(&own, hook.period, &traffic("torch")?) {
                add(runner, run, hook.label, &mut measured.theirs[number], figures);
            }
        }
    }
    Ok(measured)
}

fn add(runner: &Runner, run: u32, name: &str, figures: &mut Figures, (rate, bytes): (f64, f64)) {
    runner.progress(run, name, format!("{}, {:.0} KiB", Unit::TokensPerSecond.show(rate), bytes / 1024.0));
    figures.rates.0.push(rate);
    figures.bytes.0.push(bytes);
}

/// A command on every host. What hosts send goes to the [`traffic`] of `name`.
fn line(network: &Network, place: Place, name: &str, command: &str) -> String {
    format!(
        "cargo xtask network --hosts {} {}--traffic {FOLDER}/{name}.traffic -- {command}",
        place.hosts, network.flags
    )
}

fn traffic(name: &str) -> Result<Traffic> {
    let path = crate::cargo::root().join(FOLDER).join(format!("{name}.traffic"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Traffic::of(&json_lines::objects(&text)))
}

/// Tokens per second and bytes of a rank and step, of the records of a run from the end of its warm-up on.
fn figures(records: &[Value], period: usize, traffic: &Traffic) -> Option<(f64, f64)> {
    let place = |record: &Value| Some((record["step"].as_f64()?, record["time"].as_f64()?));
    let counted = if period == 1 { records.get(WARM_UP - 1..)? } else { records };
    let ((first, start), (last, end)) = (place(counted.first()?)?, place(counted.last()?)?);
    let (steps, seconds) = (last - first, end - start);
    let bytes = (traffic.at(end)? - traffic.at(start)?) / (steps * RANKS as f64);
    (steps > 0.0 && seconds > 0.0).then_some((TOKENS as f64 * steps / seconds, bytes))
}

impl Figures {
    /// Seconds of a step.
    pub fn step_seconds(&self) -> Option<f64> {
        Some(TOKENS as f64 / self.rates.median()?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_are_of_all_steps_after_the_warm_up() {
        let record = |step: u64, time: f64| json!({ "step": step, "time": time });
        let traffic = Traffic::of(
            &[1.0, 2.0, 3.0, 4.0]
                .map(|time| json!({ "time": time, "bytes": [4000.0 * time, 4000.0 * time] })),
        );
        let records = [record(1, 1.0), record(2, 2.0), record(3, 3.0), record(4, 4.0)];
        // 2 steps in 2 s, and 16,000 bytes of 4 ranks.
        assert_eq!(figures(&records, 1, &traffic), Some((512.0, 2000.0)));
        let records = [record(50, 1.0), record(100, 3.0)];
        assert_eq!(figures(&records, PERIOD, &traffic), Some((12_800.0, 80.0)));
        assert_eq!(figures(&records[..1], PERIOD, &traffic), None);
        assert_eq!(figures(&records, 1, &traffic), None);
    }
}
