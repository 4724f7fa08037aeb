//! The lines that say how a model is spread over ranks, and what they send each other.

use std::fmt::Write as _;
use std::ops::Range;

use brigade_core::compress::{Compression, Matrix, Method, PowerSgd};
use brigade_core::plan::ranges;
use brigade_core::{Blocks, DATA, DP, EngineSettings, PP, REPLICATE, ReduceEvery};
use brigade_report::counted;

use crate::settings::{CollectivesBackend, Encryption, RunPlan, Settings};
use crate::train::balance::BlockSeconds;

/// Which blocks each pipeline stage has, and what ZeRO shards.
pub(super) fn parallelism_lines(plan: &RunPlan, chain: &Blocks, seconds: &BlockSeconds) -> Vec<String> {
    let mut lines = Vec::new();
    if let (true, Ok(split)) = (plan.mesh.size(PP) * plan.engine.chunks > 1, plan.split(&chain.costs())) {
        let blocks = chain.parameters_by_block();
        let names = ranges(&split).into_iter().map(|range| match range.len() {
            1 => blocks[range.start].0.clone(),
            _ => format!("{} to {}", blocks[range.start].0, blocks[range.end - 1].0),
        });
        let names: Vec<_> = names.collect();
        let mut line = format!(
            "pipeline {}: {}, blocks {split:?}: {}",
            plan.engine.schedule,
            counted(plan.mesh.size(PP), "stage"),
            names.join(" | ")
        );
        if !seconds.is_empty() {
            let seconds =
                |range: Range<usize>| blocks[range].iter().map(|(name, _)| seconds[name]).sum::<f64>();
            let times = ranges(&split).into_iter().map(|range| format!("{:.1}", 1e3 * seconds(range)));
            let _ = write!(
                line,
                "; a micro-batch takes {} ms, as measured",
                times.collect::<Vec<_>>().join(" | ")
            );
        }
        lines.push(line);
    }
    if plan.engine.zero.stage > 0 {
        let what = [
            "",
            "optimizer state",
            "optimizer state and gradients",
            "optimizer state, gradients and parameters",
        ];
        let what = what[usize::from(plan.engine.zero.stage.min(3))];
        let replicas = match plan.mesh.size(REPLICATE) {
            1 => String::new(),
            replicas => format!(", replicated {replicas} times"),
        };
        lines.push(format!(
            "ZeRO-{}: {what} in {}{replicas}",
            plan.engine.zero.stage,
            counted(plan.mesh.size(DP), "shard")
        ));
    }
    lines
}

/// Whether gradients travel as codes anywhere: PowerSGD only factors matrices that this makes smaller.
pub(super) fn compresses(plan: &RunPlan, chain: &Blocks) -> bool {
    let matrix = |shape: Vec<usize>| Matrix::of(0, &shape);
    match plan.compression {
        Compression { method: Method::None, .. } => false,
        Compression { method: Method::PowerSgd, rank, .. } => {
            let matrices: Vec<_> = chain.trained_shapes().into_iter().filter_map(matrix).collect();
            PowerSgd::factors_any(rank, &matrices)
        }
        _ => true,
    }
}

/// Whether gradients of tied weights go to another stage once a step.
pub(super) fn sends_tied_once(plan: &RunPlan, chain: &Blocks) -> bool {
    let is_tied = || chain.units(&[]).is_ok_and(|units| units.iter().any(|unit| unit.users.len() > 1));
    plan.mesh.size(PP) > 1 && plan.engine.tied_gradients == ReduceEvery::Step && is_tied()
}

/// The encoding of gradients, if they are compressed.
pub(super) fn compression_line(plan: &RunPlan, chain: &Blocks) -> Option<String> {
    let Compression { method, warmup_steps, rank, .. } = plan.compression;
    let who = match plan.mesh.size(REPLICATE) {
        _ if method == Method::None || plan.mesh.size_over(&DATA) == 1 => return None,
        1 => "data-parallel ranks",
        _ => "replicas",
    };
    if !compresses(plan, chain) {
        return Some(format!(
            "note: comm.matrix_approximation_rank = {rank} makes none of the trained matrices smaller, so gradients are not compressed"
        ));
    }
    let from = match warmup_steps {
        0 => String::new(),
        steps => format!(" from step {} on", steps + 1),
    };
    let feedback = match plan.compression.needs_error_feedback() {
        true => "; the compression error is added to the next gradients",
        false => "",
    };
    Some(format!("gradients are compressed with {method} between {who}{from}{feedback}"))
}

