//! What slows the runs, and what would cure them.

use super::interruption::Interruption;
use crate::bench::runner::FOLDER;

/// One cause of a slow run, by the name that `brigade report --json` gives it.
pub struct Case {
    pub name: &'static str,
    /// What is done to the run.
    pub done: &'static str,
    /// What should be found first, and on which rank or stage; nothing on a healthy run.
    pub cause: Option<(&'static str, Option<u64>)>,
    slow: Line,
    /// Without the cause, or as the diagnosis advises.
    cured: Line,
    pub interruption: Option<Interruption>,
}

/// A command that trains.
enum Line {
    /// `brigade train` on two ranks, with these flags.
    Train(&'static str),
    /// The same on two hosts of a network, with the flags of `cargo xtask network`.
    Network(&'static str, &'static str),
    /// `benches/side_by_side/slowed.rs` on two ranks.
    Program(&'static str),
}

const fn on_network(name: &'static str, done: &'static str, cause: &'static str, lines: [Line; 2]) -> Case {
    let [slow, cured] = lines;
    Case { name, done, cause: Some((cause, None)), slow, cured, interruption: None }
}

const fn by_flags(
    name: &'static str,
    done: &'static str,
    cause: (&'static str, Option<u64>),
    slow: &'static str,
    cured: &'static str,
) -> Case {
    let [slow, cured] = [Line::Train(slow), Line::Train(cured)];
    Case { name, done, cause: Some(cause), slow, cured, interruption: None }
}

const fn by_program(
    name: &'static str,
    done: &'static str,
    cause: (&'static str, Option<u64>),
    flags: &'static str,
) -> Case {
    let [slow, cured] = [Line::Program(flags), Line::Program("")];
    Case { name, done, cause: Some(cause), slow, cured, interruption: None }
}

const fn interrupted(
    name: &'static str,
    done: &'static str,
    cause: (&'static str, Option<u64>),
    interruption: Interruption,
) -> Case {
    let [slow, cured] = [Line::Train(""), Line::Train("")];
    Case { name, done, cause: Some(cause), slow, cured, interruption: Some(interruption) }
}

/// Each is a real run of two ranks, slowed by what it names.
pub fn cases() -> Vec<Case> {
    let healthy = Case {
        name: "healthy",
        done: "nothing",
        cause: None,
        slow: Line::Train(""),
        cured: Line::Train(""),
        interruption: None,
    };
    vec![
        healthy,
        on_network(
            "slow-link",
            "100 Mbit/s between the ranks, by `tc`",
            "exposed_communication",
            [Line::Network("--rate 100mbit", ""), Line::Network("", "")],
        ),
        interrupted(
            "half-a-core",
            "rank 1 is stopped for 10 of every 20 ms",
            ("slow_rank", Some(1)),
            Interruption::HalfACore { rank: 1, after: 0 },
        ),
        interrupted(
            "half-a-core-later",
            "the same from step 20 on",
            ("slow_rank", Some(1)),
            Interruption::HalfACore { rank: 1, after: 20 },
        ),
        interrupted(
            "jitter",
            "either rank, by chance, is stopped for 100 of every 300 ms",
            ("jitter", None),
            Interruption::ByChance { pause: 100, period: 300 },
        ),
        by_program(
            "collector",
            "a hook holds rank 0 for 60 ms after each step",
            ("host_stalls", Some(0)),
            "--slow-hook 60",
        ),
        by_program(
            "slow-disk",
            "reading a sample takes all ranks 1 ms",
            ("input_starvation", None),
            "--slow-data 1",
        ),
        by_program(
            "one-slow-disk",
            "reading a sample takes rank 1 1 ms",
            ("input_starvation", Some(1)),
            "--slow-data 1 --of-rank 1",
        ),
        by_flags(
            "stages",
            "two stages of 1 and 7 blocks",
            ("stage_imbalance", Some(1)),
            "--pp 2 --set model.layers=6 --set pipeline.stages=[1,7] --micro-batch-size 2",
            "--pp 2 --set model.layers=6 --set pipeline.balance=measured --micro-batch-size 2",
        ),
        by_flags(
            "bubble",
            "two stages and two micro-batches",
            ("bubble", None),
            "--pp 2 --set model.layers=6 --set pipeline.balance=measured --micro-batch-size 16",
            "--pp 2 --set model.layers=6 --set pipeline.balance=measured --micro-batch-size 8",
        ),
        on_network(
            "small-batch",
            "two sequences of a small model in a step, 5 ms between the ranks",
            "small_batch",
            [
                Line::Network(
                    "--delay 5ms",
                    "--set model.width=32 --set model.layers=1 --micro-batch-size 1 --global-batch-size 2",
                ),
                Line::Network(
                    "",
                    "--set model.width=32 --set model.layers=1 --micro-batch-size 1 --global-batch-size 2",
                ),
            ],
        ),
        on_network(
            "reduction",
            "ZeRO-2 sums gradients after each of 8 micro-batches, at 200 Mbit/s",
            "repeated_reduction",
            [
                Line::Network("--rate 200mbit", "--zero 2 --micro-batch-size 2"),
                Line::Network("--rate 200mbit", "--zero 2 --micro-batch-size 2 --set zero.reduce_every=step"),
            ],
        ),
        by_flags(
            "checkpoints",
            "a checkpoint after each step, written before the next",
            ("checkpoints", None),
            "--set checkpoint.every=1 --set checkpoint.asynchronous=false",
            "",
        ),
        by_flags(
            "validation",
            "a validation after every other step",
            ("outside_steps", None),
            "--set train.validate_every=2",
            "",
        ),
    ]
}

impl Case {
    /// The command of the slow run.
    pub fn slow_line(&self) -> String {
        self.slow.shown(self.name)
    }

    /// The command of the run without the cause.
    pub fn cured_line(&self) -> String {
        self.cured.shown(&format!("{}-cured", self.name))
    }
}

impl Line {
    /// The command, which writes to the folder of `run`.
    fn shown(&self, run: &str) -> String {
        // A setting that is given twice counts as given last.
        let train = |ranks: &str, flags: &str| {
            format!(
                "brigade train {ranks} --steps 40 --set train.validate_every=0 --set checkpoint.every=0 {flags} --quiet --out {FOLDER}/{run}"
            )
        };
        match self {
            Self::Train(flags) => train("--standalone --nproc-per-node 2", flags),
            Self::Network(network, flags) => {
                format!("cargo xtask network --hosts 2 {network} -- {}", train("--nproc-per-node 1", flags))
            }
            Self::Program(flags) => {
                format!(
                    "cargo bench --bench slowed -- --standalone --nproc-per-node 2 {flags} --quiet --out {FOLDER}/{run}"
                )
            }
        }
    }
}
