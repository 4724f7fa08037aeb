//! Losses by the number of the step, which are the same on every network.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::methods::{HOOKS, METHODS, Method, PLAIN, RANKS, peer_line};
use crate::bench::page::{Goal, Row, Section, Table};
use crate::bench::runner::{Kind, Runner, metrics, results};

pub const TITLE: &str = "Effect on the loss";

/// Steps of a run whose loss counts.
pub const STEPS: usize = 400;
/// How far a validation loss may be above plain training's, in hundredths; of all methods but those that are known to need longer.
const POINTS: f64 = 2.0;
const SLOW_LEARNERS: [&str; 2] = ["topk", "onebit"];
/// Steps from one validation to the next: on the slowest network, the time that counts is that of few steps.
const VALIDATE_EVERY: usize = 10;
/// The run whose losses are measured.
const CURVE: &str = "curve";

/// The losses of a run.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    /// Steps and their losses.
    training: Vec<(u64, f64)>,
    validation: Vec<(f64, f64)>,
}

impl Curve {
    fn of(records: &[Value]) -> Self {
        let number = |record: &Value, name: &str| Some((record["step"].as_u64()?, record[name].as_f64()?));
        let validation = records.iter().filter_map(|record| number(record, "validation_loss"));
        Self {
            training: records.iter().filter_map(|record| number(record, "loss")).collect(),
            validation: validation.map(|(step, loss)| (step as f64, loss)).collect(),
        }
    }

    /// Checks that the same training lost as much in each step that this run has.
    pub fn check(&self, records: &[Value], name: &str) -> Result<()> {
        for (step, loss) in Self::of(records).training {
            let Some((_, own)) = self.training.iter().find(|(own, _)| *own == step) else { continue };
            ensure!(
                own.to_bits() == loss.to_bits(),
                "{name} has the loss {loss} in step {step}, and without a network {own}"
            );
        }
        Ok(())
    }

    /// The validation loss after this many steps, by a line between the two validations around them; none before the first.
    pub fn at(&self, step: f64) -> Option<f64> {
        let after = self.validation.iter().find(|(at, _)| *at >= step);
        let before = self.validation.iter().rev().find(|(at, _)| *at <= step);
        match (before, after) {
            (Some((from, a)), Some((to, b))) if to > from => Some(a + (b - a) * (step - from) / (to - from)),
            (Some((_, loss)), _) => Some(*loss),
            (None, _) => None,
        }
    }

    fn last(&self) -> Option<f64> {
        Some(self.validation.last()?.1)
    }
}

/// The curves of all methods and hooks.
pub struct Curves {
    /// One for each seed, by the places of [`METHODS`]; those that are exact have the first one's.
    ours: Vec<Vec<Curve>>,
    /// Of one seed, by the places of [`HOOKS`].
    theirs: Vec<Curve>,
}

impl Curves {
    /// Of the first seed.
    pub fn ours(&self, method: usize) -> Option<&Curve> {
        self.ours[method].first()
    }

    pub fn theirs(&self, hook: usize) -> &Curve {
        &self.theirs[hook]
    }
}

/// Trains all methods with this many seeds, and PyTorch's hooks with one, where `tokens` says where its text is.
pub fn measure(
    runner: &Runner,
    seeds: u32,
    tokens: impl Fn() -> Result<String>,
    notes: &mut Vec<String>,
) -> Result<Curves> {
    let mut ours: Vec<Vec<Curve>> = vec![Vec::new(); METHODS.len()];
    for seed in 0..seeds {
        for (place, method) in METHODS.into_iter().enumerate() {
            let curve = if method.is_exact && method.name != PLAIN {
                ours[0].last().cloned().unwrap_or_default()
            } else {
                let lines = lines(method, seed);
                let curve = Curve::of(&run(runner, &lines)?);
                let loss = curve.last();
                let loss = loss.with_context(|| format!("`{}` recorded no validation", lines.join("; ")))?;
                eprintln!("seed {seed}: {}: validation loss {loss:.4}", method.name);
                curve
            };
            ours[place].push(curve);
        }
    }
    let records = match runner.has(Kind::Torch) {
        true => runner.peer(Kind::Torch, "torch-curve", &theirs_line(&tokens()?), notes)?,
        false => Vec::new(),
    };
    let theirs = HOOKS.map(|hook| {
        let own: Vec<Value> = records.iter().filter(|record| record["hook"] == hook.name).cloned().collect();
        Curve::of(&own)
    });
    Ok(Curves { ours, theirs: theirs.to_vec() })
}

/// Runs these one after the other, each but the first from where the one before ended; gives the steps of all.
fn run(runner: &Runner, lines: &[String]) -> Result<Vec<Value>> {
    for (number, line) in lines.iter().enumerate() {
        let running =
            if number == 0 { runner.start_training(CURVE, line)? } else { runner.start(CURVE, line)? };
        running.finish()?.succeeded()?;
    }
    metrics(&results(CURVE))
}

/// The run of a method without a network; two if it begins with steps of plain training.
fn lines(method: Method, seed: u32) -> Vec<String> {
    let every = if method.period == 1 { VALIDATE_EVERY } else { method.period };
    let validated = |method: Method, steps: usize| {
        let line = method.line(CURVE, RANKS, steps, seed.into());
        let line = line.replacen("--nproc-per-node", "--standalone --nproc-per-node", 1);
        let flags = format!("--set train.validate_every={every} --set train.validation_samples=64 --quiet");
        line.replacen("--quiet", &flags, 1)
    };
    let last = validated(method, STEPS);
    match method.synchronous_steps {
        0 => vec![last],
        steps => {
            let saved = format!("--checkpoint-every {steps}");
            let first = validated(METHODS[0], steps).replacen("--checkpoint-every 0", &saved, 1);
            vec![first, format!("{last} --resume auto")]
        }
    }
}

