//! What `brigade plan` predicts of runs on this machine, beside what they take.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bench::page::{Goal, Row, Section, Table, Unit};
use crate::bench::runner::{FOLDER, Runner, STEPS, Side, results};

pub const TITLE: &str = "Plans";

/// By how many hundredths a prediction may be off.
const POINTS: f64 = 15.0;

/// Where the machine's description is kept for the time of the runs.
const CONFIG: &str = "planned-config";

/// Ranks, and the flags that leave one configuration to the planner.
const CASES: [(&str, usize, &str); 12] = [
    ("1 rank", 1, "--micro-batch-size 4"),
    ("1 rank, 4 micro-batches", 1, "--micro-batch-size 2"),
    ("2 ranks", 2, "--pp 1 --zero 0 --micro-batch-size 4"),
    ("2 ranks, ZeRO-1", 2, "--pp 1 --zero 1 --micro-batch-size 4"),
    ("2 ranks, ZeRO-2", 2, "--pp 1 --zero 2 --micro-batch-size 4"),
    ("2 ranks, ZeRO-3", 2, "--pp 1 --zero 3 --micro-batch-size 4"),
    ("2 ranks, ZeRO-3, 2 micro-batches", 2, "--pp 1 --zero 3 --micro-batch-size 2"),
    ("2 stages, 1f1b", 2, "--pp 2 --schedule 1f1b --micro-batch-size 1"),
    ("2 stages, zb-h1", 2, "--pp 2 --schedule zb-h1 --micro-batch-size 1"),
    ("4 ranks", 4, "--pp 1 --zero 0 --micro-batch-size 2"),
    ("2 stages of 2 ranks, ZeRO-2", 4, "--pp 2 --zero 2 --schedule 1f1b --micro-batch-size 1"),
    ("4 stages, 1f1b", 4, "--pp 4 --schedule 1f1b --micro-batch-size 1"),
];

/// A prediction, and the run that it is of.
struct Case {
    measure: &'static str,
    /// Tokens per second.
    predicted: f64,
    plan: String,
    run: Side,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let config = format!("XDG_CONFIG_HOME={FOLDER}/{CONFIG}");
    let calibrate = format!("{config} brigade plan --calibrate");
    runner.start("calibrate", &calibrate)?.finish()?.succeeded()?;
    let machine = results(CONFIG).join("brigade/cluster.toml");
    let machine =
        std::fs::read_to_string(&machine).with_context(|| format!("cannot read {}", machine.display()))?;
    let mut cases = CASES
        .into_iter()
        .enumerate()
        .map(|(number, case)| Case::new(runner, &machine, number, case))
        .collect::<Result<Vec<_>>>()?;
    let mut notes = Vec::new();
    for run in 1..=runner.runs {
        for case in &mut cases {
            case.run.run(runner, run, &mut notes)?;
        }
    }
    let commands = cases.iter().flat_map(|case| [case.plan.clone(), case.run.line.clone()]);
    Ok(Section {
        title: TITLE,
        text: "Tokens per second that `brigade plan` predicts after `--calibrate`, compared with what its own commands \
        reach: GPTs of 14 million parameters, 8 sequences of 256 tokens per step. Ranks share the cores if there are more \
        ranks than cores."
            .into(),
        commands: std::iter::once(calibrate).chain(commands).collect(),
        tables: vec![Table::of(&["predicted", "measured", "ratio"], cases.iter().map(Case::row).collect())],
        notes,
    })
}

impl Case {
    fn new(
        runner: &Runner,
        machine: &str,
        number: usize,
        (measure, ranks, flags): (&'static str, usize, &str),
    ) -> Result<Self> {
        let file = format!("{FOLDER}/{CONFIG}/{ranks}.toml");
        let path = results(CONFIG).join(format!("{ranks}.toml"));
        std::fs::write(&path, of_ranks(machine, ranks))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let plan = format!(
            "brigade plan --model configs/gpt-13m.toml --cluster {file} --global-batch-size 8 --sequence-length 256 --dtype fp32 \
             --recompute none --no-offload --top 1 --json {flags}"
        );
        let end = runner.start(&format!("plan-{number}"), &plan)?.finish()?;
        let answer: Value =
            serde_json::from_str(&end.stdout).with_context(|| format!("`{plan}` printed no JSON"))?;
        let predicted = answer["plan"]["best"][0]["tokens_per_second"].as_f64();
        let predicted = predicted.with_context(|| format!("`{plan}` predicts nothing"))?;
        let line = answer["commands"][0].as_str().with_context(|| format!("`{plan}` names no command"))?;
        let name = format!("planned-{number}");
        let line = format!(
            "{line} --standalone --steps {STEPS} --set train.validation_samples=8 --checkpoint-every 0 --quiet --out {FOLDER}/{name}"
        );
        Ok(Self { measure, predicted, plan, run: Side::brigade(name, line) })
    }

    fn row(&self) -> Row {
        let measured = self.run.rates.median();
        let ratio = measured.map(|measured| self.predicted / measured);
        let cells = [
            Unit::TokensPerSecond.show(self.predicted),
            self.run.rates.cell(Unit::TokensPerSecond, ""),
            ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")),
        ];
        Row::of(self.measure, cells, Goal::within(ratio.map(|ratio| 100.0 * (ratio - 1.0)), POINTS))
    }
}

/// The description of the machine for this many ranks.
fn of_ranks(machine: &str, ranks: usize) -> String {
    let line = |line: &str| match line.split_once(" = ") {
        Some((key @ "devices_per_node", _)) => format!("{key} = {ranks}\n"),
        _ => format!("{line}\n"),
    };
    machine.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_as_many_ranks_as_it_is_given() {
        let machine = "kind = \"CPU\"\ndevices_per_node = 2\nhost_cores = 2\n";
        assert_eq!(of_ranks(machine, 4), "kind = \"CPU\"\ndevices_per_node = 4\nhost_cores = 2\n");
    }
}
