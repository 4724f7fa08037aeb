//! `cargo xtask chaos`: kills training at drawn instants and checks that nothing is lost.
//!
//! - A run is started, killed and started again until it has finished; then the next one, until there were enough kills.
//! - All instants are drawn from `--seed` and the run's number alone, so that `--run` does one of them again. What the
//!   machine does in between is not the same each time.
//! - With `--races`: commands that users start in the same folder at once, also those that only read, some of them killed.
//!   See [`race`].
//! - After each kill: no process is left, every visible checkpoint is whole, none was lost. At the end of a run: the
//!   bytes of weights and the losses of the run that was never killed.

mod count;
mod draw;
mod folder;
mod kill;
mod mesh;
mod processes;
mod race;
mod reference;
mod run;
mod start;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cargo;
use count::Counts;
use mesh::Mesh;
use reference::{Reference, STEPS};
use run::Run;

/// Options of `cargo xtask chaos`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kills altogether.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    kills: u32,
    /// Instead of all this: so many rounds of two or four commands on one folder at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with_all = ["kills", "run"])]
    races: Option<u32>,
    /// Seed of victims and instants.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Only the run of this number, as an error names it.
    #[arg(long, value_name = "N")]
    run: Option<u32>,
    /// The `brigade` to train with [default: a release build].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The most ranks of a mesh, 1 to 4.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4))]
    nproc: u32,
}

/// What all runs have in common.
struct Chaos {
    brigade: PathBuf,
    /// Where the runs are; no process outside of them works there.
    folder: PathBuf,
    seed: u64,
    meshes: Vec<Mesh>,
    reference: Reference,
}

/// Kills until there were enough, and prints what was killed.
pub fn run(args: &Args) -> Result<()> {
    let brigade = match &args.binary {
        Some(path) => path.canonicalize().with_context(|| format!("--binary {}", path.display()))?,
        None => cargo::build(&["build", "--release", "-p", "brigade-cli"])?,
    };
    let begin = Instant::now();
    let folder = cargo::root().join(format!("runs/chaos-{}", std::process::id()));
    let folder = folder::make(&folder)?;
    if let Some(rounds) = args.races {
        println!(
            "{}seconds           {:.0}",
            race::run(&brigade, &folder, args.seed, rounds)?,
            begin.elapsed().as_secs_f64()
        );
        return remove(&folder);
    }
    let reference = Reference::train(&brigade, &folder, STEPS)?;
    let chaos = Chaos { brigade, folder, seed: args.seed, meshes: mesh::up_to(args.nproc), reference };
    let mut counts = Counts::default();
    let result = chaos.all(args, &mut counts);
    println!("{counts}seconds           {:.0}", begin.elapsed().as_secs_f64());
    if let Err((number, error)) = result {
        let Args { seed, nproc, .. } = args;
        bail!(
            "run {number}: {error:#}\nits folder is {}; again: cargo xtask chaos --seed {seed} --nproc {nproc} --run {number}",
            chaos.folder.join(run::name(number)).display()
        );
    }
    remove(&chaos.folder)
}

impl Chaos {
    /// Does run after run; the number of the one that failed with the error.
    fn all(&self, args: &Args, counts: &mut Counts) -> Result<(), (u32, anyhow::Error)> {
        let mut number = args.run.unwrap_or(0);
        while counts.kills() < args.kills {
            Run::new(self, number, args.kills).complete(counts).map_err(|error| (number, error))?;
            remove(&self.folder.join(run::name(number))).map_err(|error| (number, error))?;
            eprintln!("run {number} has ended as it should; {} of {} kills", counts.kills(), args.kills);
            number += 1;
            if args.run.is_some() {
                break;
            }
        }
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}