fn theirs_line(tokens: &str) -> String {
    let line = peer_line(&HOOKS.map(|hook| hook.name).join(","), tokens, RANKS, STEPS);
    let line = line.replacen("torchrun", "torchrun --standalone", 1);
    format!("{line} --validate-every {VALIDATE_EVERY}")
}

/// What the page says of them.
pub fn section(runner: &Runner, curves: &Curves, seeds: u32, notes: Vec<String>) -> Section {
    let plain: Vec<f64> = curves.ours[0].iter().filter_map(Curve::last).collect();
    let mut rows = Vec::new();
    for (method, curves) in METHODS.iter().zip(&curves.ours) {
        if method.is_exact && method.name != PLAIN {
            continue;
        }
        let losses: Vec<f64> = curves.iter().filter_map(Curve::last).collect();
        let over = 100.0 * (mean(&losses) / mean(&plain) - 1.0);
        let judged = method.name != PLAIN && !SLOW_LEARNERS.contains(&method.name);
        let goal = judged.then(|| Goal { text: format!("≤ {POINTS}% above"), met: Some(over <= POINTS) });
        rows.push(Row::of(method.label(), cells(&losses, &format!("{over:+.1}%")), goal));
    }
    for (hook, curve) in HOOKS.iter().zip(&curves.theirs) {
        let losses: Vec<f64> = curve.last().into_iter().collect();
        let cells = if losses.is_empty() {
            vec![runner.absent(Kind::Torch).to_owned(); 4]
        } else {
            cells(&losses, "–")
        };
        rows.push(Row::of(format!("{}, one seed", hook.label), cells, None));
    }
    Section {
        title: TITLE,
        text: format!(
            "`gpt-tiny` for {STEPS} steps of {} sequences on {RANKS} ranks of this machine without a network, with a \
             constant learning rate after 40 steps: the validation loss with {seeds} seeds. The runs on networks had the \
             same losses in each step, to the bit; this is checked, but not of `async-server`, nor of codes on hosts of several ranks. PyTorch trains the same model with the same optimizer \
             on other sequences of the same text, from other initial weights.",
            super::methods::TOKENS / 128
        ),
        commands: METHODS
            .into_iter()
            .filter(|method| method.name == "bf16" || method.synchronous_steps > 0)
            .flat_map(|method| lines(method, 0))
            .chain([theirs_line("runs/bench/tokens/KEY")])
            .collect(),
        tables: vec![Table::of(&["mean", "lowest", "highest", "vs synchronous"], rows)],
        notes,
    }
}

fn cells(losses: &[f64], over: &str) -> Vec<String> {
    let (low, high) = losses
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), loss| (low.min(*loss), high.max(*loss)));
    let number = |loss: f64| format!("{loss:.4}");
    vec![number(mean(losses)), number(low), number(high), over.to_owned()]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn records() -> Vec<Value> {
        vec![
            json!({ "step": 1, "loss": 9.0 }),
            json!({ "step": 50, "loss": 7.0, "validation_loss": 7.5 }),
            json!({ "step": 100, "loss": 6.0, "validation_loss": 6.5 }),
        ]
    }

    #[test]
    fn validations_are_joined_by_lines() {
        let curve = Curve::of(&records());
        assert_eq!(
            [10.0, 50.0, 75.0, 100.0, 500.0].map(|step| curve.at(step)),
            [None, Some(7.5), Some(7.0), Some(6.5), Some(6.5)]
        );
        assert_eq!((curve.last(), Curve::default().at(1.0)), (Some(6.5), None));
    }

    #[test]
    fn another_loss_in_a_step_is_an_error() {
        let curve = Curve::of(&records());
        assert!(curve.check(&records()[..2], "a").is_ok());
        assert!(curve.check(&[json!({ "step": 7, "loss": 1.0 })], "a").is_ok());
        let error = curve.check(&[json!({ "step": 50, "loss": 7.000_000_1 })], "a").unwrap_err().to_string();
        assert_eq!(error, "a has the loss 7.0000001 in step 50, and without a network 7");
    }

    #[test]
    fn runs_without_a_network_are_validated() {
        let lines = |name: &str| lines(METHODS.into_iter().find(|method| method.name == name).unwrap(), 2);
        let [line] = &lines("diloco")[..] else { panic!("one run") };
        assert!(line.contains("--standalone --nproc-per-node 4") && line.contains("--seed 2"), "{line}");
        assert!(line.contains("train.validate_every=50 ") && line.contains("--strategy diloco"), "{line}");
        let [line] = &lines("int8")[..] else { panic!("one run") };
        assert!(line.contains("--set train.validate_every=10 --set train.validation_samples=64 --quiet"));
    }

    #[test]
    fn a_synchronous_start_is_a_run_of_its_own() {
        let method = METHODS.into_iter().find(|method| method.name == "post-local-sgd").unwrap();
        let [first, last] = &lines(method, 0)[..] else { panic!("two runs") };
        assert!(first.contains("--steps 100 ") && !first.contains("--strategy"), "{first}");
        assert!(first.contains("--checkpoint-every 100 ") && first.contains("validate_every=50 "), "{first}");
        assert!(last.contains("--steps 400 ") && last.contains("--strategy local-sgd"), "{last}");
        assert!(last.ends_with("--out runs/bench/curve --resume auto"), "{last}");
    }
}
