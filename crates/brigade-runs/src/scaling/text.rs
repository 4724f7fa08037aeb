//! The scaling report as text.

use std::fmt;

use brigade_report::duration;

use super::compared::{Point, Scaling, ScalingKind};
use super::diagnosis::of_few_steps;
use super::laws::{CommunicationModel, amdahl_speed_up, gustafson_speed_up};
use super::profile::Profile;

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ScalingKind::Strong => "strong scaling: every run has the same batch",
            ScalingKind::Weak => "weak scaling: the batch grows with the ranks",
            ScalingKind::Mixed => {
                "neither strong nor weak scaling: the batch is not the same, and does not grow with the ranks, so no law is fitted"
            }
        };
        writeln!(f, "{kind}\n")?;
        let width = self.points.iter().map(|point| point.name.chars().count()).max().unwrap_or(0).max(3);
        let rate = format!("{}/s", self.unit);
        writeln!(f, "{:<width$}  ranks  {rate:>12}  {:>12}  speed-up  efficiency", "run", "step")?;
        for Point { name, profile, speed_up, efficiency, .. } in &self.points {
            let (ranks, step) = (profile.ranks, duration(profile.step));
            let percent = 100.0 * efficiency;
            writeln!(
                f,
                "{name:<width$}  {ranks:>5}  {:>12.0}  {step:>12}  {speed_up:>8.2}  {percent:>9.1}%",
                profile.rate()
            )?;
        }
        for Point { name, note, .. } in &self.points {
            if let Some(note) = note {
                writeln!(f, "{name}: {note}")?;
            }
        }
        writeln!(f)?;
        self.write_laws(f)?;
        let Some(explained) = self.points.get(self.explained) else { return Ok(()) };
        let (largest, of) = match self.points.len() - self.explained {
            1 => ("the largest run".to_owned(), String::new()),
            _ => {
                let it = format!("{}, the fastest of the largest runs", explained.name);
                (format!("{it},"), format!(" in {it}"))
            }
        };
        if !self.gap.is_empty() {
            writeln!(f, "\nThe gap of {} to linear scaling:", explained.name)?;
            for part in &self.gap {
                writeln!(f, "  {:>3.0}%  {}", part.percent, part.name)?;
            }
        }
        if let Some(why) = of_few_steps(&explained.name, &explained.profile) {
            return writeln!(f, "\n{why}.");
        }
        let note = explained.profile.not_told_apart();
        match (self.findings.is_empty(), note) {
            (true, None) => {
                writeln!(f, "\nNo single change would make {largest} more than a few percent faster.")?;
            }
            (true, Some(_)) => {}
            (false, _) => {
                writeln!(f, "\nWhat to change first{of}:")?;
                for (index, finding) in self.findings.iter().enumerate() {
                    writeln!(f, "{:>3}. {}", index + 1, finding.sentence)?;
                }
            }
        }
        note.map_or(Ok(()), |note| writeln!(f, "\n{}.", sentence(note)))
    }
}

impl Scaling {
    fn write_laws(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, last)) = self.points.first().zip(self.points.get(self.explained)) else {
            return Ok(());
        };
        let (name, speed_up): (_, fn(f64, f64) -> f64) = match self.kind {
            ScalingKind::Strong => ("Amdahl's law", amdahl_speed_up),
            ScalingKind::Weak | ScalingKind::Mixed => ("Gustafson's law", gustafson_speed_up),
        };
        if let Some(law) = self.law {
            let twice = 2 * last.profile.ranks;
            let n = twice as f64 / first.profile.ranks as f64;
            // A law has one parameter, which two runs always fit.
            let fit = match self.points.len() {
                0..=2 => String::new(),
                _ => format!(" (within {:.0}% of what was measured)", 100.0 * law.error),
            };
            writeln!(
                f,
                "{name}: {:.1}% of the work does not scale{fit}; on {twice} ranks {:.0}% efficiency",
                100.0 * law.serial,
                100.0 * speed_up(law.serial, n) / n
            )?;
        }
        if let Some(CommunicationModel { latency, bandwidth }) = self.communication {
            let bytes = match bandwidth.is_finite() {
                true => format!("{:.3} GB/s per rank", bandwidth / 1e9),
                false => "bytes cost nothing measurable".to_owned(),
            };
            writeln!(f, "Exposed communication: {} per message, {bytes}", duration(latency))?;
        }
        let Profile { step, communication, hidden, waits_in_compute, .. } = &last.profile;
        let told = hidden.filter(|hidden| hidden + communication > 0.0 && !waits_in_compute);
        if let Some(hidden) = told {
            writeln!(
                f,
                "Communication of {}: {} of a step of {} is exposed, {} hidden behind computing",
                last.name,
                duration(*communication),
                duration(*step),
                duration(hidden)
            )?;
        }
        Ok(())
    }
}

/// With a capital letter, as a sentence begins.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
