//! The outcomes of the checks.

use std::fmt::Write;

/// The outcome of one check.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// After this many seconds.
    Passed(f64),
    /// After this many seconds.
    Failed(f64),
    /// Why it cannot run here.
    Skipped(&'static str),
    /// An earlier check failed.
    NotRun,
}

/// A line for each.
pub fn table(outcomes: &[(&str, Outcome)]) -> String {
    let mut table = String::new();
    for (name, outcome) in outcomes {
        let _ = match outcome {
            Outcome::Passed(seconds) => writeln!(table, "{name:<24} passed  {seconds:>8.1} s"),
            Outcome::Failed(seconds) => writeln!(table, "{name:<24} FAILED  {seconds:>8.1} s"),
            Outcome::Skipped(why) => writeln!(table, "{name:<24} skipped: {why}"),
            Outcome::NotRun => writeln!(table, "{name:<24} not run"),
        };
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_outcomes_apart() {
        let outcomes = [
            ("format", Outcome::Passed(0.5)),
            ("wgpu", Outcome::Skipped("no adapter")),
            ("clippy", Outcome::Failed(81.25)),
            ("tests", Outcome::NotRun),
        ];
        assert_eq!(
            table(&outcomes),
            "format                   passed       0.5 s\n\
             wgpu                     skipped: no adapter\n\
             clippy                   FAILED      81.2 s\n\
             tests                    not run\n"
        );
    }
}
