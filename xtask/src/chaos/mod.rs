//! `cargo xtask chaos`: kills training at random moments and checks that nothing is lost.
//!
//! - [`kills`]: a run is started, killed and started again until it finishes; then the next one, until there were enough
//!   kills.
//! - [`races`], with `--races`: commands that users start in the same folder at once, some of which are killed.
//! - [`elastic`], with `--elastic`: nodes that leave, are cut off, and come back.
//! - [`workers`], with `--workers`: workers of DiLoCo that leave and join while the others train on.
//!
//! All choices depend on `--seed` and the run's number alone, so that `--run` repeats a run. What the machine does in between
//! is not the same each time.

mod choices;
mod elastic;
mod kills;
mod process;
mod races;
mod run;
mod workers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{cargo, network};
use kills::{Counts, Setup};
use run::{Reference, STEPS, make_root, mesh, remove};

/// Options of `cargo xtask chaos`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kills in total.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    kills: u32,
    /// Instead of killing training: this many rounds of two or four commands in one folder at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with_all = ["kills", "run"])]
    races: Option<u32>,
    /// Instead of killing training: change the nodes of elastic runs, --times times.
    #[arg(long, conflicts_with_all = ["kills", "run", "races"])]
    elastic: bool,
    /// Instead of killing training: change the workers of DiLoCo runs, --times times.
    #[arg(long, conflicts_with_all = ["kills", "run", "races", "elastic"])]
    workers: bool,
    /// Change the nodes of elastic runs in the folder of this number: for the process that is in namespaces of its own.
    #[arg(long, hide = true, value_name = "ID", requires = "elastic")]
    inside: Option<u32>,
    /// How many nodes or workers leave and come back, with --elastic or --workers.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    times: u32,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Repeat only the run with this number, which an error shows.
    #[arg(long, value_name = "N")]
    run: Option<u32>,
    /// The `brigade` to train with [default: a release build].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The most ranks of a mesh, 1 to 4.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4))]
    nproc: u32,
}

/// Kills until there were enough, and prints what was killed.
///
/// # Errors
/// [`cargo::Failed`], with its status, if what was started in namespaces failed; what was lost, with how to repeat it.
pub fn run(args: &Args) -> Result<()> {
    let brigade = match &args.binary {
        Some(path) => path.canonicalize().with_context(|| format!("--binary {}", path.display()))?,
        None => cargo::build(&["build", "--release", "-p", "brigade-cli"])?,
    };
    if args.elastic && args.inside.is_none() {
        match network::in_namespaces() {
            Ok(command) => return run_in(command, args, &brigade),
            Err(error) => eprintln!("note: nodes are stopped, but not cut off: {error}"),
        }
    }
    let begin = Instant::now();
    let id = args.inside.unwrap_or_else(std::process::id);
    let folder = cargo::root().join(format!("runs/chaos-{id}"));
    let folder = make_root(&folder)?;
    if let Some(rounds) = args.races {
        println!(
            "{}seconds           {:.0}",
            races::run(&brigade, &folder, args.seed, rounds)?,
            begin.elapsed().as_secs_f64()
        );
        return remove(&folder);
    }
    if args.elastic {
        let on_network = args.inside.is_some();
        if on_network {
            network::connected_hosts(elastic::NODES as u8)?;
        }
        let counts = elastic::run(&brigade, &folder, args.seed, args.times, on_network)?;
        println!("{counts}seconds           {:.0}", begin.elapsed().as_secs_f64());
        return remove(&folder);
    }
    if args.workers {
        let counts = workers::run(&brigade, &folder, args.seed, args.times)?;
        println!("{counts}seconds           {:.0}", begin.elapsed().as_secs_f64());
        return remove(&folder);
    }
    let reference = Reference::train(&brigade, &folder, STEPS)?;
    let setup = Setup { brigade, folder, seed: args.seed, meshes: mesh::up_to(args.nproc), reference };
    let mut counts = Counts::default();
    let result = setup.kill(args.kills, args.run, &mut counts);
    println!("{counts}seconds           {:.0}", begin.elapsed().as_secs_f64());
    if let Err((number, error)) = result {
        let Args { seed, nproc, .. } = args;
        bail!(
            "run {number}: {error:#}\nits folder is {}; to repeat it: cargo xtask chaos --seed {seed} --nproc {nproc} --run {number}",
            setup.folder.join(kills::name(number)).display()
        );
    }
    remove(&setup.folder)
}

/// Changes the nodes of elastic runs in namespaces, where they can be cut off.
fn run_in(mut command: Command, args: &Args, brigade: &Path) -> Result<()> {
    command.args(["chaos", "--elastic", "--inside", &std::process::id().to_string()]);
    command.args(["--times", &args.times.to_string(), "--seed", &args.seed.to_string()]);
    let status = command.arg("--binary").arg(brigade).status().context("cannot start in namespaces")?;
    if status.success() { Ok(()) } else { Err(cargo::Failed(status).into()) }
}

fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("no free port")?;
    Ok(listener.local_addr()?.port())
}
