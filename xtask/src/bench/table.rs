//! The page that the figures are written to.

use std::fmt::Write;

/// One thing that was measured.
pub struct Section {
    pub title: &'static str,
    /// What was done, in a paragraph.
    pub text: String,
    /// The exact commands.
    pub commands: Vec<String>,
    pub tables: Vec<Table>,
    /// What went wrong on the way.
    pub notes: Vec<String>,
}

/// Brigade's figures, beside one other's or alone.
pub struct Table {
    /// Who the other is.
    pub other: Option<&'static str>,
    pub rows: Vec<Row>,
}

pub struct Row {
    pub measure: String,
    pub brigade: String,
    /// Shown only beside another.
    pub other: String,
    /// Brigade's figure over the other's.
    pub ratio: Option<f64>,
    pub goal: Option<Goal>,
}

/// What a figure should be, and whether it is; unknown where it could not be measured.
pub struct Goal {
    pub text: String,
    pub met: Option<bool>,
}

impl Goal {
    /// A ratio that should not be lower.
    pub fn at_least(ratio: Option<f64>, bound: f64) -> Option<Self> {
        Some(Self { text: format!("ratio ≥ {bound}"), met: ratio.map(|ratio| ratio >= bound) })
    }

    /// A ratio that should not be higher.
    pub fn at_most(ratio: Option<f64>, bound: f64) -> Option<Self> {
        Some(Self { text: format!("ratio ≤ {bound}"), met: ratio.map(|ratio| ratio <= bound) })
    }

    /// A figure that should be lower than `bound`, which is shown as `text`.
    pub fn below(figure: Option<f64>, bound: f64, text: &str) -> Option<Self> {
        Some(Self { text: format!("< {text}"), met: figure.map(|figure| figure < bound) })
    }
}

const DASH: &str = "–";

/// The whole page, as Markdown.
pub fn document(machine: &[(&str, String)], runs: u32, sections: &[Section]) -> String {
    let figures = match runs {
        1 => "Each figure is of one run".to_owned(),
        _ => format!("Each figure is the median of {runs} runs, with the lowest and the highest in brackets"),
    };
    let mut page = format!(
        "# Benchmarks\n\n\
         `cargo xtask bench` measures this page, with Brigade and its peers on the same machine in turns. {figures}. \
         Of a training run, the median step after the first {} counts. To repeat it, set up the peers as \
         [benches/peers/README.md](../benches/peers/README.md) says, leave the machine alone, and run:\n\n\
         ```\ncargo xtask bench --peer-python .venv-torch/bin/python\n```\n\n| | |\n|---|---|\n",
        super::lines::WARM_UP
    );
    for (name, value) in machine {
        let _ = writeln!(page, "| {name} | {value} |");
    }
    page += "\nPeers run with `OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu`; `brigade` is the release build.\n";
    for section in sections {
        let _ = write!(page, "\n## {}\n\n{}\n", section.title, section.text);
        for table in &section.tables {
            let _ = write!(page, "\n{}", table.markdown());
        }
        let _ = write!(page, "\n```\n{}\n```\n", section.commands.join("\n"));
        for note in &section.notes {
            let _ = write!(page, "\nNote: {note}\n");
        }
    }
    page
}

impl Table {
    fn markdown(&self) -> String {
        let mut text = match self.other {
            Some(other) => {
                format!("| | Brigade | {other} | ratio | goal | met |\n|---|---:|---:|---:|---:|---|\n")
            }
            None => "| | Brigade | goal | met |\n|---|---:|---:|---|\n".to_owned(),
        };
        for row in &self.rows {
            let ratio = row.ratio.map_or(DASH.to_owned(), |ratio| format!("{ratio:.3}"));
            let beside = self.other.map_or(String::new(), |_| format!("{} | {ratio} | ", row.other));
            let (goal, met) = match &row.goal {
                None => (DASH, DASH),
                Some(Goal { text, met: None }) => (text.as_str(), "not measured"),
                Some(Goal { text, met: Some(true) }) => (text.as_str(), "yes"),
                Some(Goal { text, met: Some(false) }) => (text.as_str(), "**no**"),
            };
            let _ = writeln!(text, "| {} | {} | {beside}{goal} | {met} |", row.measure, row.brigade);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measure: &str, ratio: Option<f64>, goal: Option<Goal>) -> Row {
        let other = if ratio.is_some() { "2" } else { "not installed" };
        Row { measure: measure.into(), brigade: "3".into(), other: other.into(), ratio, goal }
    }

    #[test]
    fn a_table_says_whether_each_goal_is_met() {
        let rows = vec![
            row("a", Some(1.5), Goal::at_least(Some(1.5), 1.25)),
            row("b", Some(1.2), Goal::at_least(Some(1.2), 1.25)),
            row("c", None, Goal::at_most(None, 1.5)),
            row("d", None, None),
        ];
        assert_eq!(
            Table { other: Some("PyTorch"), rows }.markdown(),
            "| | Brigade | PyTorch | ratio | goal | met |\n\
             |---|---:|---:|---:|---:|---|\n\
             | a | 3 | 2 | 1.500 | ratio ≥ 1.25 | yes |\n\
             | b | 3 | 2 | 1.200 | ratio ≥ 1.25 | **no** |\n\
             | c | 3 | not installed | – | ratio ≤ 1.5 | not measured |\n\
             | d | 3 | not installed | – | – | – |\n"
        );
    }

    #[test]
    fn bounds_are_exact() {
        let met = |goal: Option<Goal>| goal.unwrap().met;
        assert_eq!(met(Goal::at_least(Some(0.9599), 0.96)), Some(false));
        assert_eq!(met(Goal::at_most(Some(1.5), 1.5)), Some(true));
        assert_eq!(met(Goal::below(Some(3.0), 3.0, "3 s")), Some(false));
        assert_eq!(met(Goal::below(None, 3.0, "3 s")), None);
    }

    #[test]
    fn a_page_holds_machine_sections_commands_and_notes() {
        let section = Section {
            title: "Start",
            text: "How long.".into(),
            commands: vec!["brigade train".into()],
            tables: vec![Table { other: None, rows: vec![row("a", None, None)] }],
            notes: vec!["it rained.".into()],
        };
        let page = document(&[("CPU", "a fast one".into())], 3, &[section]);
        for part in [
            "# Benchmarks\n",
            "median of 3 runs",
            "| CPU | a fast one |\n",
            "\n## Start\n\nHow long.\n\n| | Brigade | goal | met |\n",
            "| a | 3 | – | – |\n",
            "\n```\nbrigade train\n```\n\nNote: it rained.\n",
        ] {
            assert!(page.contains(part), "{part:?} is not in:\n{page}");
        }
    }
}
