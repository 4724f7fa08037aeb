//! Pipelines: two stages against PyTorch's, how long stages are idle, and what the interpreter costs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bench::machine::ByProcessor;
use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit, steady};
use crate::bench::runner::{Kind, Runner, STEPS, Side, json_lines, train};

pub const TITLE: &str = "Pipeline";

/// Over PyTorch's.
const GOAL: ByProcessor = ByProcessor { amd: 2.0, other: 1.25 };
/// How far a bubble may be from its formula, in points of a hundred.
const POINTS: f64 = 5.0;
/// The most of a step that may go to bookkeeping, in percent.
const BOOKKEEPING: f64 = 2.0;
pub(super) const STAGES: usize = 2;
const MICRO_BATCHES: usize = 4;
/// Of stages that take equally long: (p - 1)/(m + p - 1), in percent.
const BUBBLE: f64 = 100.0 * (STAGES - 1) as f64 / (MICRO_BATCHES + STAGES - 1) as f64;
/// Ways to split the 8 blocks of gpt-13m (embedding, 6 layers, head).
const SPLITS: [&str; 2] = ["4,4", "5,3"];
/// A vocabulary that makes the head so cheap that halves of the layers are halves of the work.
const BYTES: usize = 257;
/// Stages as threads, with the heap of a rank that `brigade` starts: a single arena, of huge pages.
const THREADS: &str = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1 cargo bench -p brigade --bench pipeline --";

/// One model and one way to split it into two stages.
struct Split {
    measure: String,
    /// As processes.
    trained: Side,
    bubble: Samples,
    /// The same as threads.
    threads: String,
    /// Forward and backward of each stage there, in seconds.
    compute: [Samples; STAGES],
}

/// A deep narrow model.
struct Deep {
    stages: usize,
    line: String,
    /// In percent of a step: the stage that has most of it, and means over the stages.
    bookkeeping: Samples,
    computing: Samples,
    waiting: Samples,
    /// The longest of a stage.
    seconds: Samples,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let default = default_split(runner)?;
    let splits = SPLITS.iter().map(|split| (*split).to_owned()).chain([default.clone()]);
    let splits: BTreeSet<String> = splits.collect();
    let mut measured: Vec<_> =
        splits.iter().map(|split| Split::of_gpt_13m(split, *split == default)).collect();
    let mut equal = Split::of_equal_work();
    let torch = format!(
        "torchrun --standalone --nproc-per-node {STAGES} benches/peers/torch_bench.py --mode pp \
         --micro-batches {MICRO_BATCHES} --steps {STEPS}"
    );
    let mut torch = Side::peer(Kind::Torch, "torch-pipeline", torch);
    let mut deep = [4, 2].map(Deep::new);

    let mut notes = Vec::new();
    for run in 1..=runner.runs {
        for split in &mut measured {
            split.train(runner, run, &mut notes)?;
        }
        torch.run(runner, run, &mut notes)?;
        equal.train(runner, run, &mut notes)?;
        for split in measured.iter_mut().chain([&mut equal]) {
            split.time_stages(runner, run)?;
        }
        for deep in &mut deep {
            deep.time(runner, run)?;
        }
    }

    let rate = |split: &Split| split.trained.rates.median().unwrap_or(0.0);
    measured.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let speed = measured.iter().enumerate().map(|(place, split)| {
        let goal = (place == 0).then(|| GOAL.here());
        split.trained.beside(&torch, runner, &split.measure, goal)
    });
    let bubbles = measured.iter().enumerate().map(|(place, split)| split.bubble_row(place == 0));
    let bubbles = bubbles.chain([equal.bubble_row(true)]).collect();
    let tables = vec![
        Table::beside("PyTorch", speed.collect()),
        Table::of(
            &[
                "bubble",
                "(p - 1)/(m + p - 1)",
                "stage 0 computes",
                "stage 1 computes",
                "the longer over the shorter",
            ],
            bubbles,
        ),
        Table::of(
            &["bookkeeping", "forward, backward, optimizer", "waiting", "a step"],
            deep.iter().map(Deep::row).collect(),
        ),
    ];
    let mut commands = Vec::new();
    for split in &measured {
        commands.extend([split.trained.line.clone(), split.threads.clone()]);
    }
    commands.extend([torch.line, equal.trained.line, equal.threads]);
    commands.extend(deep.map(|deep| deep.line));
    Ok(Section {
        title: TITLE,
        text: format!(
            "First, the training above on {STAGES} stages of one thread with {MICRO_BATCHES} micro-batches of 2 sequences \
             and 1F1B, against PyTorch's `Schedule1F1B` over gloo with 3 layers on each stage. The goal is for the fastest \
             way to split the 8 blocks (embedding, 6 layers, head).\n\n\
             Second, the bubble of the same runs: `bubble_seconds` (mean over the ranks) over `step_seconds` without \
             `optimizer_seconds` and `data_wait_seconds`; that is the time that ranks are idle between the start of a step \
             and the end of the last backward. The formula assumes stages that take equally long. No split of these 8 \
             blocks is equal, because the head costs less than a layer but is not free; what each stage computes (forward \
             and backward of a step) is measured with stages as threads of one process. The last row is the same model \
             with a vocabulary of {BYTES}, whose head costs next to nothing, so that its halves are equal.\n\n\
             Third, what a step costs besides its computation: 48 blocks (46 layers of width 64) on 4 stages as threads, 8 \
             micro-batches of 2 sequences of 64 tokens. Bookkeeping is the rest of a step without forward, backward, \
             optimizer and waiting, in the stage that has most of it; the other shares are means over the stages. If there \
             are fewer cores than stages (here are {}), a stage that loses its core may do so in any of these parts, and \
             the time until it gets one again counts there; so the same is also measured on 2 stages.",
            crate::bench::machine::cores()
        ),
        commands,
        tables,
        notes,
    })
}

