//! From the start of the binary to the first step, and how long a step waits for data.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit, steady};
use crate::bench::runner::{Runner, STEPS, json_lines, metrics, results, train};

pub const TITLE: &str = "Start, and waiting for data";

/// How often the metrics are polled, and so the error of the time.
const POLL: Duration = Duration::from_millis(5);

pub fn measure(runner: &Runner) -> Result<Section> {
    let line = train("start", [1, 2], 8, 4, STEPS);
    let [mut first_line, mut before_it, mut waits] = <[Samples; 3]>::default();
    for run in 1..=runner.runs {
        let seconds = first_record(runner, "start", &line)?;
        runner.progress(run, "first step", Unit::Seconds.show(seconds));
        let steps = metrics(&results("start"))?;
        let step =
            json_lines::numbers(&steps, "step_seconds").first().copied().context("a step without a time")?;
        first_line.0.push(seconds);
        before_it.0.push(seconds - step);
        waits.0.push(data_wait(&steps).context("too few steps")?);
    }
    let row = |measure, samples: &Samples, unit, goal| Row::of(measure, [samples.cell(unit, "")], goal);
    let rows = vec![
        row(
            "until the first step is recorded",
            &first_line,
            Unit::Seconds,
            Goal::below(first_line.median(), 3.0, "3 s"),
        ),
        row("of which before the step began", &before_it, Unit::Seconds, None),
        row(
            "waiting for data, share of a step",
            &waits,
            Unit::Percent,
            Goal::below(waits.median(), 1.0, "1%"),
        ),
    ];
    Ok(Section {
        title: TITLE,
        text: "From the start of the binary to the first line of `metrics.jsonl`, which is written when the first step is \
        over. The corpus was tokenized before."
            .into(),
        commands: vec![line],
        tables: vec![Table::of(&["Brigade"], rows)],
        notes: Vec::new(),
    })
}

/// Seconds from the start of a run until it has recorded a step. Waits for its end, too.
pub(super) fn first_record(runner: &Runner, name: &str, line: &str) -> Result<f64> {
    let path = results(name).join("metrics.jsonl");
    let mut child = runner.start_training(name, line)?;
    let seconds = loop {
        let ended = child.ended()?.is_some();
        if has_a_line(&path) {
            break child.started.elapsed().as_secs_f64();
        }
        if ended {
            child.finish()?.succeeded()?;
            bail!("`{line}` recorded no step");
        }
        std::thread::sleep(POLL);
    };
    child.finish()?.succeeded()?;
    Ok(seconds)
}

fn has_a_line(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes.contains(&b'\n'))
}

/// The median share of a step that waits for data, in percent.
fn data_wait(steps: &[Value]) -> Option<f64> {
    let shares: Vec<f64> = steps
        .iter()
        .filter_map(|step| Some(100.0 * step["data_wait_seconds"].as_f64()? / step["step_seconds"].as_f64()?))
        .collect();
    steady(&shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_waiting_is_of_steps_after_the_warm_up() {
        let step = |wait: f64| format!("{{\"step\":1,\"step_seconds\":0.5,\"data_wait_seconds\":{wait}}}\n");
        let text: String = [0.4, 0.1, 0.001, 0.002, 0.003].map(step).concat();
        assert_eq!(data_wait(&json_lines::objects(&text)), Some(0.4));
        assert_eq!(data_wait(&json_lines::objects(&step(0.1))), None);
    }

    #[test]
    fn half_a_line_is_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        assert!(!has_a_line(&path));
        std::fs::write(&path, "{\"step\":").unwrap();
        assert!(!has_a_line(&path));
        std::fs::write(&path, "{\"step\":1}\n").unwrap();
        assert!(has_a_line(&path));
    }
}
