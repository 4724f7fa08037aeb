//! The page that the figures are written to.

mod samples;

use std::fmt::Write;

pub use samples::{Samples, Unit, WARM_UP, steady};

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

/// Figures that belong together.
pub struct Table {
    /// What the rows have in common.
    name: String,
    /// What the cells of each row are.
    columns: Vec<&'static str>,
    rows: Vec<Row>,
}

pub struct Row {
    measure: String,
    /// As many as the table has columns.
    pub cells: Vec<String>,
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

    /// A share that should be no further from another one than `points` of a hundred.
    pub fn within(difference: Option<f64>, points: f64) -> Option<Self> {
        Some(Self {
            text: format!("within {points} points"),
            met: difference.map(|difference| difference.abs() <= points),
        })
    }
}

const DASH: &str = "–";

/// Everything on the page.
pub struct Page<'a> {
    pub title: &'static str,
    /// Which part of a training run is measured.
    pub counted: &'static str,
    pub machine: &'a [(&'static str, String)],
    pub runs: u32,
    pub sections: &'a [Section],
    /// If only some sections were measured: the option that chose these, and the titles of the others.
    pub only: Option<(String, Vec<&'static str>)>,
}

impl Page<'_> {
    /// As Markdown.
    pub fn markdown(&self) -> String {
        let figures = match self.runs {
            1 => "Each figure is of one run, and another run may differ by several percent: a goal that is met or missed by less is \
                  not decided"
                .to_owned(),
            runs => format!(
                "Each figure is the median of {runs} runs, with the lowest and the highest in brackets"
            ),
        };
        let only = self.only.as_ref().map_or(String::new(), |(option, _)| format!("{option} "));
        let mut page = format!(
            "# {}\n\n\
             `cargo xtask bench` measures this page, alternating between Brigade and its peers on the same machine. \
             {figures}. {} Sections were measured at different times; compare figures within one table only. To repeat it, set up the peers as described in `benches/peers/README.md`, leave the machine idle, and run:\n\n\
             ```sh\ncargo xtask bench {only}--peer-python .venv-torch/bin/python\n```\n\n| | |\n|---|---|\n",
            self.title, self.counted
        );
        for (name, value) in self.machine {
            let _ = writeln!(page, "| {name} | {value} |");
        }
        page += "\nPeers run with `OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu`; `brigade` is the release build.\n";
        if let Some((_, absent)) = &self.only
            && !absent.is_empty()
        {
            let _ = write!(page, "\nNot measured this time: {}.\n", absent.join("; "));
        }
        for section in self.sections {
            let _ = write!(page, "\n## {}\n\n{}\n", section.title, section.text);
            for table in &section.tables {
                let _ = write!(page, "\n{}", table.markdown());
            }
            let _ = write!(page, "\n```sh\n{}\n```\n", section.commands.join("\n"));
            for note in &section.notes {
                let _ = write!(page, "\nNote: {note}\n");
            }
        }
        page
    }
}

impl Row {
    /// Brigade's figure beside another one, and its ratio to it.
    pub fn beside(
        measure: impl Into<String>,
        [brigade, other]: [String; 2],
        ratio: Option<f64>,
        goal: Option<Goal>,
    ) -> Self {
        let ratio = ratio.map_or(DASH.to_owned(), |ratio| format!("{ratio:.3}"));
        Self { measure: measure.into(), cells: vec![brigade, other, ratio], goal }
    }

    /// Figures that are compared with nothing.
    pub fn of(measure: impl Into<String>, cells: impl Into<Vec<String>>, goal: Option<Goal>) -> Self {
        Self { measure: measure.into(), cells: cells.into(), goal }
    }
}

impl Table {
    /// Rows that were made by [`Row::beside`].
    pub fn beside(other: &'static str, rows: Vec<Row>) -> Self {
        Self::of(&["Brigade", other, "ratio"], rows)
    }