/// How much of the gradients is sent together, if any is.
pub(super) fn buckets_line(plan: &RunPlan) -> Option<String> {
    let EngineSettings { buckets, zero, strategy, .. } = &plan.engine;
    let ranks = plan.mesh.size_over(&DATA);
    let by_itself =
        zero.reduces_each_micro_batch() && plan.mesh.size(REPLICATE) == 1 || strategy.servers() > 0;
    (buckets.bytes > 0 && ranks > 1 && !by_itself).then(|| {
        let place = if buckets.within_hosts { "" } else { "between hosts, " };
        let megabytes = buckets.bytes as f64 / 1e6;
        format!("{place}up to {megabytes:.1} MB of gradients are sent together (comm.bucket_cap_mb)")
    })
}

/// How codes cross the network once for several ranks, or would once per host, where several hosts have several ranks. `hosts` is the host
/// of each rank; `neighbours`: how many add up first, where collectives are in two levels.
pub(super) fn levels_note(plan: &RunPlan, hosts: &[usize], neighbours: Option<usize>) -> Option<String> {
    let count = hosts.iter().max().map_or(1, |last| last + 1);
    let per_host = hosts.len() / count;
    let is_even = (0..hosts.len()).all(|rank| hosts[rank] == rank / per_host.max(1));
    let mesh = &plan.mesh;
    let is_flat = mesh.size(REPLICATE) == 1 && mesh.size(DP) == hosts.len();
    let method = plan.compression.method;
    if matches!(method, Method::None | Method::PowerSgd) || !is_flat {
        return None;
    }
    if let (Some(neighbours), 0) = (neighbours, plan.engine.zero.stage) {
        return Some(match is_even && neighbours == per_host {
            true => {
                "the ranks of a host first add up their gradients, and send codes of the sums between hosts"
                    .into()
            }
            false => format!(
                "each {neighbours} neighbouring ranks of a host first add up their gradients, and send codes of the sums to the others"
            ),
        });
    }
    if !is_even || count < 2 || per_host < 2 {
        return None;
    }
    let stage = plan.engine.zero.stage.max(1);
    Some(format!(
        "note: each rank sends its codes to every rank of the other hosts; with --zero {stage} --replicate {count} each host first sums in shared \
         memory, so codes cross the network once per host"
    ))
}

/// That outer gradients of `bytes` per element leave a host once for each of its workers, and so save nothing where those in fp32 leave it
/// once for several. `hosts` is the host of each rank; `neighbours`: how many ranks add up first, where sums in fp32 are in two levels.
pub(super) fn outer_dtype_note(
    workers: usize,
    bytes: usize,
    hosts: &[usize],
    neighbours: Option<usize>,
) -> Option<String> {
    let count = hosts.iter().max().map_or(1, |last| last + 1);
    // A worker's ranks are neighbours, so workers add up as many at a time as these ranks have.
    let together = neighbours? * workers / hosts.len();
    let more = (bytes * together) as f64 / size_of::<f32>() as f64;
    if bytes >= size_of::<f32>() || together < 2 || more < 1.0 {
        return None;
    }
    let once = match together * count == workers {
        true => "once".to_owned(),
        false => format!("once for {together} workers"),
    };
    let more = if more == 1.0 { "as many bytes as".to_owned() } else { format!("{more} times the bytes of") };
    Some(format!(
        "note: each worker of a host sends its outer gradients to all workers of the other hosts, together {more} \
         strategy.outer_dtype = fp32, whose sums leave a host {once}; set fp32, or one worker for each host, with shards (--workers {count} --zero 1)"
    ))
}

/// That a replica is on several hosts, where another number of replicas has each on one. `hosts` is the host of each rank.
pub(super) fn replicas_note(plan: &RunPlan, hosts: &[usize]) -> Option<String> {
    let (mesh, ranks) = (&plan.mesh, plan.mesh.size_over(&DATA));
    if mesh.size(REPLICATE) == 1 || mesh.world() != hosts.len() {
        return None;
    }
    // Data-parallel ranks are neighbours, and so are those of a replica.
    let spanning = |shards: usize| {
        let mut replicas = hosts.chunks(shards);
        replicas.position(|hosts| hosts.iter().any(|host| *host != hosts[0]))
    };
    let shards = mesh.size(DP);
    let first = spanning(shards)? * shards;
    let within =
        (2..ranks).rev().find(|shards| ranks.is_multiple_of(*shards) && spanning(*shards).is_none())?;
    Some(format!(
        "note: ranks {first} to {} are one replica on several hosts, so what ZeRO gathers and reduces crosses the network; with --replicate {} each replica is on one host",
        first + shards - 1,
        ranks / within
    ))
}

/// That tensors cross the network unencrypted although the settings ask for encryption. `hosts` is the host of each rank.
pub(super) fn encryption_note(settings: &Settings, hosts: &[usize]) -> Option<String> {
    let library = match settings.collectives() {
        CollectivesBackend::Nccl => "NCCL",
        CollectivesBackend::Mpi => "MPI",
        _ => return None,
    };
    let is_asked = settings.comm.encryption == Encryption::BetweenHosts;
    (is_asked && hosts.iter().any(|host| *host > 0)).then(|| {
        format!(
            "note: {library} does not encrypt the tensors that it sends between hosts; comm.encryption = between_hosts encrypts everything else"
        )
    })
}

