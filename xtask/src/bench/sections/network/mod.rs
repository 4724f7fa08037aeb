//! Slow networks: every way to train together on hosts with less and less between them, beside PyTorch's.
//!
//! Hosts are network namespaces of this machine (`cargo xtask network`). How fast a step is depends on the network; what it computes
//! does not. So losses are measured once, without a network, and each run on a network is checked to have the same ones.

mod curve;
mod methods;
mod speed;

use std::path::Path;

use anyhow::{Context, Result};

use self::curve::{Curves, STEPS};
use self::methods::{CACHE, HOOKS, METHODS, PLAIN, TOKENS};
use self::speed::{Figures, Measured, NETWORKS, NONE, Network, Place};
use super::super::page::{Goal, Row, Section, Table, Unit};
use super::super::runner::{FOLDER, Kind, Runner};
use crate::cargo;

pub const TITLE: &str = "Slow networks";

const PLACES: [Place; 2] = [Place { hosts: 2, ranks: 2 }, Place { hosts: 4, ranks: 1 }];

/// What is true of every network.
const CAUSES: &str = " Brigade encrypts traffic between hosts by default, gloo does not. Plain sums run in two levels, so \
each byte leaves a host once; codes are of the sums of a host's ranks. PyTorch's PowerSGD hook has all gradients in one bucket, because it fails over gloo with several. Of `async-server`, \
two of the four ranks are workers, each with two of the four sequences of a step.";

/// Plain training over PyTorch's.
const OVER_TORCH: f64 = 1.3;
/// Two levels over one, where there are two and the network is what counts.
const OVER_FLAT: f64 = 1.6;
/// How many times fewer bytes.
const FEWER: [(&str, f64); 3] = [("bf16", 1.8), ("int8", 3.5), ("powersgd", 20.0)];
/// What the names of methods end with that send codes once per host.
const LEVELS: &str = "-levels";
/// Over plain training, of those that must be seen in it.
const SEEN: f64 = 1.05;
/// Of the throughput without a network.
const OF_ALONE: f64 = 0.95;

pub fn measure(runner: &Runner, seeds: u32) -> Result<Vec<Section>> {
    let mut notes = Vec::new();
    let curves = curve::measure(runner, seeds, tokens, &mut notes)?;
    let tokens = tokens()?;
    let (one, mut on_networks) = (Place { hosts: 1, ranks: 4 }, Vec::new());
    let is_compared =
        |method: &methods::Method| method.name == PLAIN || (method.period > 1 && method.is_timed(4));
    let alone = speed::measure(runner, (&NONE, one), is_compared, (&curves, &tokens), &mut on_networks)?;
    let mut sections = vec![section(runner, &NONE, &[(one, &alone)], &alone, &curves, on_networks)];
    for network in &NETWORKS {
        let mut notes = Vec::new();
        let measured = PLACES.map(|place| {
            eprintln!("{}, {}", network.title, named(place));
            let fits = |method: &methods::Method| method.is_timed(place.ranks);
            speed::measure(runner, (network, place), fits, (&curves, &tokens), &mut notes)
        });
        let [two, four] = measured;
        let places = [(PLACES[0], &two?), (PLACES[1], &four?)];
        sections.push(section(runner, network, &places, &alone, &curves, notes));
    }
    sections.push(curve::section(runner, &curves, seeds, notes));
    Ok(sections)
}

/// The folder of the tokens that Brigade's runs have made.
fn tokens() -> Result<String> {
    let folder = Path::new(FOLDER).join(CACHE);
    let entries = std::fs::read_dir(cargo::root().join(&folder));
    let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.join("train.bin").exists());
    let name = names.next().and_then(|path| path.file_name().map(ToOwned::to_owned));
    Ok(folder.join(name.context("no tokens were made")?).display().to_string())
}

fn named(place: Place) -> String {
    let plural = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
    format!("{} of {}", plural(place.hosts, "host"), plural(place.ranks, "rank"))
}

