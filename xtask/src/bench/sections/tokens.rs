//! Tokens per second: two ranks, and one process.

use anyhow::Result;

use crate::bench::page::{Section, Table};
use crate::bench::runner::{Kind, Runner, STEPS, Side, train};

pub const TITLE: &str = "Tokens per second";

/// Data parallelism on two ranks over PyTorch's.
const GOAL: f64 = 1.25;

/// The same amount of work on both sides.
struct Pair {
    measure: &'static str,
    brigade: Side,
    torch: Side,
    goal: Option<f64>,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let ddp = format!(
        "torchrun --standalone --nproc-per-node 2 benches/peers/torch_bench.py --mode ddp --steps {STEPS}"
    );
    let single = format!("python benches/peers/torch_bench.py --mode single --threads 1 --steps {STEPS}");
    let mut pairs = [
        Pair {
            measure: "2 ranks of one thread",
            brigade: Side::brigade("ranks", train("ranks", [1, 2], 8, 4, STEPS)),
            torch: Side::peer(Kind::Torch, "torch-ranks", ddp),
            goal: Some(GOAL),
        },
        Pair {
            measure: "1 process of one thread",
            brigade: Side::brigade("single", train("single", [1, 1], 8, 8, STEPS)),
            torch: Side::peer(Kind::Torch, "torch-single", single),
            goal: None,
        },
    ];
    let mut notes = Vec::new();
    for run in 1..=runner.runs {
        for pair in &mut pairs {
            pair.brigade.run(runner, run, &mut notes)?;
            pair.torch.run(runner, run, &mut notes)?;
        }
    }
    let row = |pair: &Pair| pair.brigade.beside(&pair.torch, runner, pair.measure, pair.goal);
    Ok(Section {
        title: TITLE,
        text: "Training the 13-million-parameter GPT of `configs/gpt-13m.toml` with 8 sequences of 256 tokens a step, \
               against PyTorch's DistributedDataParallel over gloo, and one process of each."
            .into(),
        commands: pairs.iter().flat_map(|pair| [&pair.brigade, &pair.torch].map(|side| side.line.clone())).collect(),
        tables: vec![Table::beside("PyTorch", pairs.iter().map(row).collect())],
        notes,
    })
}
