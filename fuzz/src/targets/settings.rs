//! The TOML configuration, `--set`, and what is checked before a run.

use brigade::plan::ScheduleError;
use brigade::{Settings, merge_config, parse_defaults};

use crate::target::{Bound, Limit, Target, lines};

/// Worlds, by their number of ranks, and tokens of a sample, that settings are planned for.
const PLANNED: [(usize, usize); 3] = [(1, 1), (8, 1024), (2048, 131_072)];

/// What stands between the TOML and the values of `--set`, one a line.
const SETS: &str = "\n#--set\n";

/// A configuration file and `--set`.
///
/// A payload is either, or both. Counted as parsed: all of it fits the settings. Bound: all settings are there a few times
/// over, once for each `--set`; a name that none has is compared with each, and quoted in the message.
pub const SETTINGS: Target = Target {
    name: "settings",
    run: |input| {
        with_settings(input, |_| ());
    },
    parsed: |input| with_settings(input, |_| ()).is_some(),
    bound: Bound {
        peak: Limit { fixed: 80 << 10, per_byte: 256 },
        total: Limit { fixed: 512 << 10, per_byte: 4096 },
    },
    payloads,
    envelope: lines,
};

/// What is made of settings before a run, for worlds of several sizes.
///
/// Payloads are those of [`SETTINGS`]. Counted as parsed: one of both parts fits one of the worlds. Bound: the schedule of a pipeline
/// takes 512 bytes for each of its tasks, which are [`ScheduleError::MAX_TASKS`] at most.
pub const PLAN: Target = Target {
    name: "plan",
    run: |input| {
        with_settings(input, |settings| {
            planned(settings);
        });
    },
    parsed: |input| {
        let mut parsed = false;
        with_settings(input, |settings| parsed |= planned(settings));
        parsed
    },
    bound: Bound {
        peak: Limit { fixed: 512 * ScheduleError::MAX_TASKS as u64, per_byte: 256 },
        total: Limit { fixed: 2048 * ScheduleError::MAX_TASKS as u64, per_byte: 4096 },
    },
    payloads,
    envelope: lines,
};

fn payloads() -> Vec<Vec<u8>> {
    let whole = FILES.map(|text| text.as_bytes().to_vec());
    let sets =
        [SETS, "train.steps=7\noptimizer.learning_rate = 1\ncheckpoint.every=4\npipeline.stages=[3, 4]"];
    whole.into_iter().chain([sets.concat().into_bytes()]).collect()
}

/// Whether the settings fit one of the worlds.
fn planned(settings: &Settings) -> bool {
    let plans =
        PLANNED.map(|(world, tokens)| settings.plan(world, tokens).map_err(|error| error.to_string()));
    plans.iter().any(Result::is_ok)
}

/// Reads both parts, the second on top of the first where that makes sense, and gives what each makes to `then`; nothing
/// where one of them makes no sense.
fn with_settings(input: &[u8], mut then: impl FnMut(&Settings)) -> Option<()> {
    let text = String::from_utf8_lossy(input);
    let (file, sets) = text.split_once(SETS).unwrap_or((&text, ""));
    let read = parse_defaults::<Settings>(file).map_err(|error| error.to_string()).ok();
    read.iter().for_each(&mut then);
    if !sets.is_empty() {
        let sets: Vec<String> = sets.lines().map(str::to_owned).collect();
        let below = read.clone().unwrap_or_default();
        then(&merge_config(&below, &[], &sets).map_err(|error| error.to_string()).ok()?);
    }
    read.map(drop)
}

const FILES: [&str; 3] = [
    r#"[train]
steps = 1000
micro_batch_size = 2
global_batch_size = 16
gradient_clipping = 1.0
on_nonfinite = "skip"
[optimizer]
name = "adamw"
learning_rate = 1e-3
weight_decay = 0.01
[schedule]
name = "cosine"
warmup_steps = 50
"#,
    r#"[train]
micro_batch_size = 1
global_batch_size = 16
[mesh]
pp = 2
dp = 4
[zero]
stage = 3
reshard_after_forward = "never"
[pipeline]
schedule = "interleaved-1f1b"
chunks = 2
[comm]
transport = "tcp"
interfaces = ["eth0", "10.0.0.0/24"]
init_timeout_seconds = 30.5
host_timeout_seconds = 20.5
"#,
    r#"schedule = { name = "wsd", decay_steps = 10, min_ratio = 0.5 }
train = { steps = 100, seed = 0x7fff_ffff, micro_batch_size = 4, global_batch_size = 4096 }
mesh.pp = 4
pipeline.schedule = "1f1b"
"#,
];