fn section(
    runner: &Runner,
    network: &Network,
    places: &[(Place, &Measured)],
    alone: &Measured,
    curves: &Curves,
    notes: Vec<String>,
) -> Section {
    let between = if places.iter().any(|(place, _)| place.hosts > 1) {
        format!("Between hosts: {}.", network.title)
    } else {
        "All ranks on one host, where they share memory.".to_owned()
    };
    let times = places
        .iter()
        .filter_map(|(place, measured)| Some(format!("{:.0} s with {}", shortest(measured)?, named(*place))));
    let times: Vec<String> = times.collect();
    let table = |(place, measured): &(Place, &Measured)| {
        let columns = ["tokens/s", "vs synchronous", "sent a step, KiB", "fewer", "validation loss"];
        Table::of(&columns, rows(runner, network, *place, measured, alone, curves)).named(named(*place))
    };
    Section {
        title: network.title,
        text: format!(
            "{between} `gpt-tiny` in fp32 with {TOKENS} tokens per step on 4 ranks. Bytes are those that a rank sent to \
            other hosts, as counted by the network. The validation loss is the one after the time in which the fastest \
            method makes {STEPS} steps: {}.{}",
            times.join(", "),
            if places.iter().any(|(place, _)| place.hosts > 1) { CAUSES } else { "" }
        ),
        commands: places.iter().flat_map(|(_, measured)| measured.commands.clone()).collect(),
        tables: places.iter().map(table).collect(),
        notes,
    }
}

/// The time in which the fastest makes all steps.
fn shortest(measured: &Measured) -> Option<f64> {
    let seconds = measured.ours.iter().chain(&measured.theirs).filter_map(Figures::step_seconds);
    seconds.min_by(f64::total_cmp).map(|seconds| seconds * STEPS as f64)
}

fn rows(
    runner: &Runner,
    network: &Network,
    place: Place,
    measured: &Measured,
    alone: &Measured,
    curves: &Curves,
) -> Vec<Row> {
    let plain = &measured.ours[0];
    let time = shortest(measured);
    let row = |label: String, figures: &Figures, curve: Option<&curve::Curve>, goal: Option<Goal>| {
        let Some(seconds) = figures.step_seconds() else {
            return Row::of(label, vec![runner.absent(Kind::Torch).to_owned(); 5], None);
        };
        let dash = || "–".to_owned();
        let ratio = figures.rates.over(&plain.rates).map_or_else(dash, |ratio| format!("{ratio:.2}"));
        let sent = figures.bytes.median().filter(|_| place.hosts > 1);
        let fewer = plain.bytes.over(&figures.bytes).filter(|_| place.hosts > 1);
        let loss = time.zip(curve).and_then(|(time, curve)| curve.at(time / seconds));
        let cells = vec![
            figures.rates.cell(Unit::TokensPerSecond, "").replace(" tokens/s", ""),
            ratio,
            sent.map_or_else(dash, |bytes| format!("{:.1}", bytes / 1024.0)),
            fewer.map_or_else(dash, |fewer| format!("{fewer:.1} ×")),
            loss.map_or_else(dash, |loss| format!("{loss:.3}")),
        ];
        Row::of(label, cells, goal)
    };
    let ours = METHODS.iter().enumerate().filter(|(number, _)| !measured.ours[*number].rates.0.is_empty());
    let ours = ours.map(|(number, method)| {
        let goal = goal(method.name, network, place, (number, measured), alone);
        row(method.label(), &measured.ours[number], curves.ours(number), goal)
    });
    let theirs = HOOKS.iter().enumerate().filter(|(_, hook)| hook.is_timed);
    let theirs = theirs.map(|(number, hook)| {
        row(hook.label.into(), &measured.theirs[number], Some(curves.theirs(number)), None)
    });
    ours.chain(theirs).collect()
}