/// That several ranks of a host are not neighbours, so that collectives which could be in two levels are in one. `hosts` is the host of each
/// rank; `neighbours`: how many add up first, where collectives are in two levels.
pub(super) fn placement_note(
    settings: &Settings,
    hosts: &[usize],
    neighbours: Option<usize>,
) -> Option<String> {
    let is_open = matches!(settings.comm.collectives, CollectivesBackend::Auto | CollectivesBackend::Host);
    if !is_open || settings.collectives() != CollectivesBackend::Host || neighbours.is_some() {
        return None;
    }
    let count = hosts.iter().max().map_or(1, |last| last + 1);
    let is_even = |host| hosts.iter().filter(|of| **of == host).count() * count == hosts.len();
    let changes = hosts.windows(2).filter(|pair| pair[0] != pair[1]).count();
    (count > 1 && hosts.len() > count && (0..count).all(is_even) && changes + 1 > count).then(|| {
        "note: the ranks of a host are not numbered one after the other, so that collectives do not add up inside hosts first and more bytes cross the network; \
         number them so (srun --distribution=block, mpirun --map-by slot)"
            .to_owned()
    })
}

/// The axes of the mesh with their sizes.
pub(super) fn mesh_text(plan: &RunPlan) -> String {
    // Those of a launch that has nothing else are its mesh.
    let servers = if plan.servers() < plan.mesh.size(DP) { plan.servers() } else { 0 };
    let axes = plan.mesh.axes().iter().map(|axis| match axis.name == DP {
        true => format!("{DP} {}", axis.size - servers),
        false => format!("{} {}", axis.name, axis.size),
    });
    let axes = axes.collect::<Vec<_>>().join(" x ");
    if servers == 0 { axes } else { format!("{axes}, and {}", counted(servers, "server")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_library_that_does_not_encrypt_is_named_between_hosts() {
        let mut settings = Settings::default();
        let mut note = |collectives, encryption, hosts: &[usize]| {
            (settings.comm.collectives, settings.comm.encryption) = (collectives, encryption);
            encryption_note(&settings, hosts)
        };
        let (on, off) = (Encryption::BetweenHosts, Encryption::Off);
        assert!(note(CollectivesBackend::Nccl, on, &[0, 1]).unwrap().starts_with("note: NCCL does not"));
        assert!(note(CollectivesBackend::Mpi, on, &[0, 1]).unwrap().starts_with("note: MPI does not"));
        assert_eq!(note(CollectivesBackend::Host, on, &[0, 1]), None);
        assert_eq!(note(CollectivesBackend::Nccl, off, &[0, 1]), None);
        assert_eq!(note(CollectivesBackend::Nccl, on, &[0, 0]), None);
    }

    #[test]
    fn ranks_that_are_dealt_out_to_hosts_are_named() {
        let mut settings = Settings::default();
        settings.comm.collectives = CollectivesBackend::Host;
        for hosts in [&[0, 1, 0, 1][..], &[0, 1, 2, 0, 1, 2]] {
            let note = placement_note(&settings, hosts, None).unwrap();
            assert!(note.contains("not numbered one after the other"), "{note}");
        }
        for hosts in [&[0, 0, 1, 1][..], &[0, 1], &[0, 0], &[0, 0, 0, 1]] {
            assert_eq!(placement_note(&settings, hosts, None), None, "{hosts:?}");
        }
        // Pairs are neighbours, and add up first.
        let pairs = [0, 0, 1, 1, 0, 0, 1, 1];
        assert_eq!(placement_note(&settings, &pairs, Some(2)), None);
        settings.comm.collectives = CollectivesBackend::Flat;
        assert_eq!(placement_note(&settings, &[0, 1, 0, 1], None), None, "as it was asked for");
    }

    #[test]
    fn replicas_on_several_hosts_are_named_where_another_number_has_each_on_one() {
        let note = |replicas: usize, hosts: &[usize]| {
            let toml = format!(
                "[train]\nmicro_batch_size = 1\nglobal_batch_size = 24\n[zero]\nstage = 1\n[mesh]\nreplicate = {replicas}\n"
            );
            let settings: Settings = crate::settings::parse_defaults(&toml).unwrap();
            replicas_note(&settings.plan(hosts.len(), 1).unwrap(), hosts)
        };
        let said = note(2, &[0, 0, 1, 1, 2, 2, 3, 3]).unwrap();
        assert!(
            said.contains("ranks 0 to 3 are one replica") && said.contains("with --replicate 4 each"),
            "{said}"
        );
        // Fewer replicas, of three ranks.
        let said = note(3, &[0, 0, 0, 1, 1, 1]).unwrap();
        assert!(
            said.contains("ranks 2 to 3 are one replica") && said.contains("with --replicate 2 each"),
            "{said}"
        );
        for (replicas, hosts) in [
            (4, &[0, 0, 1, 1, 2, 2, 3, 3][..]),
            (2, &[0, 0, 1, 1]),
            (2, &[0, 0, 0, 0]),
            // Shards are within a replica on several hosts, or nowhere.
            (2, &[0, 1, 2, 3]),
            (1, &[0, 0, 1, 1]),
        ] {
            assert_eq!(note(replicas, hosts), None, "{replicas} {hosts:?}");
        }
    }

    #[test]
    fn outer_gradients_that_save_nothing_between_hosts_are_named() {
        let note = |workers: usize, bytes: usize, per_host: usize| {
            let hosts: Vec<usize> = (0..2 * per_host).map(|rank| rank / per_host).collect();
            outer_dtype_note(workers, bytes, &hosts, Some(per_host))
        };
        assert!(note(8, 2, 4).unwrap().contains("together 2 times the bytes of strategy.outer_dtype = fp32"));
        assert!(note(4, 2, 4).unwrap().contains("whose sums leave a host once;"));
        assert!(note(8, 1, 4).unwrap().contains("together as many bytes as"));
        // Of six workers on each host, each two add up first.
        let hosts: Vec<usize> = (0..12).map(|rank| rank / 6).collect();
        let of_pairs = outer_dtype_note(12, 2, &hosts, Some(2)).unwrap();
        assert!(
            of_pairs.contains("as many bytes as") && of_pairs.contains("once for 2 workers"),
            "{of_pairs}"
        );
        assert_eq!(outer_dtype_note(12, 1, &hosts, Some(2)), None, "half the bytes");
        assert_eq!(outer_dtype_note(6, 2, &hosts, Some(2)), None, "pairs are one worker's");
        for (workers, bytes, per_host) in [(8, 4, 4), (2, 2, 4), (4, 1, 4), (1, 2, 4), (2, 1, 1)] {
            assert_eq!(note(workers, bytes, per_host), None, "{workers} {bytes} {per_host}");
        }
        assert_eq!(outer_dtype_note(8, 2, &[0, 0, 0, 0, 1, 1, 1, 1], None), None);
    }

    #[test]
    fn codes_in_two_levels_are_named_where_they_would_help() {
        let note = |toml: &str, hosts: &[usize]| {
            let toml = format!("[train]\nmicro_batch_size = 1\n{toml}");
            let settings: Settings = crate::settings::parse_defaults(&toml).unwrap();
            levels_note(&settings.plan(hosts.len(), 1).unwrap(), hosts, None)
        };
        let coded = "[comm]\ncompress = \"int8\"\n";
        assert!(
            note(coded, &[0, 0, 1, 1]).unwrap().contains("with --zero 1 --replicate 2 each host first sums")
        );
        let among = |toml: &str, hosts: &[usize], neighbours: usize| {
            let toml = format!("[train]\nmicro_batch_size = 1\nglobal_batch_size = 12\n{toml}");
            let settings: Settings = crate::settings::parse_defaults(&toml).unwrap();
            levels_note(&settings.plan(hosts.len(), 1).unwrap(), hosts, Some(neighbours))
        };
        let in_levels = |toml: &str| among(toml, &[0, 0, 1, 1], 2);
        for hosts in [&[0, 0, 1, 1, 1, 1][..], &[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]] {
            let said = among(coded, hosts, 2).unwrap();
            assert!(said.contains("each 2 neighbouring ranks of a host first add up"), "{said}");
        }
        assert!(in_levels(coded).unwrap().contains("send codes of the sums between hosts"));
        assert!(in_levels(&format!("{coded}[zero]\nstage = 1\n")).unwrap().contains("--replicate 2"));
        assert_eq!(in_levels(""), None);
        let sharded = format!("{coded}[zero]\nstage = 3\n");
        assert!(note(&sharded, &[0, 0, 1, 1]).unwrap().contains("--zero 3 --replicate 2"));
        let with_replicas = format!("{sharded}[mesh]\nreplicate = 2\n");
        for (toml, hosts) in [
            ("", &[0, 0, 1, 1][..]),
            (coded, &[0, 0, 0, 0]),
            (coded, &[0, 1, 2, 3]),
            (coded, &[0, 0, 0, 1]),
            (&with_replicas, &[0, 0, 1, 1]),
            ("[comm]\ncompress = \"powersgd\"\n", &[0, 0, 1, 1]),
        ] {
            assert_eq!(note(toml, hosts), None, "{toml} {hosts:?}");
        }
    }
}
