//! `brigade doctor --network`

use std::process::ExitCode;
use std::time::Instant;

use brigade::comm::{Algorithm, AlgorithmRow, Group, OpType, ProcessGroup, ReduceOp};
use brigade::launcher::StandardStreams;
use brigade::report::HumanBytes;
use brigade::{CollectivesBackend, Session, SettingError, Settings, UsageError};
use clap::ValueEnum;
use comfy_table::Row;

use crate::data::columns::columns;
use crate::output::print;
use crate::ranks::{RankFlags, RankProgram};

/// Bytes of the buffers.
const SIZES: [usize; 5] = [1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20];

/// How many times as fast as the algorithm that is used without a table another one must be to get a row.
const FASTER: f64 = 1.1;

/// How often each algorithm is measured, in turns with the others, of which the median counts.
const ROUNDS: usize = 3;

/// How long a measurement should take, in seconds, and the least and the most calls it makes.
const SECONDS: f64 = 0.1;
const CALLS: (f64, f64) = (3.0, 200.0);

/// Measures each algorithm of the collectives on the ranks that the flags or the environment describe, and prints the table.
pub fn run(flags: &RankFlags) -> anyhow::Result<ExitCode> {
    let mut settings = Settings::default();
    flags.apply(&mut settings);
    check(settings.comm.collectives).map_err(|error| UsageError(error.into()))?;
    let ranks = flags.world_size(None, settings.compute.backend)?;
    settings.train.micro_batch_size = 1;
    settings.train.global_batch_size = ranks;
    let program = RankProgram {
        name: "doctor",
        flags,
        config: toml::to_string(&settings)?,
        settings,
        costs: vec![1.0],
        quiet: true,
        streams: StandardStreams::Results,
    };
    program.run(|_| Ok(()), |session, ()| measure(session))
}

/// Every algorithm of Brigade's own collectives is measured, and nothing of other libraries.
fn check(collectives: CollectivesBackend) -> Result<(), SettingError> {
    if matches!(collectives, CollectivesBackend::Auto | CollectivesBackend::Host) {
        return Ok(());
    }
    let given = collectives.to_possible_value().map(|value| value.get_name().to_owned());
    Err(SettingError::Value {
        option: "--collectives",
        given: given.unwrap_or_default(),
        allowed: "doctor --network measures every algorithm of Brigade's own collectives, and no other library's; leave it out, \
                  or give host"
            .into(),
    })
}

fn measure(session: &Session) -> anyhow::Result<()> {
    let group = session.group();
    if group.size() == 1 {
        return print(
            "There is one rank, and no network to measure; --nproc-per-node sets how many there are.\n",
        );
    }
    let several_hosts = (0..group.size()).any(|rank| group.locality(rank).host > 0);
    let algorithms = [Algorithm::Flat, Algorithm::Halving, Algorithm::Hierarchical];
    let algorithms = algorithms.into_iter().filter(|of| several_hosts || *of != Algorithm::Hierarchical);
    let auto = group.algorithm();
    // What is used without a table is this group's own: on hosts of six ranks, for example, a hierarchy of pairs. A row of a table has the same.
    let groups = algorithms.map(|algorithm| match algorithm == auto {
        true => Ok((algorithm, group.clone())),
        false => group.with_algorithm(algorithm).map(|group| (algorithm, group)),
    });
    let groups = groups.collect::<brigade::comm::Result<Vec<_>>>()?;
    let names: Vec<Algorithm> = groups.iter().map(|(algorithm, _)| *algorithm).collect();
    let (mut rows, mut table) = (vec![heading(&groups, auto)], Vec::new());
    for operation in AlgorithmRow::COLLECTIVES {
        let mut fastest = Vec::new();
        for bytes in SIZES {
            let round =
                || groups.iter().map(|(_, group)| gigabytes_per_second(group, operation, bytes)).collect();
            let rounds = (0..ROUNDS).map(|_| round()).collect::<brigade::comm::Result<Vec<Vec<f64>>>>()?;
            fastest.push(chosen(&names, &rounds, auto));
            rows.push(row(operation, bytes, &medians(&rounds)));
        }
        table.extend(table_rows(operation, &fastest, auto));
    }
    if session.rank() == 0 {
        let table = shown(&table)?;
        print(&format!("{}\n{}{EXPLANATION}\n{table}", places(group), columns(rows)))?;
    }
    Ok(())
}

