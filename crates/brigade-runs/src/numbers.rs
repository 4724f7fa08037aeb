//! Medians, and durations as text.

/// The middle of some numbers, or the mean of the two in the middle; none of nothing. What is not finite does not count.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().saturating_sub(1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

/// `340 ms`, `7.30 s`, `12 min 5 s`, `3 h 20 min`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.3} ms", 1e3 * seconds),
        seconds if seconds < 60.0 => format!("{seconds:.2} s"),
        seconds if seconds < 3600.0 => format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), seconds % 60.0),
        seconds => format!("{:.0} h {:.0} min", (seconds / 3600.0).floor(), (seconds % 3600.0) / 60.0),
    }
}
