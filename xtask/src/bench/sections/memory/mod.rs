//! What a rank holds under each stage of ZeRO.

pub(crate) mod size;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit};
use crate::bench::runner::{Runner, train};

pub const TITLE: &str = "Memory";

/// Data-parallel ranks.
const RANKS: [usize; 3] = [1, 2, 4];
/// The first step allocates what lives as long as the run, the second what each step frees and allocates again.
const STEPS: usize = 3;
/// The columns, and the fields of `metrics.jsonl` that they show.
const COLUMNS: [(&str, &str); 5] = [
    ("peak resident", "peak_rss_bytes"),
    ("parameters", "parameter_bytes_peak"),
    ("gradients", "gradient_bytes_peak"),
    ("optimizer", "optimizer_bytes_peak"),
    ("activations", "activation_bytes_peak"),
];

/// Runs of one stage of ZeRO on this many ranks.
struct Case {
    ranks: usize,
    stage: usize,
    name: String,
    line: String,
    /// In the order of [`COLUMNS`].
    figures: [Samples; COLUMNS.len()],
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let mut cases: Vec<_> =
        RANKS.iter().flat_map(|ranks| (0..=3).map(|stage| Case::new(*ranks, stage))).collect();
    for run in 1..=runner.runs {
        for case in &mut cases {
            let steps = runner.steps(&case.name, &case.line)?;
            case.add(steps.last().context("a run without a step")?)?;
            runner.progress(run, &case.name, case.figures[0].cell(Unit::Mebibytes, ""));
        }
    }
    let columns = COLUMNS.map(|(column, _)| column);
    Ok(Section {
        title: TITLE,
        text: "For the rank that has most of each: its peak resident memory, as counted by the system, and the peak bytes \
        of its tensors, as counted by Brigade. Each rank runs two micro-batches of one sequence per step. The resident \
        memory also holds the program, the needs of operations and autodiff graphs, and buffers of the transport."
            .into(),
        commands: cases.iter().map(|case| case.line.clone()).collect(),
        tables: vec![Table::of(&columns, rows(&cases))],
        notes: Vec::new(),
    })
}

/// On several ranks each stage should take less than the one before.
fn rows(cases: &[Case]) -> Vec<Row> {
    let row = |(index, case): (usize, &Case)| {
        let before = index.checked_sub(1).map(|before| &cases[before]);
        let before = before.filter(|before| case.ranks > 1 && before.ranks == case.ranks);
        let goal = before.and_then(|before| {
            let bound = before.figures[0].median()?;
            Goal::below(case.figures[0].median(), bound, &format!("ZeRO-{}", before.stage))
        });
        let measure = match case.ranks {
            1 => format!("1 rank, ZeRO-{}", case.stage),
            ranks => format!("{ranks} ranks, ZeRO-{}", case.stage),
        };
        Row::of(measure, case.figures.each_ref().map(|samples| samples.cell(Unit::Mebibytes, "")), goal)
    };
    cases.iter().enumerate().map(row).collect()
}

impl Case {
    fn new(ranks: usize, stage: usize) -> Self {
        let name = format!("memory-{ranks}-{stage}");
        let line = format!("{} --zero {stage}", train(&name, [1, ranks], 2 * ranks, 1, STEPS));
        Self { ranks, stage, name, line, figures: Default::default() }
    }

    /// Adds the last step of a run, which knows the peaks of all.
    fn add(&mut self, step: &Value) -> Result<()> {
        for (samples, (_, field)) in self.figures.iter_mut().zip(COLUMNS) {
            let bytes =
                step[field].as_f64().with_context(|| format!("`{}` recorded no {field}", self.line))?;
            samples.0.push(bytes / f64::from(1 << 20));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_stage_is_held_against_the_one_before_on_as_many_ranks() {
        let step = |mebibytes: u64| {
            let bytes = mebibytes << 20;
            json!({"peak_rss_bytes": 2 * bytes, "parameter_bytes_peak": bytes, "gradient_bytes_peak": bytes,
                   "optimizer_bytes_peak": bytes, "activation_bytes_peak": 0})
        };
        let mut cases =
            [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)].map(|(ranks, stage)| Case::new(ranks, stage));
        for (case, mebibytes) in cases.iter_mut().zip([9, 9, 8, 5, 6]) {
            case.add(&step(mebibytes)).unwrap();
        }
        let rows = rows(&cases);
        let goals: Vec<_> =
            rows.iter().map(|row| row.goal.as_ref().map(|goal| (goal.text.as_str(), goal.met))).collect();
        assert_eq!(
            goals,
            [None, None, None, Some(("< ZeRO-0", Some(true))), Some(("< ZeRO-1", Some(false)))]
        );
        assert_eq!(rows[3].cells, ["10.0 MiB", "5.0 MiB", "5.0 MiB", "5.0 MiB", "0.0 MiB"]);
        let error = cases[0].add(&json!({"peak_rss_bytes": 1})).unwrap_err().to_string();
        assert!(error.ends_with("recorded no parameter_bytes_peak"), "{error}");
    }
}
