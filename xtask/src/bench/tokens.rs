//! Tokens per second: two ranks, and one process.

use anyhow::Result;

use super::peer::Kind;
use super::samples::{Samples, Unit};
use super::table::{Goal, Row, Section, Table};
use super::{Bench, STEPS, lines, train};

/// Data parallelism on two ranks over PyTorch's.
const GOAL: f64 = 1.25;

/// The same amount of work on both sides.
struct Pair {
    measure: &'static str,
    name: &'static str,
    brigade: String,
    torch: String,
    goal: Option<f64>,
    figures: [Samples; 2],
}

pub fn measure(bench: &Bench) -> Result<Section> {
    let ddp = format!(
        "torchrun --standalone --nproc-per-node 2 benches/peers/torch_bench.py --mode ddp --steps {STEPS}"
    );
    let single = format!("python benches/peers/torch_bench.py --mode single --threads 1 --steps {STEPS}");
    let mut pairs = [
        Pair {
            measure: "2 ranks of one thread",
            name: "ranks",
            brigade: train("ranks", 2, 8, 4, STEPS),
            torch: ddp,
            goal: Some(GOAL),
            figures: Default::default(),
        },
        Pair {
            measure: "1 process of one thread",
            name: "single",
            brigade: train("single", 1, 8, 8, STEPS),
            torch: single,
            goal: None,
            figures: Default::default(),
        },
    ];
    let mut notes = Vec::new();
    for run in 1..=bench.runs {
        for pair in &mut pairs {
            let rate = bench.tokens_per_second(pair.name, &pair.brigade)?;
            bench.progress(run, pair.measure, format!("Brigade {}", Unit::TokensPerSecond.show(rate)));
            pair.figures[0].0.push(rate);
            let steps = bench.peer(Kind::Torch, &format!("torch-{}", pair.name), &pair.torch, &mut notes)?;
            if let Some(rate) = lines::steady(&lines::numbers(&steps, "tokens_per_second")) {
                bench.progress(run, pair.measure, format!("PyTorch {}", Unit::TokensPerSecond.show(rate)));
                pair.figures[1].0.push(rate);
            }
        }
    }
    let row = |pair: &Pair| {
        let [brigade, torch] = &pair.figures;
        let ratio = brigade.over(torch);
        Row {
            measure: pair.measure.into(),
            brigade: brigade.cell(Unit::TokensPerSecond, ""),
            other: torch.cell(Unit::TokensPerSecond, bench.absent(Kind::Torch)),
            ratio,
            goal: pair.goal.and_then(|goal| Goal::at_least(ratio, goal)),
        }
    };
    Ok(Section {
        title: "Tokens per second",
        text: "Training the 13-million-parameter GPT of `configs/gpt-13m.toml` with 8 sequences of 256 tokens a step, \
               against PyTorch's DistributedDataParallel over gloo, and one process of each."
            .into(),
        commands: pairs.iter().flat_map(|pair| [pair.brigade.clone(), pair.torch.clone()]).collect(),
        tables: vec![Table { other: Some("PyTorch"), rows: pairs.iter().map(row).collect() }],
        notes,
    })
}