/// The split that is used where none is configured.
fn default_split(runner: &Runner) -> Result<String> {
    let line = format!("{THREADS} {} --steps 1", shape(4096));
    let found = threads(runner, &line)?;
    let counts = found.first().and_then(|line| line["stages"].as_array());
    let counts = counts.with_context(|| format!("`{line}` named no stages"))?;
    Ok(counts.iter().map(Value::to_string).collect::<Vec<_>>().join(","))
}

/// Flags of `benches/pipeline.rs` for gpt-13m.
fn shape(vocabulary: usize) -> String {
    format!(
        "--pp {STAGES} --micro-batches {MICRO_BATCHES} --rows 2 --layers 6 --width 384 --heads 6 \
         --vocabulary {vocabulary} --sequence-length 256"
    )
}

/// The steps of each stage of a run of `benches/pipeline.rs`.
fn threads(runner: &Runner, line: &str) -> Result<Vec<Value>> {
    let end = runner.start("pipeline-threads", line)?.finish()?;
    end.succeeded()?;
    Ok(json_lines::objects(&end.stdout))
}

impl Split {
    fn of_gpt_13m(split: &str, is_default: bool) -> Self {
        let measure = match is_default {
            true => format!("{} blocks, the default", split.replace(',', " and ")),
            false => format!("{} blocks", split.replace(',', " and ")),
        };
        Self::new(measure, &format!("pipeline-{}", split.replace(',', "-")), split, 4096, "")
    }

    fn of_equal_work() -> Self {
        let flags = format!(" --set model.vocabulary={BYTES} --set data.tokenizer=bytes");
        Self::new("stages of equal work".into(), "pipeline-equal", "4,4", BYTES, &flags)
    }

    fn new(measure: String, name: &str, split: &str, vocabulary: usize, flags: &str) -> Self {
        let line = train(name, [STAGES, 1], 8, 2, STEPS);
        Self {
            measure,
            trained: Side::brigade(name, format!("{line} --set pipeline.stages=[{split}]{flags}")),
            bubble: Samples::default(),
            threads: format!("{THREADS} {} --stages {split} --steps {STEPS}", shape(vocabulary)),
            compute: Default::default(),
        }
    }

    fn train(&mut self, runner: &Runner, run: u32, notes: &mut Vec<String>) -> Result<()> {
        let steps = self.trained.run(runner, run, notes)?;
        let bubble = steady(&steps.iter().filter_map(bubble).collect::<Vec<_>>());
        self.bubble.0.push(bubble.with_context(|| format!("`{}` recorded no bubble", self.trained.line))?);
        Ok(())
    }

    fn time_stages(&mut self, runner: &Runner, run: u32) -> Result<()> {
        let found = threads(runner, &self.threads)?;
        let seconds = by_stage(&found, computing);
        for (stage, samples) in self.compute.iter_mut().enumerate() {
            let seconds = seconds.get(stage).copied().flatten();
            samples.0.push(seconds.with_context(|| format!("`{}` timed no stage {stage}", self.threads))?);
        }
        let seconds = self.compute.each_ref().map(|samples| samples.0.last().map(|s| Unit::Seconds.show(*s)));
        let seconds: Vec<_> = seconds.into_iter().flatten().collect();
        runner.progress(run, &format!("{} compute", self.measure), seconds.join(", "));
        Ok(())
    }

    fn bubble_row(&self, has_a_goal: bool) -> Row {
        let difference = self.bubble.median().map(|bubble| bubble - BUBBLE);
        let [first, second] = &self.compute;
        let ratio =
            first.over(second).map_or(String::new(), |ratio| format!("{:.2}", ratio.max(1.0 / ratio)));
        let cells = [
            self.bubble.cell(Unit::Percent, ""),
            Unit::Percent.show(BUBBLE),
            first.cell(Unit::Seconds, ""),
            second.cell(Unit::Seconds, ""),
            ratio,
        ];
        let goal = if has_a_goal { Goal::within(difference, POINTS) } else { None };
        Row::of(&self.measure, cells, goal)
    }
}

impl Deep {
    fn new(stages: usize) -> Self {
        let line = format!(
            "{THREADS} --pp {stages} --micro-batches 8 --rows 2 --layers 46 --width 64 --heads 4 --vocabulary 256 \
             --sequence-length 64 --steps 20"
        );
        let [bookkeeping, computing, waiting, seconds] = Default::default();
        Self { stages, line, bookkeeping, computing, waiting, seconds }
    }

