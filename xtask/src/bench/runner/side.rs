//! One side of a comparison: a training run of Brigade's or a peer's, again and again.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::peer::Kind;
use super::{Runner, json_lines};
use crate::bench::page::{Goal, Row, Samples, Unit, steady};

pub struct Side {
    name: String,
    pub line: String,
    /// None is Brigade.
    peer: Option<Kind>,
    /// Tokens per second.
    pub rates: Samples,
    /// Tokens of what the run counts.
    tokens: usize,
}

impl Side {
    /// A run of [`super::train`], under its name.
    pub fn brigade(name: impl Into<String>, line: String) -> Self {
        Self { name: name.into(), line, peer: None, rates: Samples::default(), tokens: 1 }
    }

    pub fn peer(kind: Kind, name: impl Into<String>, line: String) -> Self {
        Self { name: name.into(), line, peer: Some(kind), rates: Samples::default(), tokens: 1 }
    }

    /// The same run, which counts texts of this many tokens.
    pub fn in_texts_of(self, tokens: usize) -> Self {
        Self { tokens, ..self }
    }

    /// Runs once more, and gives the steps that were recorded. A peer that fails leaves a note.
    pub fn run(&mut self, runner: &Runner, run: u32, notes: &mut Vec<String>) -> Result<Vec<Value>> {
        let steps = match self.peer {
            None => runner.steps(&self.name, &self.line)?,
            Some(kind) => runner.peer(kind, &self.name, &self.line, notes)?,
        };
        let rate = steady(&json_lines::numbers(&steps, "tokens_per_second"));
        ensure!(
            rate.is_some() || self.peer.is_some(),
            "`{}` recorded {} steps; more are needed",
            self.line,
            steps.len()
        );
        if let Some(rate) = rate.map(|rate| rate * self.tokens as f64) {
            runner.progress(run, &self.name, Unit::TokensPerSecond.show(rate));
            self.rates.0.push(rate);
        }
        Ok(steps)
    }

    /// This side's rate over another's, and the least that it should be.
    pub fn beside(
        &self,
        other: &Self,
        runner: &Runner,
        measure: impl Into<String>,
        goal: Option<f64>,
    ) -> Row {
        let ratio = self.rates.over(&other.rates);
        let cells = [self, other].map(|side| side.cell(runner));
        Row::beside(measure, cells, ratio, goal.and_then(|goal| Goal::at_least(ratio, goal)))
    }

    fn cell(&self, runner: &Runner) -> String {
        self.rates.cell(Unit::TokensPerSecond, self.peer.map_or("", |kind| runner.absent(kind)))
    }
}
