//! ZeRO on two ranks: against PyTorch's FSDP2, DeepSpeed's same stage, and data parallelism without it.

use anyhow::Result;

use crate::bench::machine::ByProcessor;
use crate::bench::page::{Section, Table};
use crate::bench::runner::{Kind, Runner, STEPS, Side, train};

pub const TITLE: &str = "Sharding";

/// Over PyTorch's FSDP2, and over DeepSpeed.
const FSDP_GOAL: ByProcessor = ByProcessor { amd: 2.1, other: 1.25 };
const DEEPSPEED_GOAL: ByProcessor = ByProcessor { amd: 2.2, other: 1.25 };
/// Over the own run without ZeRO.
const OWN_GOAL: f64 = 0.93;
/// Other ways to run stage 3: what they are called, and their flags.
const VARIANTS: [(&str, &str, &str); 2] = [
    (
        "zero-3-kept",
        "ZeRO-3, kept from forward to backward",
        "--zero 3 --set zero.reshard_after_forward=never",
    ),
    ("zero-3-recompute", "ZeRO-3, all activations computed again", "--zero 3 --recompute all"),
];

/// One stage of ZeRO on both sides that have it.
struct Stage {
    measure: String,
    brigade: Side,
    deepspeed: Side,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let mut whole = brigade("zero-0", "--zero 0");
    let mut stages = [1, 2, 3].map(|stage| Stage {
        measure: format!("ZeRO-{stage}"),
        brigade: brigade(&format!("zero-{stage}"), &format!("--zero {stage}")),
        deepspeed: Side::peer(
            Kind::DeepSpeed,
            format!("deepspeed-{stage}"),
            format!(
                "torchrun --standalone --nproc-per-node 2 benches/peers/deepspeed_bench.py --stage {stage} --steps {STEPS}"
            ),
        ),
    });
    let fsdp = format!(
        "torchrun --standalone --nproc-per-node 2 benches/peers/torch_bench.py --mode fsdp --steps {STEPS}"
    );
    let mut fsdp = Side::peer(Kind::Torch, "fsdp", fsdp);
    let mut variants = VARIANTS.map(|(name, measure, flags)| (measure, brigade(name, flags)));

    let mut notes = Vec::new();
    for run in 1..=runner.runs {
        whole.run(runner, run, &mut notes)?;
        for stage in &mut stages {
            stage.brigade.run(runner, run, &mut notes)?;
            stage.deepspeed.run(runner, run, &mut notes)?;
        }
        fsdp.run(runner, run, &mut notes)?;
        for (_, variant) in &mut variants {
            variant.run(runner, run, &mut notes)?;
        }
    }

    let beside_fsdp =
        |stage: &Stage| stage.brigade.beside(&fsdp, runner, &stage.measure, Some(FSDP_GOAL.here()));
    let beside_deepspeed = |stage: &Stage| {
        stage.brigade.beside(&stage.deepspeed, runner, &stage.measure, Some(DEEPSPEED_GOAL.here()))
    };
    let beside_whole = |stage: &Stage| stage.brigade.beside(&whole, runner, &stage.measure, Some(OWN_GOAL));
    let beside_whole = stages
        .iter()
        .map(beside_whole)
        .chain(variants.iter().map(|(measure, variant)| variant.beside(&whole, runner, *measure, None)));
    let tables = vec![
        Table::beside("PyTorch FSDP2", stages.iter().map(beside_fsdp).collect()),
        Table::beside("DeepSpeed, same stage", stages.iter().map(beside_deepspeed).collect()),
        Table::beside("without ZeRO", beside_whole.collect()),
    ];
    let sides = std::iter::once(&whole)
        .chain(stages.iter().flat_map(|stage| [&stage.brigade, &stage.deepspeed]))
        .chain([&fsdp])
        .chain(variants.iter().map(|(_, variant)| variant));
    Ok(Section {
        title: TITLE,
        text: "The same training on two ranks of one thread, with ZeRO: against FSDP2, which shards each block like stage \
               3, against DeepSpeed's corresponding stage, both over gloo, and against Brigade's own data parallelism. The \
               last two rows are stage 3 with blocks that stay gathered from forward to backward, and with all activations \
               recomputed."
            .into(),
        commands: sides.map(|side| side.line.clone()).collect(),
        tables,
        notes,
    })
}

fn brigade(name: &str, flags: &str) -> Side {
    Side::brigade(name, format!("{} {flags}", train(name, [1, 2], 8, 4, STEPS)))
}
