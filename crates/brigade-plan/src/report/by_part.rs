//! Memory and time of several configurations, each part in a column.

use super::seconds;
use crate::columns::{aligned, bytes};
use crate::search::PlanEvaluation;

/// A smaller share of a step is not shown.
const SHOWN: f64 = 0.0005;

/// What a rank of the fullest stage holds.
pub(super) fn memory(evaluations: &[PlanEvaluation]) -> String {
    let parts = |evaluation: &PlanEvaluation| -> Vec<(&'static str, u64)> {
        let memory = &evaluation.memory;
        memory.parts().into_iter().chain([("on the host", memory.host)]).collect()
    };
    table(evaluations, parts, |_, size| (size > 0).then(|| bytes(size)))
}

/// Where a step's time goes.
pub(super) fn time(evaluations: &[PlanEvaluation]) -> String {
    table(
        evaluations,
        |evaluation| evaluation.parts.parts().to_vec(),
        |evaluation, part| {
            let share = part / evaluation.seconds;
            (share >= SHOWN).then(|| format!("{} ({:.1}%)", seconds(part), 100.0 * share))
        },
    )
}

/// A row for each, with the columns in which something is shown.
fn table<T: Copy>(
    evaluations: &[PlanEvaluation],
    parts: impl Fn(&PlanEvaluation) -> Vec<(&'static str, T)>,
    cell: impl Fn(&PlanEvaluation, T) -> Option<String>,
) -> String {
    let cells: Vec<Vec<(&str, Option<String>)>> = evaluations
        .iter()
        .map(|evaluation| {
            parts(evaluation).into_iter().map(|(name, part)| (name, cell(evaluation, part))).collect()
        })
        .collect();
    let is_shown = |column: &usize| cells.iter().any(|row| row[*column].1.is_some());
    let columns: Vec<usize> = (0..cells.first().map_or(0, Vec::len)).filter(is_shown).collect();
    let heading = cells.first().into_iter().map(|row| {
        let names = columns.iter().map(|column| row[*column].0.to_owned());
        std::iter::once(String::new()).chain(names).collect()
    });
    let rows = cells.iter().enumerate().map(|(at, row)| {
        let shown = columns.iter().map(|column| row[*column].1.clone().unwrap_or_else(|| "-".into()));
        std::iter::once((at + 1).to_string()).chain(shown).collect()
    });
    aligned(heading.chain(rows).collect()).join("\n")
}