    /// Rows that were made by [`Row::of`].
    pub fn of(columns: &[&'static str], rows: Vec<Row>) -> Self {
        Self { name: String::new(), columns: columns.to_vec(), rows }
    }

    /// With a name, in the head of its first column.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    fn markdown(&self) -> String {
        let alignment = "---:|".repeat(self.columns.len() + 1);
        let name = if self.name.is_empty() { String::new() } else { format!(" {}", self.name) };
        let mut text =
            format!("|{name} | {} | goal | met |\n|---|{alignment}---|\n", self.columns.join(" | "));
        for row in &self.rows {
            let (goal, met) = match &row.goal {
                None => (DASH, DASH),
                Some(Goal { text, met: None }) => (text.as_str(), "not measured"),
                Some(Goal { text, met: Some(true) }) => (text.as_str(), "yes"),
                Some(Goal { text, met: Some(false) }) => (text.as_str(), "**no**"),
            };
            let _ = writeln!(text, "| {} | {} | {goal} | {met} |", row.measure, row.cells.join(" | "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measure: &str, ratio: Option<f64>, goal: Option<Goal>) -> Row {
        let other = if ratio.is_some() { "2" } else { "not installed" };
        Row::beside(measure, ["3".into(), other.into()], ratio, goal)
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
            Table::beside("PyTorch", rows).markdown(),
            "| | Brigade | PyTorch | ratio | goal | met |\n\
             |---|---:|---:|---:|---:|---|\n\
             | a | 3 | 2 | 1.500 | ratio ≥ 1.25 | yes |\n\
             | b | 3 | 2 | 1.200 | ratio ≥ 1.25 | **no** |\n\
             | c | 3 | not installed | – | ratio ≤ 1.5 | not measured |\n\
             | d | 3 | not installed | – | – | – |\n"
        );
        assert!(Table::beside("PyTorch", vec![]).named("far").markdown().starts_with("| far | Brigade |"));
    }

    #[test]
    fn bounds_are_exact() {
        let met = |goal: Option<Goal>| goal.unwrap().met;
        assert_eq!(met(Goal::at_least(Some(0.9599), 0.96)), Some(false));
        assert_eq!(met(Goal::at_most(Some(1.5), 1.5)), Some(true));
        assert_eq!(met(Goal::below(Some(3.0), 3.0, "3 s")), Some(false));
        assert_eq!(met(Goal::below(None, 3.0, "3 s")), None);
        assert_eq!([-5.0, 5.1].map(|points| met(Goal::within(Some(points), 5.0))), [Some(true), Some(false)]);
    }

    fn section() -> Section {
        Section {
            title: "Start",
            text: "How long.".into(),
            commands: vec!["brigade train".into()],
            tables: vec![Table::of(&["first", "second"], vec![Row::of("a", ["3".into(), "4".into()], None)])],
            notes: vec!["it rained.".into()],
        }
    }

    #[test]
    fn a_page_holds_machine_sections_commands_and_notes() {
        let machine = [("CPU", "a fast one".to_owned())];
        let page = Page {
            title: "Benchmarks",
            counted: "All counts.",
            machine: &machine,
            runs: 3,
            sections: &[section()],
            only: None,
        }
        .markdown();
        for part in [
            "# Benchmarks\n",
            "median of 3 runs, with the lowest and the highest in brackets. All counts. Sections were measured at",
            "cargo xtask bench --peer-python",
            "| CPU | a fast one |\n",
            "\n## Start\n\nHow long.\n\n| | first | second | goal | met |\n|---|---:|---:|---:|---|\n",
            "| a | 3 | 4 | – | – |\n",
            "\n```sh\nbrigade train\n```\n\nNote: it rained.\n",
        ] {
            assert!(page.contains(part), "{part:?} is not in:\n{page}");
        }
        assert!(!page.contains("Not measured this time"));
    }

    #[test]
    fn a_page_says_what_it_leaves_out() {
        let only = Some(("--only start".to_owned(), vec!["Memory", "All-reduce"]));
        let page = Page {
            title: "Benchmarks",
            counted: "All counts.",
            machine: &[],
            runs: 1,
            sections: &[section()],
            only,
        }
        .markdown();
        assert!(page.contains("cargo xtask bench --only start --peer-python"), "{page}");
        assert!(page.contains("\nNot measured this time: Memory; All-reduce.\n"), "{page}");
    }
}