    fn time(&mut self, runner: &Runner, run: u32) -> Result<()> {
        let found = threads(runner, &self.line)?;
        let of = |part: fn(&Value) -> Option<f64>| -> Result<Vec<f64>> {
            let figures: Option<Vec<f64>> = by_stage(&found, part).into_iter().collect();
            figures
                .filter(|figures| !figures.is_empty())
                .with_context(|| format!("`{}` left out steps", self.line))
        };
        let most = |figures: Vec<f64>| figures.into_iter().fold(f64::NEG_INFINITY, f64::max);
        let mean = |figures: Vec<f64>| figures.iter().sum::<f64>() / figures.len() as f64;
        let bookkeeping = most(of(|step| share(step["bookkeeping"].as_f64()?, step))?);
        runner.progress(
            run,
            &format!("bookkeeping on {} stages", self.stages),
            Unit::Percent.show(bookkeeping),
        );
        let computing = mean(of(|step| share(computing(step)? + step["optimizer"].as_f64()?, step))?);
        let waiting = mean(of(|step| share(step["wait"].as_f64()?, step))?);
        let seconds = most(of(|step| step["seconds"].as_f64())?);
        self.bookkeeping.0.push(bookkeeping);
        self.computing.0.push(computing);
        self.waiting.0.push(waiting);
        self.seconds.0.push(seconds);
        Ok(())
    }

    fn row(&self) -> Row {
        let shares = [&self.bookkeeping, &self.computing, &self.waiting];
        let mut cells: Vec<_> = shares.iter().map(|share| share.cell(Unit::Percent, "")).collect();
        cells.push(self.seconds.cell(Unit::Seconds, ""));
        let goal = Goal::below(self.bookkeeping.median(), BOOKKEEPING, &format!("{BOOKKEEPING}%"));
        Row::of(format!("{} stages", self.stages), cells, goal.filter(|_| self.stages == 4))
    }
}

/// The bubble of a recorded step, in percent of its time without optimizer and data.
pub(super) fn bubble(step: &Value) -> Option<f64> {
    let seconds = |field: &str| step[field].as_f64();
    let passes = seconds("step_seconds")? - seconds("optimizer_seconds")? - seconds("data_wait_seconds")?;
    Some(100.0 * seconds("bubble_seconds")? / passes)
}

/// Forward and backward of a step of a stage.
fn computing(step: &Value) -> Option<f64> {
    Some(step["forward"].as_f64()? + step["backward"].as_f64()?)
}

/// In percent of a stage's step.
fn share(part: f64, step: &Value) -> Option<f64> {
    Some(100.0 * part / step["seconds"].as_f64()?)
}

/// The median of each stage's steps after the warm-up; none for a stage of too few.
fn by_stage(steps: &[Value], part: impl Fn(&Value) -> Option<f64>) -> Vec<Option<f64>> {
    let mut stages: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for step in steps {
        if let (Some(rank), Some(figure)) = (step["rank"].as_u64(), part(step)) {
            stages.entry(rank).or_default().push(figure);
        }
    }
    stages.values().map(|figures| steady(figures)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bubble_is_a_share_of_the_passes() {
        let step = json!({"step_seconds": 1.2, "optimizer_seconds": 0.19, "data_wait_seconds": 0.01, "bubble_seconds": 0.25});
        assert!((bubble(&step).unwrap() - 25.0).abs() < 1e-9);
        assert_eq!((bubble(&json!({"step_seconds": 1.2})), BUBBLE), (None, 20.0));
    }

    #[test]
    fn stages_are_told_apart() {
        let step = |rank: u64, forward: f64| json!({"rank": rank, "forward": forward, "backward": 2.0, "seconds": 8.0});
        let steps: Vec<_> = [(0, 9.0), (0, 9.0), (0, 1.0), (1, 9.0), (1, 9.0), (1, 2.0)]
            .map(|(rank, s)| step(rank, s))
            .into();
        assert_eq!(by_stage(&steps, computing), [Some(3.0), Some(4.0)]);
        assert_eq!(by_stage(&steps, |step| share(computing(step)?, step)), [Some(37.5), Some(50.0)]);
        assert_eq!(by_stage(&steps[..2], computing), [None]);
    }

    #[test]
    fn only_the_equal_halves_have_another_vocabulary() {
        let (split, equal) = (Split::of_gpt_13m("5,3", true), Split::of_equal_work());
        assert_eq!(split.measure, "5 and 3 blocks, the default");
        assert!(
            split
                .trained
                .line
                .contains("--nproc-per-node 2 --pp 2 --dp 1 --global-batch-size 8 --micro-batch-size 2")
        );
        assert!(
            split.trained.line.ends_with("/pipeline-5-3 --set pipeline.stages=[5,3]"),
            "{}",
            split.trained.line
        );
        assert!(split.threads.contains("--vocabulary 4096 ") && equal.threads.contains("--vocabulary 257 "));
        assert!(equal.trained.line.ends_with("--set model.vocabulary=257 --set data.tokenizer=bytes"));
    }
}