const EXPLANATION: &str = "\
GB/s sent by each rank in Brigade's own collectives; * is the fastest. --collectives flat|halving|hierarchical chooses one;
results are bit-identical unless hierarchical prints a warning.
";

/// The algorithm for a size: the fastest one, if it is much faster in every round than the one that is used without a table. Where a hierarchy is not used
/// without being asked for, it would change the bits, and a table has none.
fn chosen(names: &[Algorithm], rounds: &[Vec<f64>], auto: Algorithm) -> Algorithm {
    let place = |algorithm: Algorithm| names.iter().position(|name| *name == algorithm);
    let keeps_bits = |algorithm: Algorithm| algorithm != Algorithm::Hierarchical || auto == algorithm;
    let fastest = names
        .iter()
        .zip(medians(rounds))
        .filter(|(name, _)| keeps_bits(**name))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(name, _)| *name);
    let is_faster = |name: Algorithm| match (place(name), place(auto)) {
        (Some(name), Some(usual)) => rounds.iter().all(|speeds| speeds[name] > FASTER * speeds[usual]),
        _ => false,
    };
    fastest.filter(|name| is_faster(*name)).unwrap_or(auto)
}

/// The median of each algorithm's speeds.
fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    let of = |algorithm: usize| {
        let mut speeds: Vec<f64> = rounds.iter().map(|speeds| speeds[algorithm]).collect();
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    };
    (0..rounds.first().map_or(0, Vec::len)).map(of).collect()
}

/// The rows of a collective with these algorithms for [`SIZES`], each up to half-way, as a factor, to the next size; none where nothing
/// differs from the algorithm that is used without them.
fn table_rows(collective: OpType, algorithms: &[Algorithm], auto: Algorithm) -> Vec<AlgorithmRow> {
    let mut rows: Vec<AlgorithmRow> = Vec::new();
    for (number, algorithm) in algorithms.iter().enumerate() {
        let up_to = SIZES.get(number + 1).map(|next| ((SIZES[number] * next) as f64).sqrt() as u64);
        match rows.last_mut().filter(|last| last.algorithm == *algorithm) {
            Some(last) => last.up_to = up_to,
            None => rows.push(AlgorithmRow { collective, up_to, algorithm: *algorithm }),
        }
    }
    match rows.as_slice() {
        [only] if only.algorithm == auto => Vec::new(),
        // What is as without a table needs no row at its end.
        [.., last] if last.algorithm == auto => rows[..rows.len() - 1].to_vec(),
        _ => rows,
    }
}

/// The table as a configuration has it.
fn shown(table: &[AlgorithmRow]) -> anyhow::Result<String> {
    if table.is_empty() {
        return Ok("No other algorithm was more than 10% faster in each of several rounds.\n".to_owned());
    }
    let mut text = "To use the fastest for each size, add this to the configuration:\n".to_owned();
    for row in table {
        text += &format!("\n[[comm.table]]\n{}", toml::to_string(row)?);
    }
    Ok(text)
}

fn heading(groups: &[(Algorithm, Group)], auto: Algorithm) -> Row {
    let name = |algorithm: &Algorithm| match *algorithm == auto {
        true => format!("{algorithm} (auto)"),
        false => algorithm.to_string(),
    };
    let names = groups.iter().map(|(algorithm, _)| name(algorithm));
    Row::from(["collective".to_owned(), "size".to_owned()].into_iter().chain(names).collect::<Vec<_>>())
}

fn row(operation: OpType, bytes: usize, speeds: &[f64]) -> Row {
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let speed = |speed: &f64| format!("{speed:.3}{}", if *speed == fastest { " *" } else { "" });
    let cells = [operation.to_string(), HumanBytes(bytes as u64).to_string()].into_iter();
    Row::from(cells.chain(speeds.iter().map(speed)).collect::<Vec<_>>())
}

/// The hosts with their ranks, the NUMA nodes that ranks are bound to, where there are several, and the addresses of chosen interfaces.
fn places(group: &Group) -> String {
    let mut hosts: Vec<Vec<String>> = Vec::new();
    let has_nodes = (1..group.size()).any(|rank| group.locality(rank).numa != group.locality(0).numa);
    for rank in 0..group.size() {
        let place = group.locality(rank);
        hosts.resize(hosts.len().max(place.host + 1), Vec::new());
        let numa = place.numa.filter(|_| has_nodes).map(|node| format!("NUMA node {node}"));
        let facts: Vec<String> = numa.into_iter().chain(place.address.map(|ip| ip.to_string())).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
        hosts[place.host].push(format!("{rank}{facts}"));
    }
    let host =
        |(number, ranks): (usize, &Vec<String>)| format!("host {number}: ranks {}\n", ranks.join(", "));
    hosts.iter().enumerate().map(host).collect()
}