/// What a method should reach on a network.
fn goal(
    name: &str,
    network: &Network,
    place: Place,
    (number, measured): (usize, &Measured),
    alone: &Measured,
) -> Option<Goal> {
    if place.hosts == 1 {
        return None;
    }
    let (own, plain) = (&measured.ours[number], &measured.ours[0]);
    let at_least = |text: String, ratio: Option<f64>, bound: f64| {
        let ratio_text = ratio.map_or(String::new(), |ratio| format!(" (is {ratio:.2})"));
        Some(Goal { text: text + &ratio_text, met: ratio.map(|ratio| ratio >= bound) })
    };
    let is = |slow: &str| network.title.starts_with(slow);
    let method = name.strip_suffix(LEVELS).unwrap_or(name);
    if let Some((_, bound)) = FEWER.iter().find(|(fewer, _)| *fewer == method) {
        let fewer = plain.bytes.over(&own.bytes);
        if name == "powersgd" || !is("1 Gbit") {
            return at_least(format!("≥ {bound} × fewer"), fewer, *bound);
        }
        let rate = own.rates.over(&plain.rates);
        let met = fewer.zip(rate).map(|(fewer, rate)| fewer >= *bound && rate >= SEEN);
        return Some(Goal { text: format!("≥ {bound} × fewer, and ≥ {SEEN} × synchronous"), met });
    }
    match name {
        PLAIN => {
            let ratio = own.rates.over(&measured.theirs[0].rates);
            at_least(format!("≥ {OVER_TORCH} × PyTorch DDP"), ratio, OVER_TORCH)
        }
        "flat" if place.ranks > 1 && is("1 Gbit") => {
            at_least(format!("synchronous ≥ {OVER_FLAT} × this"), plain.rates.over(&own.rates), OVER_FLAT)
        }
        "diloco" | "streaming" | "streaming-int8" if is("100 Mbit") => {
            let share = own.rates.over(&alone.ours[number].rates);
            at_least(format!("≥ {OF_ALONE} × without a network"), share, OF_ALONE)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::page::Samples;

    fn measured(rates: &[(&str, f64, f64)]) -> Measured {
        let of = |name: &str| {
            let found = rates.iter().find(|(own, ..)| *own == name);
            let figures = found.map(|(_, rate, bytes)| Figures {
                rates: Samples(vec![*rate]),
                bytes: Samples(vec![*bytes]),
            });
            figures.unwrap_or_default()
        };
        Measured {
            ours: METHODS.iter().map(|method| of(method.name)).collect(),
            theirs: HOOKS.iter().map(|hook| of(hook.name)).collect(),
            commands: Vec::new(),
        }
    }

    #[test]
    fn goals_are_judged_by_what_was_measured() {
        let alone = measured(&[("streaming", 1000.0, 0.0), ("diloco", 1000.0, 0.0)]);
        let slow = measured(&[
            ("sync", 160.0, 100.0),
            ("flat", 101.0, 200.0),
            ("int8", 170.0, 28.0),
            ("bf16", 170.0, 75.0),
            ("diloco", 949.0, 1.0),
            ("streaming", 951.0, 1.0),
            ("int8-levels", 170.0, 28.0),
            ("none", 122.0, 1.0),
        ]);
        let met = |name: &str, network: usize, place: usize| {
            let number = METHODS.iter().position(|method| method.name == name).unwrap();
            goal(name, &NETWORKS[network], PLACES[place], (number, &slow), &alone)
                .map(|goal| goal.met.unwrap())
        };
        assert_eq!(met("sync", 0, 0), Some(true));
        assert_eq!([met("flat", 1, 0), met("flat", 1, 1), met("flat", 2, 0)], [Some(false), None, None]);
        assert_eq!([met("int8", 1, 1), met("int8", 2, 1)], [Some(true), Some(true)]);
        assert_eq!([met("bf16", 1, 0), met("bf16", 2, 0)], [Some(false); 2]);
        assert_eq!([met("int8", 1, 0), met("int8-levels", 1, 0)], [Some(true); 2]);
        assert_eq!([met("streaming", 2, 0), met("streaming", 1, 0)], [Some(true), None]);
        assert_eq!([met("diloco", 2, 0), met("diloco", 1, 0)], [Some(false), None]);
    }

    #[test]
    fn the_fastest_sets_the_time() {
        assert_eq!(shortest(&measured(&[("sync", 512.0, 1.0), ("none", 2048.0, 1.0)])), Some(100.0));
        assert_eq!(shortest(&measured(&[])), None);
    }
}
