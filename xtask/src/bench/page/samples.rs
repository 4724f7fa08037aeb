//! Figures of several runs.

/// Steps at the start of a run that do not count.
pub const WARM_UP: usize = 2;

/// The median of the steps after the warm-up; none if there are no more.
pub fn steady(steps: &[f64]) -> Option<f64> {
    median(steps.get(WARM_UP..)?)
}

/// The median; of an even number of values the mean of the middle two. None if there is no value, or one is not finite.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    let median = if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) };
    sorted.iter().all(|value| value.is_finite()).then_some(median)
}

/// One figure per run.
#[derive(Debug, Clone, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    pub fn median(&self) -> Option<f64> {
        median(&self.0)
    }

    /// This median over another's.
    pub fn over(&self, other: &Self) -> Option<f64> {
        let ratio = self.median()? / other.median()?;
        ratio.is_finite().then_some(ratio)
    }

    /// A cell of a table: the median, and the range where there are several; `missing` where there is none.
    pub fn cell(&self, unit: Unit, missing: &str) -> String {
        let Some(median) = self.median() else { return missing.to_owned() };
        let low = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self.0.len() {
            1 => unit.show(median),
            _ => format!("{} ({} to {})", unit.show(median), unit.number(low), unit.number(high)),
        }
    }
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    TokensPerSecond,
    GigabytesPerSecond,
    Microseconds,
    Seconds,
    Percent,
    Mebibytes,
    MebibytesPerSecond,
}

impl Unit {
    /// A figure with its unit.
    pub fn show(self, value: f64) -> String {
        let unit = match self {
            Self::TokensPerSecond => " tokens/s",
            Self::GigabytesPerSecond => " GB/s",
            Self::Microseconds => " µs",
            Self::Seconds => " s",
            Self::Percent => "%",
            Self::Mebibytes => " MiB",
            Self::MebibytesPerSecond => " MiB/s",
        };
        self.number(value) + unit
    }

    fn number(self, value: f64) -> String {
        match self {
            Self::TokensPerSecond | Self::MebibytesPerSecond => format!("{value:.0}"),
            Self::Microseconds | Self::Mebibytes => format!("{value:.1}"),
            Self::GigabytesPerSecond | Self::Seconds => format!("{value:.2}"),
            Self::Percent if value >= 1.0 => format!("{value:.1}"),
            Self::Percent => format!("{value:.3}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[1.0, f64::NAN, 2.0]), None);
    }

    #[test]
    fn a_run_that_is_too_short_has_no_figure() {
        assert_eq!(steady(&[1.0, 1.0, 2.0, 4.0]), Some(3.0));
        assert_eq!(steady(&[1.0, 2.0]), None);
        assert_eq!(steady(&[1.0]), None);
    }

    #[test]
    fn cells_show_the_range() {
        let samples = Samples(vec![2510.4, 2400.0, 2600.0]);
        assert_eq!(samples.cell(Unit::TokensPerSecond, "-"), "2510 tokens/s (2400 to 2600)");
        assert_eq!(Samples(vec![5.123]).cell(Unit::GigabytesPerSecond, "-"), "5.12 GB/s");
        assert_eq!(Samples(vec![0.0421]).cell(Unit::Percent, "-"), "0.042%");
        assert_eq!(Samples(vec![23.46]).cell(Unit::Percent, "-"), "23.5%");
        assert_eq!(Samples(vec![211.04]).cell(Unit::Mebibytes, "-"), "211.0 MiB");
        assert_eq!(Samples::default().cell(Unit::Seconds, "not installed"), "not installed");
    }

    #[test]
    fn a_ratio_needs_both_sides() {
        let (three, two) = (Samples(vec![3.0]), Samples(vec![2.0]));
        assert_eq!(three.over(&two), Some(1.5));
        assert_eq!(three.over(&Samples::default()), None);
        assert_eq!(three.over(&Samples(vec![0.0])), None);
    }
}