/// What each rank sends per second, in GB.
fn gigabytes_per_second(group: &Group, operation: OpType, bytes: usize) -> brigade::comm::Result<f64> {
    let ranks = group.size();
    let count = (bytes / 4).next_multiple_of(ranks);
    let mut slice = vec![0.0f32; count];
    let mut call = || match operation {
        OpType::AllReduce => group.all_reduce_in_place(&mut slice, ReduceOp::Sum),
        OpType::ReduceScatter => group.reduce_scatter_in_place(&mut slice, ReduceOp::Sum),
        OpType::AllGather => group.all_gather_in_place(&mut slice),
        _ => group.broadcast_in_place(&mut slice, 0),
    };
    call()?;
    group.barrier()?;
    let start = Instant::now();
    call()?;
    // All ranks make as many calls as rank 0 finds right.
    let mut calls = [(SECONDS / start.elapsed().as_secs_f64()).clamp(CALLS.0, CALLS.1).floor()];
    group.broadcast_in_place(&mut calls, 0)?;
    group.barrier()?;
    let start = Instant::now();
    for _ in 0..calls[0] as u64 {
        call()?;
    }
    group.barrier()?;
    let seconds = start.elapsed().as_secs_f64() / calls[0];
    let halves = if operation == OpType::AllReduce { 2.0 } else { 1.0 };
    Ok(halves * (4 * count) as f64 * (ranks - 1) as f64 / ranks as f64 / seconds / 1e9)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_its_own_collectives_are_measured() {
        for collectives in CollectivesBackend::value_variants() {
            match check(*collectives) {
                Ok(()) => assert!(matches!(collectives, CollectivesBackend::Auto | CollectivesBackend::Host)),
                Err(error) => {
                    let name = collectives.to_possible_value().unwrap().get_name().to_owned();
                    let said = error.to_string();
                    assert!(said.starts_with(&format!("--collectives = {name} is not possible")), "{said}");
                    assert!(said.contains("Brigade's own collectives"), "{said}");
                }
            }
        }
    }

    #[test]
    fn the_table_has_what_is_much_faster() {
        use Algorithm::{Flat, Halving, Hierarchical};
        let names = [Flat, Halving, Hierarchical];
        let chosen = |rounds: &[[f64; 3]], auto| {
            chosen(&names, &rounds.iter().map(|speeds| speeds.to_vec()).collect::<Vec<_>>(), auto)
        };
        assert_eq!(chosen(&[[1.0, 1.05, 0.5]], Flat), Flat);
        assert_eq!(chosen(&[[1.0, 1.2, 2.0]], Flat), Halving, "a hierarchy would change the bits");
        assert_eq!(chosen(&[[2.5, 1.2, 2.0]], Hierarchical), Flat);
        let slower_once = [[1.0, 1.2, 0.5], [1.0, 1.3, 0.5], [1.0, 0.9, 0.5]];
        assert_eq!(chosen(&slower_once, Flat), Flat, "it may be chance");
        assert_eq!(chosen(&slower_once[..2], Flat), Halving);
        let rows = table_rows(OpType::AllReduce, &[Halving, Halving, Flat, Flat, Flat], Flat);
        let expected =
            AlgorithmRow { collective: OpType::AllReduce, up_to: Some(64 << 10), algorithm: Halving };
        assert_eq!(rows, [expected]);
        let text = shown(&rows).unwrap();
        assert!(
            text.ends_with(
                "[[comm.table]]\ncollective = \"all_reduce\"\nup_to = 65536\nalgorithm = \"halving\"\n"
            ),
            "{text}"
        );
        let settings: Settings = toml::from_str(&text[text.find("\n[[").unwrap()..]).unwrap();
        assert_eq!(settings.comm.table, rows);
        assert_eq!(table_rows(OpType::Broadcast, &[Flat; 5], Flat), []);
        let ends = table_rows(OpType::Broadcast, &[Flat, Flat, Flat, Flat, Hierarchical], Flat);
        assert_eq!(ends.last().unwrap().up_to, None);
        assert_eq!(ends.len(), 2);
    }
}
