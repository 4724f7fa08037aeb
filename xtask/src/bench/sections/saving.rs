//! What checkpoints cost: the stall of a step, the speed beside them, and how fast they are written.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit, WARM_UP, steady};
use crate::bench::runner::{Runner, json_lines, train};

pub const TITLE: &str = "Checkpoints";

/// Each run saves three times.
const STEPS: usize = 12;
const EVERY: usize = 4;

pub fn measure(runner: &Runner) -> Result<Section> {
    let plain = train("not-saving", [1, 2], 8, 4, STEPS);
    let saving = train("saving", [1, 2], 8, 4, STEPS)
        .replace("--checkpoint-every 0", &format!("--checkpoint-every {EVERY} --keep 1"));
    let write = "cargo bench -p brigade-checkpoint --bench write";
    let [mut stalls, mut speed, mut plain_speed, mut memory, mut plain_memory, mut ours, mut dd] =
        <[Samples; 7]>::default();
    for run in 1..=runner.runs {
        let steps = runner.steps("saving", &saving)?;
        let stall = stall(&steps).context("the run saved nothing")?;
        runner.progress(run, "stall", Unit::Percent.show(stall));
        stalls.0.push(stall);
        speed.0.extend(tokens_per_second(&steps));
        memory.0.extend(peak(&steps));
        let steps = runner.steps("not-saving", &plain)?;
        plain_speed.0.extend(tokens_per_second(&steps));
        plain_memory.0.extend(peak(&steps));
        let end = runner.start("write", write)?.finish()?;
        end.succeeded()?;
        let figures =
            json_lines::objects(&end.stdout).pop().context("the bench `write` printed no figures")?;
        ours.0.extend(figures["save_mib_per_second"].as_f64());
        dd.0.extend(figures["dd_mib_per_second"].as_f64());
        runner.progress(run, "written beside dd", ours.over(&dd).unwrap_or(f64::NAN));
    }
    let beside = |measure: &str, ours: &Samples, theirs: &Samples, unit, goal| {
        Row::beside(measure, [ours.cell(unit, ""), theirs.cell(unit, "")], ours.over(theirs), goal)
    };
    let ratio = ours.over(&dd);
    let tables = vec![
        Table::of(
            &["Brigade"],
            vec![Row::of(
                "stall of a step that saves, share of a step",
                [stalls.cell(Unit::Percent, "")],
                Goal::below(stalls.median(), 10.0, "10%"),
            )],
        ),
        Table::beside(
            "without checkpoints",
            vec![
                beside("tokens/s over all steps", &speed, &plain_speed, Unit::TokensPerSecond, None),
                beside("peak resident memory", &memory, &plain_memory, Unit::Mebibytes, None),
            ],
        ),
        Table::beside(
            "dd conv=fsync",
            vec![beside("256 MiB, MiB/s", &ours, &dd, Unit::MebibytesPerSecond, Goal::at_least(ratio, 0.8))],
        ),
    ];
    Ok(Section {
        title: TITLE,
        text: format!(
            "`gpt-13m` on two ranks, {STEPS} steps with a checkpoint after every {EVERY}th: how long training stalls for \
             one (the longest stall of a run), and the cost of writing during training. Then a checkpoint of one rank, \
             from the first byte until it is visible and on the disk, in turns with `dd`."
        ),
        commands: vec![saving, plain, write.into()],
        tables,
        notes: Vec::new(),
    })
}

/// The longest stall of a run, in percent of its median step.
fn stall(steps: &[Value]) -> Option<f64> {
    let step = steady(&json_lines::numbers(steps, "step_seconds"))?;
    let stalls = steps.iter().filter_map(|step| step["checkpoint"]["stall_seconds"].as_f64());
    stalls
        .fold(None, |longest: Option<f64>, stall| Some(longest.map_or(stall, |longest| longest.max(stall))))
        .map(|stall| 100.0 * stall / step)
}

/// Of all steps after the warm-up together.
fn tokens_per_second(steps: &[Value]) -> Option<f64> {
    let steady = steps.get(WARM_UP..)?;
    let sum = |field: &str| json_lines::numbers(steady, field).iter().sum::<f64>();
    Some(sum("tokens") / sum("step_seconds"))
}

fn peak(steps: &[Value]) -> Option<f64> {
    Some(steps.last()?["peak_rss_bytes"].as_f64()? / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stall_counts_against_a_usual_step() {
        let text = "{\"step_seconds\": 0.5, \"tokens\": 8, \"peak_rss_bytes\": 1048576}\n".repeat(5)
            + "{\"step_seconds\": 0.5, \"tokens\": 8, \"peak_rss_bytes\": 2097152, \"checkpoint\": {\"stall_seconds\": 0.01}}\n\
               {\"step_seconds\": 0.5, \"tokens\": 8, \"peak_rss_bytes\": 2097152, \"checkpoint\": {\"stall_seconds\": 0.02}}\n";
        let steps = json_lines::objects(&text);
        assert_eq!(stall(&steps), Some(4.0));
        assert_eq!((tokens_per_second(&steps), peak(&steps)), (Some(16.0), Some(2.0)));
        assert_eq!(stall(&steps[..5]), None);
    }
}
