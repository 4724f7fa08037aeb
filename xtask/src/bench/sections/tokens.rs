//! Tokens per second: two ranks, and one process.

use anyhow::Result;

use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit};
use crate::bench::runner::{Kind, Runner, STEPS, Side, json_lines, train};

pub const TITLE: &str = "Tokens per second";

/// Data parallelism on two ranks over PyTorch's.
const GOAL: f64 = 1.25;

/// What the products of a step reach of the core's own matrix product.
const SHARE: f64 = 80.0;
const PRODUCT: &str = "cargo bench -p brigade-simd --bench product";
/// Floating-point operations of the products of a token, forward and backward: six for each parameter of a product and, with 6 layers, for each
/// element of scores twice two (as PaLM's appendix B counts, which leaves out that half of them are masked).
const FLOPS_PER_TOKEN: f64 = 6.0 * (12.0 * 384.0 * 384.0 * 6.0 + 4096.0 * 384.0) + 12.0 * 6.0 * 384.0 * 256.0;

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
    let (mut notes, mut products) = (Vec::new(), Samples::default());
    for run in 1..=runner.runs {
        let end = runner.start("product", PRODUCT)?.finish()?;
        end.succeeded()?;
        products.0.extend(json_lines::numbers(&json_lines::objects(&end.stdout), "gflops"));
        for pair in &mut pairs {
            pair.brigade.run(runner, run, &mut notes)?;
            pair.torch.run(runner, run, &mut notes)?;
        }
    }
    let share = |side: &Side| {
        let rate = products.median().map_or(f64::NAN, |gflops| gflops * 1e9);
        Samples(side.rates.0.iter().map(|tokens| 100.0 * tokens * FLOPS_PER_TOKEN / rate).collect())
    };
    let [_, single] = &pairs;
    let (own, other) = (share(&single.brigade), share(&single.torch));
    let cells = [own.cell(Unit::Percent, ""), other.cell(Unit::Percent, runner.absent(Kind::Torch))];
    let goal = Goal { text: format!("≥ {SHARE}%"), met: own.median().map(|share| share >= SHARE) };
    let shares = Row::beside("1 process of one thread", cells, own.over(&other), Some(goal));
    let row = |pair: &Pair| pair.brigade.beside(&pair.torch, runner, pair.measure, pair.goal);
    Ok(Section {
        title: TITLE,
        text: "Training the GPT of `configs/gpt-13m.toml`, which has 14 million parameters, with 8 sequences of 256 tokens per step, \
        against PyTorch's DistributedDataParallel over gloo, and one process of each. The second table relates the \
        products of a step, over its whole time, to what one core's product of 2048 × 384 × 1536 alone reaches with the \
        crate `gemm` on this machine."
            .into(),
        commands: pairs
            .iter()
            .flat_map(|pair| [&pair.brigade, &pair.torch].map(|side| side.line.clone()))
            .chain([PRODUCT.to_owned()])
            .collect(),
        tables: vec![
            Table::beside("PyTorch", pairs.iter().map(row).collect()),
            Table::beside("PyTorch", vec![shares]),
        ],
        notes,
    })
}
