//! Tokens per second: two ranks, and one process.

use anyhow::Result;

use crate::bench::machine::ByProcessor;
use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit};
use crate::bench::runner::{Kind, Runner, STEPS, Side, json_lines, train};

pub const TITLE: &str = "Tokens per second";

/// Over PyTorch's: one process, and data parallelism on two ranks.
const SINGLE_GOAL: ByProcessor = ByProcessor { amd: 2.0, other: 1.1 };
const RANKS_GOAL: ByProcessor = ByProcessor { amd: 2.1, other: 1.25 };

/// In bf16, over PyTorch's under `torch.autocast`.
const GOAL_BF16: f64 = 1.0;

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
    /// Run eagerly, and compiled.
    torch: [Side; 2],
    goal: Option<f64>,
}

impl Pair {
    fn new(measure: &'static str, name: &str, brigade: String, torch: &str, goal: Option<f64>) -> Self {
        let peer = |way: &str, flag: &str| {
            Side::peer(Kind::Torch, format!("torch-{name}{way}"), format!("{torch} --steps {STEPS}{flag}"))
        };
        let torch = [peer("", ""), peer("-compiled", " --compile")];
        Self { measure, brigade: Side::brigade(name, brigade), torch, goal }
    }

    /// PyTorch at its better.
    fn best(&self) -> &Side {
        let [eager, compiled] = &self.torch;
        if compiled.rates.median() > eager.rates.median() { compiled } else { eager }
    }

    fn sides(&mut self) -> impl Iterator<Item = &mut Side> {
        std::iter::once(&mut self.brigade).chain(&mut self.torch)
    }
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let (ddp, single) = (
        "torchrun --standalone --nproc-per-node 2 benches/peers/torch_bench.py --mode ddp",
        "python benches/peers/torch_bench.py --mode single --threads 1",
    );
    let in_bf16 = |name| format!("{} --set compute.dtype=bf16", train(name, [1, 2], 8, 4, STEPS));
    let bf16 = format!("{ddp} --dtype bf16");
    let mut pairs = [
        Pair::new(
            "1 process of one thread",
            "single",
            train("single", [1, 1], 8, 8, STEPS),
            single,
            Some(SINGLE_GOAL.here()),
        ),
        Pair::new(
            "2 ranks of one thread",
            "ranks",
            train("ranks", [1, 2], 8, 4, STEPS),
            ddp,
            Some(RANKS_GOAL.here()),
        ),
        Pair::new("2 ranks, bf16", "ranks-bf16", in_bf16("ranks-bf16"), &bf16, Some(GOAL_BF16)),
    ];
    let (mut notes, mut products) = (Vec::new(), Samples::default());
    for run in 1..=runner.runs {
        let end = runner.start("product", PRODUCT)?.finish()?;
        end.succeeded()?;
        products.0.extend(json_lines::numbers(&json_lines::objects(&end.stdout), "gflops"));
        for pair in &mut pairs {
            for side in pair.sides() {
                side.run(runner, run, &mut notes)?;
            }
        }
    }
    let share = |side: &Side| {
        let rate = products.median().map_or(f64::NAN, |gflops| gflops * 1e9);
        Samples(side.rates.0.iter().map(|tokens| 100.0 * tokens * FLOPS_PER_TOKEN / rate).collect())
    };
    let [single, ..] = &pairs;
    let (own, other) = (share(&single.brigade), share(single.best()));
    let cells = [own.cell(Unit::Percent, ""), other.cell(Unit::Percent, runner.absent(Kind::Torch))];
    let goal = Goal { text: format!("≥ {SHARE}%"), met: own.median().map(|share| share >= SHARE) };
    let shares = Row::beside("1 process of one thread", cells, own.over(&other), Some(goal));
    let row = |pair: &Pair| pair.brigade.beside(pair.best(), runner, pair.measure, pair.goal);
    Ok(Section {
        title: TITLE,
        text: "Training the GPT of `configs/gpt-13m.toml`, which has 14 million parameters, with 8 sequences of 256 tokens per step, \
        against PyTorch's DistributedDataParallel over gloo (under `torch.autocast` in bf16), and one process of each. PyTorch runs eagerly and under \
        `torch.compile`; its better figure counts. The second table relates the \
        products of a step, over its whole time, to what one core's product of 2048 × 384 × 1536 alone reaches with the \
        crate `gemm` on this machine."
            .into(),
        commands: pairs
            .iter()
            .flat_map(|pair| [&pair.brigade, &pair.torch[0], &pair.torch[1]].map(|side| side.line.clone()))
            .chain([PRODUCT.to_owned()])
            .collect(),
        tables: vec![
            Table::beside("PyTorch", pairs.iter().map(row).collect()),
            Table::beside("PyTorch", vec![shares]),
        ],
        notes,
    })
}
